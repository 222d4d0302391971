"""In queue mode: a trainer's leases, in the order in which it trains on them, and its reports about them.

Rules, each from an interleaving that failed without it:
- One message is open at a time, and is repeated unchanged until it is answered; later reports go into the next one. An
  answer lists all leases that we have, so a lease that is missing from it is no longer ours.
- A lease that was lost before its batch was taken stays in its place, marked as void, and the consumer skips it: taking
  it out would race with the consumer. One that was lost in the consumer's hands is still reported done, since it was
  trained on; until then nothing new is leased, because a stuck consumer would be stuck on that, too.
- A new reader gets the batches again that were taken and not settled, as in lockstep, where reading moves nothing.
- Batches of an older generation are not reported: they are not in the model that was restored.
- A named evaluation has a lease table of its own, of which nothing is known before its first answer.
- A reader without upcoming batches waits for an answer no longer than `LeaseWait` allows.
- Once the coordinator has another book (`known_book`), nothing more is sent: the feed has ended.
Pure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.message_parts import Failure
from shared.wire.topics.work_messages import MOST_LEASES, plan_epoch
from trainer_client.core import instructions as i
from trainer_client.core.leasing.known_book import LeaseWait
from trainer_client.core.leasing.metric_states import DoneLeases, NamedEvaluation
from trainer_client.core.upcoming import Entry, Position, Upcoming, UpcomingBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.wire.message_parts import Lease
    from trainer_client.core.asking.prefetch import Prefetch
    from trainer_client.core.events import LeaseSettled
    from trainer_client.core.leasing.known_book import KnownBook
    from trainer_client.core.settings import CoreSettings

__all__ = ["HeldLeases", "LeasedUpcoming"]

#: Back-off between repetitions of the open message.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 1.0


class LeasedUpcoming(Upcoming):
    """The sequence of upcoming batches in queue mode: those that were leased, in that order."""

    def __init__(self, start: Position, work: str, settings: CoreSettings) -> None:
        super().__init__(start, settings.ranks, repeats=False)
        self._group, self._work = start.group, work
        self._coming: deque[UpcomingBatch] = deque()
        #: Leases whose batches a consumer took and has not settled, in the order in which it took them.
        self.taken: dict[Lease, None] = {}

    def add(self, leases: Iterable[Lease], generation: int) -> None:
        """Append the batches of these leases to the sequence."""
        for lease in leases:
            at = Position(plan_epoch(self._work, lease.epoch), lease.number, self._group)
            self._coming.append(
                UpcomingBatch(
                    at, 0, lap=lease.epoch, number=lease.number, empty=False, lease=lease, generation=generation
                )
            )

    def missing(self) -> None:
        """Return None: the coordinator knows how many batches an epoch has."""

    def is_over(self, position: Position) -> bool:
        """Return False: the end of an epoch comes from the coordinator, not from a number of batches."""
        return False

    @property
    def is_empty(self) -> bool:
        """Return whether there are no upcoming batches."""
        return self.head == self.end and not self._coming

    def extend(self, most: int) -> range:
        """Add up to `most` of the leased batches; return their numbers, an empty range if no leased batch is left."""
        first = self.end
        while self._coming and self.end - first < most:
            self.entries[self.end] = Entry(self._coming.popleft())
            self.end += 1
        return range(first, self.end)

    def pass_to(self, head: int) -> None:
        """Move the head to this number: every batch before it was taken, and its lease waits to be settled."""
        for seq in range(self.head, head):
            lease = self.entries[seq].batch.lease
            assert lease is not None
            self.taken[lease] = None
        super().pass_to(head)

    def settle(self, lease: Lease) -> None:
        """Note that this lease is settled; do nothing for a lease that was not taken, as a void one may be."""
        self.taken.pop(lease, None)

    def start_over(self, leases: Iterable[Lease], generation: int) -> None:
        """Replace all upcoming and taken batches by those of these leases; numbers go on from the last one."""
        self._coming.clear()
        self.taken.clear()
        self.entries.clear()
        self.head = self.end
        self.add(leases, generation)


class HeldLeases:
    """A trainer's leases, its reports that wait to be sent, and the open message to the coordinator."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        settings: CoreSettings,
        attached: m.Attached,
        prefetch: Prefetch,
        upcoming: LeasedUpcoming,
        *,
        book: KnownBook,
        out: list[i.Instruction],
    ) -> None:
        #: Leases that are no longer ours and whose batches were not taken: consumers skip them.
        self.void: set[Lease] = set()
        #: Whether another trainer restored a checkpoint since we did, or since we attached.
        self.is_taken_back = False
        self._settings = settings
        self._stream, self._work = attached.stream, attached.work or ""
        self._timeout_s = attached.heartbeat_timeout_ms / 1000
        self._prefetch = prefetch
        self._upcoming = upcoming
        self._book = book
        self._out = out
        self._generation = 0
        #: Our leases, in the order in which they were leased.
        self._held: dict[Lease, None] = {}
        #: Leases that are no longer ours, but whose batches are in the consumer's hands.
        self._lost: set[Lease] = set()
        self._done = DoneLeases()
        #: Leases that the user failed at, with the reasons.
        self._failed: dict[Lease, str] = {}
        self._returned: dict[Lease, None] = {}
        self._serial = 0
        self._wait = LeaseWait(attached, settings.lost_timeout_s, out)
        self._open: m.Outcomes | None = None
        #: When to repeat the open message, and when to ask for more leases without other news.
        self._again_s = self._poll_s = float("inf")
        self._pause_s = _FIRST_PAUSE_S
        #: Whether the coordinator wants a message even if we have no news.
        self._is_called = False
        #: The batch in hand according to the latest message.
        self._reported_in_hand: Lease | None = None
        #: The first epoch that is not settled.
        self._unsettled = 0
        #: The reader that is served, and its epoch; None before the first one, when nothing is leased.
        self._reader: tuple[int, int] | None = None
        self._has_ended = False
        #: Whether the job was ended, so that no more is leased.
        self._drains = False
        #: Serials of callers that ask for the done-set, and of callers that the open message's answer is for.
        self._states_asked: list[int] = []
        self._states_answered_by: list[int] = []
        #: The evaluation whose batches are leased; None if batches bring no metric states.
        self._evaluation: NamedEvaluation | None = None

    @property
    def due_s(self) -> float:
        """Return when a message is due next, or infinity if only an event can cause one, or the book is lost."""
        if self._book.is_lost:
            return float("inf")
        if self._open is not None:
            return self._again_s
        return self._poll_s if self._wanted() > len(self._held) else float("inf")

    # --- the consumer ---

    def serve(self, reader: int, epoch: int, taken: int, now_s: float) -> bool:
        """Serve a reader of this epoch from now on; return whether the upcoming batches were replaced.

        They are replaced for a reader that has taken none yet, if batches were taken and not settled, or are void.
        """
        # A new reader gets the batches again that were taken and not settled, as in lockstep, where reading moves
        # nothing.
        self._reader, self._has_ended, self._poll_s = (reader, epoch), False, now_s
        # Void batches may belong to later epochs than this reader's, and would end it before it began.
        if taken or not (self._upcoming.taken or self.void):
            self._out.append(i.Serve(reader, self._upcoming.head))
            return False
        self._lost.clear()
        self.void.clear()
        self._upcoming.start_over(self._held, self._generation)
        self._out.append(i.Restart(reader, self._upcoming.head))
        return True

    def settle(self, event: LeaseSettled) -> None:
        """Note for the next message that the consumer has done a batch, failed at it, or gives it back.

        A lost lease is reported only if its batch is done, one of another generation never.
        """
        lease = event.lease
        # Until the lost ones are settled nothing new is leased; see `_wanted`.
        self._upcoming.settle(lease)
        self._lost.discard(lease)
        self.void.discard(lease)
        # If a checkpoint was restored since the batch was leased, the batch is not in the model any more.
        if event.generation != self._generation:
            return
        is_held = lease in self._held
        self._held.pop(lease, None)
        if event.done:
            self._done.add(lease, event.states)
        elif is_held and event.costs_try:
            self._failed[lease] = event.reason
        elif is_held:
            self._returned[lease] = None

    def ask_state(self, serial: int) -> None:
        """Ask the coordinator for the done-set, once it has all reports of this trainer."""
        self._states_asked.append(serial)

    def begin_evaluation(self, name: str, nbytes: int) -> None:
        """Forget all leases, and lease the batches of this evaluation from now on; no reader may be reading."""
        self._begin_generation(0)
        # An answer that is on its way is about another lease table, so its message is closed.
        self._unsettled, self._open = 0, None
        self._evaluation = NamedEvaluation(name, nbytes, self._out)

    def ask_sums(self, serial: int) -> None:
        """Ask the coordinator for the sums over the named evaluation, once it has all reports of this trainer."""
        assert self._evaluation is not None
        self._evaluation.ask(serial)

    # --- the coordinator ---

    def call(self) -> None:
        """Send a message with the next turn, as the coordinator asks, even without news."""
        self._is_called = True

    def drain(self) -> None:
        """Lease no more, because the job was ended; batches that are held are still read."""
        self._drains = True

    def repeat(self, now_s: float) -> None:
        """Repeat the open message, or send one, because we are attached again."""
        self._again_s, self._is_called = now_s, True

    def rewind(self, epoch: int) -> None:
        """Forget all leases, because a checkpoint of this epoch was restored; the coordinator leases anew."""
        self._begin_generation(0)
        self._unsettled, self.is_taken_back = epoch, False

    def receive(self, answer: m.Leases, now_s: float) -> bool:
        """Take in an answer: new, lost and kept leases; return False if it is not for the open message.

        An answer from another book ends the feed, and counts as expected. With a new generation, as after another
        trainer's restore, all former leases are lost. Callers that asked for the done-set get it if the answer brings
        it.
        """
        if self._open is None or answer.serial != self._open.serial:
            return False
        self._wait.end()
        if not self._book.hear(answer.book):
            self._open = None
            return True
        wanted, self._open, self._unsettled = self._open.wanted, None, answer.unsettled
        is_new = answer.generation != self._generation
        self._done.acknowledge(lost=answer.sums is not None and answer.sums.lost)
        if self._evaluation is not None and answer.sums is not None:
            self._evaluation.receive(answer.sums, is_new=is_new and self._generation != 0)
        if is_new:
            # Generation 0 means that we began anew ourselves; from any other one, another trainer has restored.
            self.is_taken_back |= self._generation != 0
            self._begin_generation(answer.generation)
        # A batch that we settled while the answer was on its way may still be listed as ours. Taking it for a new lease
        # would train on the batch twice, so listed leases with a report that waits are left out.
        settled = self._failed.keys() | self._returned.keys()
        listed = [lease for lease in answer.leases if lease not in settled and lease not in self._done]
        self._lose([lease for lease in self._held if lease not in set(listed)])
        new_leases = [lease for lease in listed if lease not in self._held]
        self._held.update(dict.fromkeys(new_leases))
        self._upcoming.add(new_leases, self._generation)
        # We may want more by now. But if we got less than we asked for, there is no more, and asking again at once
        # would only be a busy loop: the coordinator calls us, and half a heartbeat timeout is the fallback.
        self._poll_s = now_s + (self._timeout_s / 2 if len(answer.leases) < wanted else 0.0)
        done, serials, self._states_answered_by = answer.done, self._states_answered_by, []
        if done is not None:
            self._book.note_state(done)
            self._out.extend(i.AnswerState(serial, done) for serial in serials)
        return True

    def _begin_generation(self, generation: int) -> None:
        self._lose(list(self._held))
        self._lost.clear()
        self._done.clear()
        self._failed.clear()
        self._returned.clear()
        self._generation = generation

    def _lose(self, leases: list[Lease]) -> None:
        # What no consumer has taken stays in its place and is marked as void: taking it out of the sequence would race
        # with the consumer. What a consumer has in hand is still reported, since it will have been trained on.
        for lease in leases:
            del self._held[lease]
            (self._lost if lease in self._upcoming.taken else self.void).add(lease)

    # --- turns ---

    def decide(self, now_s: float) -> None:
        """End a reader whose epoch has no batches left, and send the message that is due.

        A reader that has no upcoming batch while a message is open waits for leases, which `LeaseWait` bounds: it may
        end the feed. Do nothing once the book is lost.
        """
        if self._book.is_lost:
            return
        self._end_reader()
        if self._open is None and self._has_to_say(now_s):
            self._begin()
        if self._open is not None and now_s >= self._again_s:
            self._again_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._out.append(i.ToCoordinator(self._open))
        if self._open is not None and self._reader is not None and not self._has_ended and self._upcoming.is_empty:
            self._wait.look(now_s)
        else:
            self._wait.end()

    def excuse(self, now_s: float) -> None:
        """Restart the wait for an answer: this trainer stalled, so it could hear none."""
        self._wait.excuse(now_s)

    def _end_reader(self) -> None:
        if self._reader is None or self._has_ended or not self._upcoming.is_empty:
            return
        if self._drains or self._unsettled > self._reader[1]:
            self._has_ended = True
            self._out.append(i.Serve(self._reader[0], self._upcoming.head, ended=True))

    def _has_to_say(self, now_s: float) -> bool:
        is_news = any((self._done, self._failed, self._returned, self._states_asked, self._is_called))
        is_news |= self._evaluation is not None and self._evaluation.asked is not None
        is_hungry = now_s >= self._poll_s and self._wanted() > len(self._held)
        in_hand = self._in_hand()
        return is_news or is_hungry or (in_hand is not None and in_hand != self._reported_in_hand)

    def _in_hand(self) -> Lease | None:
        """Return our oldest lease if its batch is in the consumer's hands, else None."""
        first = next(iter(self._held), None)
        return first if first in self._upcoming.taken else None

    def _wanted(self) -> int:
        # Nothing new while lost batches are in the consumer's hands: if it is stuck, it would be stuck on that, too.
        if self._reader is None or self._lost or self._drains or self._before() <= self._unsettled:
            return len(self._held)
        # Batches in the consumer's hands do not count as prefetched.
        return min(MOST_LEASES, self._prefetch.size + sum(lease in self._held for lease in self._upcoming.taken))

    def _before(self) -> int:
        """Return the first epoch from which no leases are wanted; 0 before the first reader.

        A reader that trains also prefetches from the epoch after its own, if `epochs` allows for one. For a reader at
        or beyond `epochs` it is the reader's own epoch, so that nothing is leased.
        """
        if self._reader is None:
            return 0
        before = self._reader[1] + (2 if self._work == "train" else 1)
        return before if self._settings.epochs is None else min(before, max(self._settings.epochs, self._reader[1]))

    def _begin(self) -> None:
        done, start, content = self._done.take()
        returned = _take(self._returned)
        failed = tuple(Failure(lease, self._failed.pop(lease)) for lease in tuple(self._failed)[:MOST_LEASES])
        # Before all done batches are reported, a done-set or sums would lack batches of this trainer.
        is_all = not self._done
        self._serial += 1
        self._reported_in_hand, self._is_called = self._in_hand(), False
        snapshot = bool(self._states_asked) and is_all
        self._open = m.Outcomes(
            stream=self._stream, work=self._work, incarnation=self._settings.incarnation, serial=self._serial,
            book=self._book.mark, generation=self._generation, done=done, failed=failed, returned=returned,
            in_hand=self._reported_in_hand, wanted=min(MOST_LEASES, self._wanted()), before=self._before(),
            snapshot=snapshot,
            states=self._evaluation.states(start, content, asks=is_all) if self._evaluation is not None else None,
        )  # fmt: skip
        if self._open.snapshot:
            self._states_answered_by, self._states_asked = self._states_asked, []
        self._again_s, self._pause_s = 0.0, _FIRST_PAUSE_S


def _take(leases: dict[Lease, None]) -> tuple[Lease, ...]:
    """Remove and return as many leases as fit into a message (MOST_LEASES), oldest first; empty if there are none."""
    taken = tuple(leases)[:MOST_LEASES]
    for lease in taken:
        del leases[lease]
    return taken
