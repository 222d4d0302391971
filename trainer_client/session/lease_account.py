"""Queue mode: which of the batches that a consumer took are done, and what a checkpoint says is done.

Rules: a batch is done when the user says so, or asks for the next; whoever leaves a loop early gets the last batch
again. A framework takes batches ahead, so there only what it handed over counts. What is done is known to the
coordinator, so a checkpoint asks there, after all that this trainer settled has arrived; what other trainers did with
the same model has to be settled before. Must not know sockets.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.wire.lease_work import plan_epoch
from shared.wire.parts import NAME, DoneSet, EpochDone
from trainer_client.core.events import EvaluationNamed, LeaseSettled
from trainer_client.core.upcoming import Position
from trainer_client.session.call_checks import fields_of_state, refused, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.wire.messages import Attached
    from shared.wire.parts import Lease
    from trainer_client.core.upcoming import UpcomingBatch
    from trainer_client.network.outbox import Item
    from trainer_client.network.receiver import Receiver
    from trainer_client.session.epoch_account import Accounts

__all__ = ["LeaseAccount", "only_in_lockstep", "only_in_queue"]


class LeaseAccount:
    """One feed's share of the work; `at` is the epoch that the next reader reads."""

    def __init__(self, receiver: Receiver, accounts: Accounts, answer: Attached) -> None:
        self._receiver = receiver
        self._spec = receiver.spec
        self._accounts = accounts
        #: Batches that were taken and are not settled, oldest first.
        self._taken: deque[UpcomingBatch] = deque()
        #: Names the newest reading.
        self.reading = 0
        #: How many of its batches are settled, and how many rounds were said to be trained on.
        self._settled = self._counted = 0
        self.at = Position(answer.cursor.epoch, 0, answer.cursor.group)
        #: Of a named evaluation: what a batch that is not settled adds to the metrics' variables.
        self._states: dict[Lease, bytes] = {}
        self._is_named = False

    def begin_reading(self) -> Position:
        """Where a reader that is opened now begins; batches that were taken and not settled come again."""
        self._taken.clear()
        self._states.clear()
        self.reading += 1
        self._settled = self._counted = 0
        return self.at

    def take(self, item: Item) -> bool:
        """A consumer takes this batch; False if it is no longer this trainer's, and has to be skipped."""
        lease = item.batch.lease
        assert lease is not None
        if lease in self._receiver.stream.leases.void:
            self._tell(item.batch, done=False)
            return False
        self._taken.append(item.batch)
        return True

    @property
    def is_taken_back(self) -> bool:
        """Whether another trainer has restored a checkpoint since this one did."""
        return self._receiver.stream.leases.is_taken_back

    # --- what becomes of batches ---

    def settle(self, batch: UpcomingBatch, *, done: bool, costs_try: bool = True, reason: str = "") -> None:
        """The batch is done, or the user failed at it for a reason, or gives it back; the first report counts."""
        if batch in self._taken:
            self._taken.remove(batch)
            self._settled += 1
            self._tell(batch, done=done, costs_try=costs_try, reason=reason)

    def in_hand(self) -> Lease:
        """The lease of the oldest batch that was taken and is not settled."""
        lease = self._taken[0].lease
        assert lease is not None
        return lease

    def give_back(self) -> None:
        """The batch in hand was not trained on, through no fault of its own."""
        self._counted += 1
        self.settle(self._taken[0], done=False, costs_try=False)

    def settle_read(self) -> None:
        """The next batch is asked for: all that were read before are done, unless the user said otherwise."""
        self._settle_to(self._settled + len(self._taken))

    def count(self, rounds: int) -> None:
        """So many more are done, the oldest of those that were taken."""
        self._counted += rounds
        self._settle_to(self._counted)

    def refuse_unread(self, rounds: int) -> None:
        """Refuse to count batches that were not taken."""
        self._receiver.refuse_fork()
        uncounted = self._settled + len(self._taken) - self._counted
        if rounds > uncounted:
            raise SettingsError(
                expected=f"at most the {max(0, uncounted)} batches that were taken and not counted yet",
                got=f"{rounds}",
                where="feed.trained",
                remedy="Count a batch once it is trained on.",
            )

    def count_handed_over(self, reading: int, rounds: int) -> None:
        """A framework has handed over so many of a reading's batches, and is asked for the next."""
        if reading == self.reading:
            self._settle_to(rounds)

    def _settle_to(self, number: int) -> None:
        while self._settled < number and self._taken:
            self._settled += 1
            self._tell(self._taken.popleft(), done=True)

    def _tell(self, batch: UpcomingBatch, *, done: bool, costs_try: bool = True, reason: str = "") -> None:
        assert batch.lease is not None
        if done:
            self._accounts.count_trained(batch.position.epoch, batch.number, stop=batch.number + 1)
        else:
            self._accounts.count_given_back(batch.position.epoch, batch.number)
        states = self._states.pop(batch.lease, b"") if done else b""
        told = LeaseSettled(batch.lease, batch.generation, done, costs_try, states, reason[: NAME.longest])
        self._receiver.outbox.tell(told)

    def count_to_end(self, start: Position, _rounds: int) -> None:
        """A reader that began at `start` reached the end of its epoch."""
        if self.at != start:
            return
        epoch = plan_epoch(self._spec.work, start.epoch)
        batches = self._receiver.ask_batches(epoch, start.group)
        account = self._accounts.close(epoch)
        if account is not None:
            fields = account.log_fields(now_s=time.perf_counter(), batches=batches)
            self._receiver.log.info("epoch done", epoch=start.epoch, **fields)
        self._warn_of_share(batches)
        self._move(start.epoch + 1)

    def _warn_of_share(self, batches: int) -> None:
        """Warn whoever takes what it read of an evaluation for all of it."""
        if self._spec.work == "evaluate" and not self._is_named and self._settled < batches:
            self._receiver.log.warning(
                "only a share of the evaluation was read here, others read the rest: a mean over it is that of a share",
                batches=self._settled, of=batches,
            )  # fmt: skip

    # --- evaluations whose metrics are summed ---

    def begin_evaluation(self, name: str, nbytes: int) -> None:
        """The next readers share the batches of this evaluation; each is to bring so many bytes of metric states."""
        self._taken.clear()
        self._is_named = True
        self._receiver.outbox.tell(EvaluationNamed(name, nbytes))
        self.at = Position(0, 0, self.at.group)

    def note_states(self, states: bytes) -> None:
        """The batch in hand, the oldest that is not settled, adds this to the metrics' variables."""
        self._states[self.in_hand()] = states

    def ask_sums(self) -> tuple[bytes, int] | None:
        """What all batches add, and how many were given up; None, and the next reader reads on, if some are left."""
        answer = self._receiver.ask_sums()
        if answer.sums is None:
            self.at = Position(0, 0, self.at.group)
            return None
        return answer.sums, answer.given_up

    def _move(self, epoch: int) -> None:
        self.at = Position(epoch, 0, self.at.group)
        self._receiver.standing.trained_to = (epoch, 0)

    def finish(self, work: Callable[[], object]) -> bool:
        """Do this once, in one of the trainers, after all epochs; whether it was done in this one."""
        if self._receiver.settings.core.epochs is None or self._spec.work != "train":
            raise SettingsError(
                expected="a feed that trains and knows how many epochs there are",
                got=f"one to {self._spec.work}, with epochs={self._receiver.settings.core.epochs}",
                where="finish",
                remedy="Give connect(..., epochs=) the number that all trainers use.",
            )
        if not self._receiver.ask_end():
            return False
        try:
            work()
        except BaseException:
            self._receiver.settle_end(done=False)
            raise
        self._receiver.settle_end(done=True)
        return True

    # --- what only lockstep has ---

    def rounds_left(self) -> int:
        """Refused: it depends on how fast the others are."""
        raise only_in_lockstep("the number of rounds that are left")

    def most_rounds(self) -> int:
        """No epoch has more than this; one more than there can be, so that whoever goes by it sees the end."""
        return self._spec.most_batches + 1

    # --- saving and restoring ---

    def epoch_of(self, state: Mapping[str, Any]) -> int:
        """The first epoch of which not all was done by then."""
        return int(state["epochs"][0][0])

    def state(self) -> dict[str, Any]:
        """What is done, as plain values: all numbers up to a mark, except those that are missing."""
        done = self._receiver.ask_state()
        return {
            "job": self._spec.job,
            "stream": self._spec.stream,
            "plan_digest": self._spec.plan_digest,
            "work": self._spec.work,
            "epochs": [[one.epoch, one.fresh, list(one.missing)] for one in done.epochs],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take all trainers back to what `state` returned: what was done since is leased again."""
        state = fields_of_state(state, ("job", "stream", "plan_digest", "work", "epochs"), "restore")
        mine = {"plan_digest": self._spec.plan_digest, "job": self._spec.job, "stream": self._spec.stream}
        mine["work"] = self._spec.work
        for name, value in mine.items():
            if state.get(name) != value:
                raise SettingsError(
                    expected=f"a checkpoint of {name} {value}, in queue mode",
                    got=str(state.get(name)),
                    where="restore",
                    remedy="Job file or data changed since the checkpoint: restore them, or start without it.",
                )
        self._rewind(DoneSet(tuple(_epoch_done(epoch) for epoch in state["epochs"])))

    def rewind(self) -> None:
        """Go to the very beginning, because a model without a checkpoint has trained on nothing."""
        self._rewind(DoneSet((EpochDone(0, 0, ()),)))

    def follow(self) -> bool:
        """Go to the first epoch that is not settled now: another trainer may have restored a checkpoint since this one
        attached. Return whether that is another epoch, of which nothing is read yet.
        """
        epoch = self.epoch_of(self.state())
        if epoch == self.at.epoch:
            return False
        self._taken.clear()
        self._accounts.forget()
        self._move(epoch)
        return True

    def _rewind(self, done: DoneSet) -> None:
        self._taken.clear()
        self._accounts.forget()
        self._move(self._receiver.attach(None, done).cursor.epoch)


def _epoch_done(epoch: Any) -> EpochDone:
    try:
        number, fresh, missing = epoch
        distances = tuple(whole(distance, "missing", "restore") for distance in missing)
    except (TypeError, ValueError):
        raise refused(
            "an epoch, the first number that was never leased, and a list of missing ones", epoch, "restore"
        ) from None
    return EpochDone(whole(number, "epoch", "restore"), whole(fresh, "fresh", "restore"), distances)


def only_in_lockstep(what: str) -> SettingsError:
    """The error if the user asks for something that only streams in lockstep have."""
    return SettingsError(
        expected="a stream in lockstep",
        got=f"a stream in queue mode, which does not have {what}",
        where="feed",
        remedy="Read the feed itself, `for batch in feed:`, or leave mode out of the stream in the job file.",
    )


def only_in_queue(what: str) -> SettingsError:
    """The error if the user asks for something that only streams in queue mode have."""
    return SettingsError(
        expected="a stream in queue mode",
        got="a stream in lockstep, whose ranks know without asking who is first",
        where=f"feed.{what}",
        remedy="Ask `trainer_client.role().is_master`, or go by the rank that you gave to connect.",
    )
