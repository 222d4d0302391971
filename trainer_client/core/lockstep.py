"""Sharing a stream's batches in lockstep: every rank follows the plan from its position, without leases.

Evaluation streams that are not queues are read like this as well.

Rules: pure. Workers tell how many batches an epoch has, so a reader may come before that is known; it is served when
the answer arrives. Must not know leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from trainer_client.core import instructions as i
from trainer_client.core.events import Saved

if TYPE_CHECKING:
    from trainer_client.core.asking.questions import Questions
    from trainer_client.core.asking.wants import Wants
    from trainer_client.core.events import Event, Opened
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.core.upcoming import Upcoming

__all__ = ["Lockstep"]


class Lockstep:
    """The sequence of batches that all ranks share round by round."""

    #: Lockstep has no timers.
    due_s = float("inf")

    def __init__(
        self, spec: StreamSpec, upcoming: Upcoming, wants: Wants, questions: Questions, out: list[i.Instruction]
    ) -> None:
        self._spec = spec
        self._upcoming = upcoming
        self._wants = wants
        self._questions = questions
        self._out = out
        #: The reader that waits until the number of batches of its epoch is known.
        self._opened: Opened | None = None

    def attach(self, answer: m.Attached, now_s: float, *, restores: bool) -> None:
        """Learn the epoch's number of batches from the coordinator's answer, and serve a reader that waits for it.

        ValueError of `learn` passes through.
        """
        self.learn(answer.cursor.epoch, answer.cursor.group, answer.batches, now_s)

    def learn(self, epoch: int, group: int, batches: int, now_s: float) -> None:
        """Note how many batches an epoch has; serve the reader that waits, if this is the epoch that it waits for.

        ValueError of `open` passes through.
        """
        self._upcoming.learn(epoch, group, batches)
        if self._opened is not None:
            self.open(self._opened, now_s)

    def open(self, event: Opened, now_s: float) -> None:
        """Serve this reader from now on; keep prefetched batches if they are those that the reader needs next.

        If they are not, cancel all open wants and begin where the reader stands. If the size of its epoch is not known
        yet, ask workers for it, and serve the reader when the answer comes, unless a newer reader was opened meanwhile.
        A reader that starts at or behind the end of its epoch is ended. ValueError of `redirect` passes through.
        """
        # A reader that was dropped in mid-epoch may have taken batches that nobody trained on. The next reader starts
        # before those (the sequence is redirected), or they would be missing from the epoch.
        upcoming = self._upcoming
        over = upcoming.is_over(event.start)
        # A reader may come before any worker has said how long its epoch is; `learn` opens it again then. Only the
        # newest waits: an older one asks again by itself once it may take over.
        self._opened = None
        if over is None:
            self._opened = event
            self._ask_about(event.start.epoch, event.start.group, now_s)
        elif over:
            self._out.append(i.Serve(event.reader, upcoming.head, ended=True))
        elif upcoming.leads_on(event.start, event.taken):
            self._out.append(i.Serve(event.reader, upcoming.head))
        else:
            upcoming.redirect(event.start, event.taken)
            self._wants.refocus()
            self._out.append(i.Restart(event.reader, upcoming.head))

    def extend(self, most: int, now_s: float) -> range:
        """Add up to `most` batches and return their numbers; ask workers for the size of the next epoch if needed.

        Fewer are added, perhaps none, while that size is not known, or if the pass to repeat is empty. Raise ValueError
        if the world exceeds the group.
        """
        seqs = self._upcoming.extend(most)
        missing = self._upcoming.missing()
        if missing is not None:
            self._ask_about(*missing, now_s)
        return seqs

    def _ask_about(self, epoch: int, group: int, now_s: float) -> None:
        spec = self._spec
        query = m.EpochQuery(stream=spec.stream, plan_digest=spec.plan_digest, epoch=epoch, group=group)
        self._questions.ask(query, now_s)

    def take(self, event: Event, now_s: float) -> None:
        """Ignore that a checkpoint was saved; raise AssertionError for any other event, because it is about leases."""
        assert isinstance(event, Saved), f"{event} in lockstep"

    def receive(self, message: m.Leases | m.Recalled, now_s: float) -> bool:
        """Return False: no message about leases is expected in lockstep."""
        return False

    def drain(self) -> None:
        """Do nothing: ranks end with the same round (see `job_end`)."""

    def decide(self, now_s: float) -> None:
        """Do nothing: lockstep sends nothing to the coordinator."""

    def excuse(self, now_s: float) -> None:
        """Do nothing: lockstep has no timers."""
