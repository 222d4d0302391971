"""The wants that a worker has accepted and not answered yet: which is built next, and what each trainer may have open.

Rules: pure. Every accepted ticket ends exactly once. Open tickets, and the bytes of batches that go by TCP, are counted
for each trainer, so one that asks for too much, or does not read, holds up only itself. Wants of a session that yields
are begun only while no other trainer's want may be, and none is under way: the building thread takes many at a time, so
a share of its queue would be a share of its time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from loader_server.wants.sessions import TrainerSession
from loader_server.wants.tickets import Verdict
from shared.fairness.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loader_server.wants.sessions import Sessions
    from shared.wire.message_parts import Ticket
    from shared.wire.messages import Want

__all__ = ["OpenWants", "WantQueue"]

#: The limit on open tickets of all trainers together: each costs a kilobyte.
_MOST_OPEN = 16 * 1024

K = TypeVar("K")
W = TypeVar("W")


class WantedBuild(Protocol):
    """A want that a worker has accepted, as far as this module needs it."""

    trainer: int
    want: Want
    cancelled: bool


S = TypeVar("S", bound=TrainerSession)


B = TypeVar("B", bound=WantedBuild)


class OpenWants(Generic[S, B]):
    """The wants of all `sessions`; `reads(address)` returns whether a connection reads what it is sent."""

    def __init__(
        self,
        sessions: Sessions[S],
        batches: Budget[int],
        largest: Mapping[str, int],
        reads: Callable[[bytes], bool],
    ) -> None:
        self._sessions = sessions
        #: The budget of bytes of batches that go by TCP, and the largest batch of each stream.
        self._batches = batches
        self._largest = largest
        self._reads = reads
        self._queue: WantQueue[int, B] = WantQueue()
        #: The wants of sessions that yield.
        self._spare: WantQueue[int, B] = WantQueue()
        #: The `id`s of builds for sessions that do not yield, taken and not finished.
        self._under_way: set[int] = set()
        self._open: Budget[int] = Budget(_MOST_OPEN)

    def __len__(self) -> int:
        """Return how many wants are not begun yet."""
        return len(self._queue) + len(self._spare)

    @property
    def of_trainers(self) -> int:
        """Return how many wants that are not begun are of sessions that do not yield.

        Only they mean that more workers would help.
        """
        return len(self._queue)

    def waiting(self) -> int:
        """Return how many wants would delay a newcomer: all of trainers whose next want may be built now.

        Wants of sessions that yield are not counted.
        """
        return self._queue.waiting(self._may_build)

    def _queue_of(self, session: S) -> WantQueue[int, B]:
        return self._spare if session.yields else self._queue

    def judge(self, session: S, ticket: Ticket) -> Verdict:
        """Return whether a ticket can be accepted (NEW), or why not.

        STALE if it or a later ticket of its slot was seen before; BUSY if its slot has an open ticket or does not
        exist, too many tickets are open, or the trainer does not read its answers.
        """
        # A trainer that does not read its answers would have us hold batch after batch for it.
        verdict = session.tickets.judge(ticket)
        has_room = self._open.has_room(session.incarnation) and self._reads(session.address)
        return Verdict.BUSY if verdict is Verdict.NEW and not has_room else verdict

    def put(self, session: S, build: B) -> None:
        """Accept a want; raise a KeyError if its ticket is stale, its slot is not free, or its trainer has too many.

        A slot that does not exist counts as not free. A want of a session that yields is never urgent. The limit for
        all trainers, and whether this one reads, are not checked here but by `judge`.
        """
        ticket = build.want.ticket
        if not session.tickets.accept(ticket):
            raise KeyError(ticket)
        self._open.take(session.incarnation, 1)
        session.builds[ticket] = build
        self._queue_of(session).put(session.incarnation, build, urgent=build.want.urgent and not session.yields)

    def take(self) -> B | None:
        """Return the want to build next and take it out; None if none may be built now.

        A want of a session that yields is taken only if no other may be built and none of the others is under way. For
        a batch that goes by TCP, the largest size in its stream is taken from its trainer's budget.
        """
        build = self._queue.take(self._may_build)
        if build is not None:
            self._under_way.add(id(build))
        # The building thread takes many batches at a time: a trainer's next want would wait behind a verifier's
        # batches.
        elif not self._under_way:
            build = self._spare.take(self._may_build)
        # The largest size of its stream, because its own is known only once it is built.
        if build is not None and not build.want.in_slot:
            self._batches.take(build.trainer, self._largest[build.want.stream])
        return build

    def _may_build(self, trainer: int, build: B) -> bool:
        """Return whether the want's trainer reads and, if the batch goes by TCP, there is room for it."""
        session = self._sessions.of(trainer)
        assert session is not None, "who is gone has no wants"
        return self._reads(session.address) and (build.want.in_slot or self._batches.has_room(trainer))

    def give_up(self) -> tuple[S, B] | None:
        """End a want that is not begun yet; return its session and the build, or None if there is none."""
        build = self._queue.take() or self._spare.take()
        if build is None:
            return None
        session = self._sessions.of(build.trainer)
        assert session is not None, "who is gone has no wants"
        self._end(session, build)
        return session, build

    def finish(self, build: B) -> S | None:
        """End a want that was taken, built or not; return its session, or None if it has no session with this build.

        What `take` took from the budget is given back.
        """
        self._under_way.discard(id(build))
        # From here on the sender counts the bytes that the trainer has not read.
        if not build.want.in_slot:
            self._batches.give_back(build.trainer, self._largest[build.want.stream])
        session = self._sessions.of(build.trainer)
        if session is None or session.builds.get(build.want.ticket) is not build:
            return None
        self._end(session, build)
        return session

    def cancel(self, session: S, ticket: Ticket) -> bool:
        """Cancel a want; return whether it ended at once: if not, the result of its build will be the answer.

        Return False as well if the session has no open want with this ticket; then there is nothing to answer.
        """
        build = session.builds.get(ticket)
        if build is None:
            return False
        build.cancelled = True
        # It is being built: the ticket stays open, because the building thread may still write into the slot.
        if not self._queue_of(session).remove(session.incarnation, build):
            return False
        self._end(session, build)
        return True

    def forget(self, session: S) -> list[B]:
        """Forget a trainer that is gone: end and return its wants that are not begun, and cancel the others.

        Its session closes once the last of its builds has ended. Empty if it has no want that is not begun; raise a
        KeyError if the session was forgotten already.
        """
        ended = self._queue_of(session).drop(session.incarnation)
        for build in ended:
            self._end(session, build)
        # Those that are begun end with their builds: until then this worker may write into the trainer's slots.
        for build in session.builds.values():
            build.cancelled = True
        self._sessions.leave(session)
        return ended

    def _end(self, session: S, build: B) -> None:
        """Close a want's ticket and forget its build; raise a KeyError if the ticket is not open."""
        session.tickets.answer(build.want.ticket)
        del session.builds[build.want.ticket]
        self._open.give_back(session.incarnation, 1)


class _TrainerWants(Generic[W]):
    """The wants of one trainer."""

    __slots__ = ("later", "urgent")

    def __init__(self) -> None:
        self.urgent: deque[W] = deque()
        self.later: deque[W] = deque()

    def __len__(self) -> int:
        return len(self.urgent) + len(self.later)

    def first(self) -> W:
        return (self.urgent or self.later)[0]

    def pop(self) -> W:
        return (self.urgent or self.later).popleft()

    def remove(self, want: W) -> bool:
        for wants in (self.urgent, self.later):
            if want in wants:
                wants.remove(want)
                return True
        return False


def _any(_trainer: object, _want: object) -> bool:
    """Return True: every want may be built."""
    return True


class WantQueue(Generic[K, W]):
    """Wants by trainer, with the turns of trainers: the order in which wants are built.

    Of one trainer's wants the urgent ones go first; otherwise wants keep their order. A trainer with many wants delays
    another by one batch at most, or by two if it has urgent ones: after one of them jumped the turn, its next one may
    do so only once every trainer that waited has had its turn. A trainer whose next want may not be built yet holds up
    nobody else.
    """

    def __init__(self) -> None:
        #: Trainers in the order of their turns.
        self._by_trainer: OrderedDict[K, _TrainerWants[W]] = OrderedDict()
        #: Trainers whose urgent want goes before all turns, in the order in which these wants came.
        self._ahead: dict[K, None] = {}
        #: The turns so far, and by trainer the turn from which on it may go first again.
        self._turns = 0
        self._again: dict[K, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_trainer.values()))

    def waiting(self, may: Callable[[K, W], bool]) -> int:
        """Return the number of wants of those trainers whose next want may be built."""
        # The others wait for their own trainer, and would not delay a newcomer.
        return sum(len(wants) for trainer, wants in self._by_trainer.items() if may(trainer, wants.first()))

    def put(self, trainer: K, want: W, *, urgent: bool) -> None:
        """Add a want behind its trainer's others of the same urgency; urgent wants go before those that are not.

        An urgent want also goes before all turns, unless its trainer has jumped the turn and not all that waited then
        have had their turn since.
        """
        wants = self._by_trainer.setdefault(trainer, _TrainerWants())
        (wants.urgent if urgent else wants.later).append(want)
        if urgent and self._turns >= self._again.get(trainer, 0):
            self._ahead[trainer] = None

    def take(self, may: Callable[[K, W], bool] = _any) -> W | None:
        """Return the next want that may be built, and take it out; None if there is none.

        Its trainer's next turn comes after those of all others, except that a want that jumped the turn leaves its
        trainer's turn where it was.
        """
        for trainer in self._ahead:
            if may(trainer, self._by_trainer[trainer].first()):
                # After jumping the turn, not again before each trainer that waits now has had a turn: urgent wants
                # alone must not starve the others.
                self._again[trainer] = self._turns + len(self._by_trainer)
                del self._ahead[trainer]
                return self._pop(trainer)
        # A trainer whose next want may not be built yet keeps its turn, and holds up nobody else.
        for trainer, wants in self._by_trainer.items():
            if may(trainer, wants.first()):
                self._turns += 1
                self._by_trainer.move_to_end(trainer)
                return self._pop(trainer)
        return None

    def _pop(self, trainer: K) -> W:
        want = self._by_trainer[trainer].pop()
        self._tidy(trainer)
        return want

    def remove(self, trainer: K, want: W) -> bool:
        """Take a want out and return True; return False if it is no longer here."""
        wants = self._by_trainer.get(trainer)
        if wants is None or not wants.remove(want):
            return False
        self._tidy(trainer)
        return True

    def _tidy(self, trainer: K) -> None:
        wants = self._by_trainer[trainer]
        # An urgent want that was taken out must leave its trainer no place before all turns.
        if not wants.urgent:
            self._ahead.pop(trainer, None)
        if not wants:
            del self._by_trainer[trainer]

    def drop(self, trainer: K) -> list[W]:
        """Take out and return all wants of a trainer that is gone, urgent ones first; empty if it has none."""
        # It begins afresh if it comes back.
        self._again.pop(trainer, None)
        self._ahead.pop(trainer, None)
        wants = self._by_trainer.pop(trainer, None)
        return [*wants.urgent, *wants.later] if wants is not None else []
