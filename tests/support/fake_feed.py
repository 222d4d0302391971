"""A feed without loader servers: the real face over a session whose slots are in this process.

Rules: batches are views into 64-byte-aligned slots behind owner objects that return the slot when they die, as the real
ones are; content is a pure function of (epoch, batch number); `starve_at` and `delay_s` make it late, `fail_at` fail.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Self

from shared.errors import ClosedError, LostError, SettingsError, WorldChangedError
from shared.logs import Log
from shared.wire.batch_layout import ALIGNMENT, BucketShape, Field, fields_of_batch, layout_of
from trainer_client.core.upcoming import Position, Ranks
from trainer_client.feed import Feed
from trainer_client.session.epoch_account import Accounts
from trainer_client.session.shared_results import MeansOfTrainers
from trainer_client.session.trained_cursor import FeedCursor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["BATCH_FIELDS", "SHAPES", "FakeCursor", "FakeFeed", "FakeSession", "LeasedCursor", "tag_of"]

BATCH_FIELDS = fields_of_batch(
    (Field(key="audio", dtype="float32", shape=(None, 3)), Field(key="text", dtype="int32", shape=(None,)))
)
SHAPES = (
    BucketShape(rows=4, lengths={"audio": 8, "text": 2}),
    BucketShape(rows=2, lengths={"audio": 16, "text": 4}),
)
SLOT_WAIT_S = 0.005


def tag_of(epoch: int, number: int, row: int) -> int:
    """The tag of a row: readable, and different for every row of every epoch."""
    return (epoch * 1000 + number) * 100 + row


class FakeBatch(dict[str, Any]):
    """A batch as the feed yields it."""

    epoch: int
    number: int
    empty: bool
    rows: int
    digest: int = 0


class _Owner:
    """Holds a slot for as long as any array looks into it."""

    def __init__(self, slot: Any, free: queue.SimpleQueue[Any]) -> None:
        self.slot = slot
        self.free = free
        self.__array_interface__ = slot.__array_interface__

    def __del__(self) -> None:
        self.free.put(self.slot)


class FakeFeed(Feed):
    """The face; `session` is what stands behind it."""

    def __init__(self, **how: Any) -> None:
        self.session = FakeSession(**how)
        super().__init__(self.session)  # type: ignore[arg-type]


class FakeCursor(FeedCursor):
    """What was trained on, of a session's epochs."""

    def __init__(self, session: FakeSession) -> None:
        self.session = session
        self.at = Position(0, 0, session.replicas)
        self._all_counted = False

    def begin_reading(self) -> Position:
        self._all_counted = False
        return self.at

    def count(self, rounds: int) -> None:
        if self.session.evaluation or self._all_counted:
            return
        first = self.at.number
        self.session.trained_batches += rounds * self.session.replicas
        for trained in range(first, first + rounds * self.session.replicas):
            self.session.trained_rows += self.session.rows(self.at.epoch, trained)
        number, end = self.at.number + rounds * self.session.replicas, self.session.batches(self.at.epoch)
        assert number <= end, (self.at, rounds)
        self._go_to(*((self.at.epoch, number) if number < end else (self.at.epoch + 1, 0)))

    def refuse_unread(self, rounds: int) -> None:
        """What was read ahead is not kept here."""

    @property
    def goes_in_step(self) -> bool:
        return self.session.world > self.session.replicas

    def in_hand(self) -> Any:
        return self.at

    def is_within_epoch(self) -> bool:
        return bool(self.at.number)

    def ends_unseen(self) -> bool:
        return False

    def refuse_lockstep(self, error: SettingsError) -> None:
        raise error

    def may_count_pass(self, *, is_seen: bool) -> bool:
        return not self.session.evaluation

    def count_to_end(self, start: Position, rounds: int) -> None:
        if not self.session.evaluation and self.at == start:
            self._go_to(self.at.epoch + 1, 0)
            self._all_counted = True

    def _go_to(self, epoch: int, number: int) -> None:
        self.at = Position(epoch, number, self.session.replicas)

    def epoch_rounds(self) -> tuple[int, int] | None:
        return self.session.batches(self.at.epoch) // self.session.replicas, self.rounds_left()

    def epochs_done(self) -> tuple[float, int | None]:
        rounds = self.session.batches(self.at.epoch) // self.session.replicas
        return self.at.epoch + 1 - self.rounds_left() / max(rounds, 1), rounds

    def rounds_left(self) -> int:
        return (self.session.batches(self.at.epoch) - self.at.number) // self.session.replicas

    def most_rounds(self) -> int:
        return max(self.session.epochs)

    def epoch_of(self, state: Mapping[str, Any]) -> int:
        return int(state["epoch"])

    def state(self) -> dict[str, Any]:
        return {"stream": "fake", "epoch": self.at.epoch, "number": self.at.number, "plan": "p"}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["plan"] != "p":
            raise SettingsError(
                expected="plan p", got=str(state["plan"]), where="the checkpoint", remedy="Use the old settings."
            )
        self._go_to(state["epoch"], state["number"])

    def rewind(self) -> None:
        self._go_to(0, 0)


class LeasedCursor(FakeCursor):
    """Of a trainer that is leased batches: the epoch moves only once a reader has come to its end."""

    done = 0
    goes_in_step = False
    names_evaluations = True

    def is_within_epoch(self) -> bool:
        return self.epoch_of(self.state()) == self.at.epoch

    def ends_unseen(self) -> bool:
        return not self.is_within_epoch()

    def refuse_queue(self, error: SettingsError) -> None:
        raise error

    def refuse_lockstep(self, error: SettingsError) -> None:
        """It is leased its batches."""

    def may_count_pass(self, *, is_seen: bool) -> bool:
        return is_seen

    def epoch_rounds(self) -> None:
        """Others take some of them."""

    def epochs_done(self) -> tuple[float, int | None]:
        batches = self.session.batches(self.at.epoch)
        return self.at.epoch + self.done / batches, batches

    def begin_reading(self) -> Position:
        return Position(self.at.epoch, self.done, 1)

    def count(self, rounds: int) -> None:
        self.session.trained_rows += self.session.rows(self.at.epoch, self.done)
        self.done += rounds

    def count_to_end(self, start: Position, rounds: int) -> None:
        self._go_to(self.at.epoch + 1, 0)
        self.done = 0


@dataclass(eq=False)
class FakeSession:
    """The contract of `FeedSession`; epochs of these many rounds, one after another, over and over."""

    epochs: Sequence[int] = (10, 12, 9)
    replicas: int = 1
    producers: int = 0
    at_a_time: int = 1
    slots: int = 8
    evaluation: bool = False
    fields: tuple[Field, ...] = BATCH_FIELDS
    shapes: tuple[BucketShape, ...] = SHAPES
    delay_s: float = 0.0
    starve_at: tuple[int, int] | None = None
    fail_at: tuple[int, int] | None = None
    empty_at: Callable[[int, int], bool] = field(default=lambda epoch, number: False)
    is_elastic: bool = False
    rank: int = 0

    def __post_init__(self) -> None:
        self.cursor = FakeCursor(self)
        self.accounts = Accounts(self.fields)
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.starving = threading.Event()
        self.openings = 0
        self.waits_s: list[float] = []
        self.yielded: list[tuple[int, int]] = []
        self.copies = 0
        self.world, self.stream = self.replicas, "fake"
        self.trained_rows = 0
        self.results = FakeResults(self)
        self.most_epochs: int | None = None
        self.ended: list[tuple[str, int, int]] = []
        self.ahead: Callable[[], tuple[int, int]] = lambda: (0, len(self.yielded) - self.trained_batches)
        self.trained_batches = 0
        self.reported: list[tuple[int, int, int, dict[str, Any]]] = []
        self.shared: dict[int, dict[str, float]] = {}
        self.gathered: dict[int, MeansOfTrainers] = {}
        self.summed: Callable[[bytes, dict[str, int]], bytes] = lambda states, _at: states
        self.agreed: Callable[[float, dict[str, int]], float] = lambda value, _at: value
        self._let_go: Callable[[], None] | None = None
        self._on_close: Callable[[FakeSession], None] | None = None
        self.saved = ""
        self.log = Log("trainer", stream=self.stream)
        self.free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        size = max(layout_of(self.fields, shape).nbytes for shape in self.shapes)
        for _ in range(self.slots):
            self.free.put(_aligned(size))

    def note_saved(self, checkpoint: Path | None, step: int) -> None:
        """As the real one."""
        self.saved = f"{checkpoint}, step {step}" if checkpoint is not None else self.saved

    def open(self, *, keep_interrupt: bool = False) -> FakeIterator:
        self.openings += 1
        if isinstance(self.error, KeyboardInterrupt) and not keep_interrupt:
            self.error = None
        return FakeIterator(self, self.cursor.begin_reading())

    @property
    def spec(self) -> Any:
        """As the coordinator would describe the stream, with what a test has set since."""
        names = ("fields", "shapes", "producers", "at_a_time", "stream", "evaluation")
        return SimpleNamespace(base_fields=(), **{name: getattr(self, name) for name in names})

    @property
    def ranks(self) -> Ranks:
        return Ranks(rank=self.rank, replicas=self.replicas, world=self.world)

    @property
    def leases(self) -> Any:
        return self.cursor

    def watch_others(self, refuse_lost: Callable[[], None]) -> None:
        self.refuse_lost = refuse_lost

    def count_step_wait(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)

    #: What limits the job, as a test sets it.
    limit_now = ""

    def batches_ahead(self) -> tuple[int, int]:
        """Batches are made when they are asked for; a test may set what is reported to be there instead."""
        return self.ahead()

    def batches(self, epoch: int) -> int:
        return self.epochs[epoch % len(self.epochs)] * self.replicas

    def rows(self, epoch: int, number: int) -> int:
        """How many rows of a batch hold a sample."""
        return 0 if self.empty_at(epoch, number) else self.shapes[(number // self.replicas) % len(self.shapes)].rows

    def end_run(self, why: str, *, epoch: int, step: int) -> None:
        """Noted in `ended`."""
        self.ended.append((why, epoch, step))

    def check_world(self) -> None:
        if isinstance(self.error, WorldChangedError):
            raise self.error

    def serve_framework(self, *, let_go: Callable[[], None], on_close: Callable[[FakeSession], None]) -> None:
        self._let_go, self._on_close = let_go, on_close

    def let_go(self) -> None:
        if self._let_go is not None:
            self._let_go()

    def close(self, _timeout_s: float = 2.0) -> None:
        if self._on_close is not None:
            self._on_close(self)

    def interrupt(self, error: BaseException) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def nudge(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def content(self, epoch: int, number: int) -> dict[str, np.ndarray]:
        """What batch `number` of `epoch` holds, in fresh memory."""
        shape = self.shapes[(number // self.replicas) % len(self.shapes)]
        layout = layout_of(self.fields, shape)
        arrays = layout.arrays(_aligned(layout.nbytes))
        self.fill(arrays, epoch, number)
        return arrays

    def fill(self, arrays: Mapping[str, np.ndarray], epoch: int, number: int) -> None:
        empty = self.empty_at(epoch, number)
        generator = np.random.default_rng((epoch, number))
        for array in arrays.values():
            array[...] = 0
        if empty:
            return
        rows = len(arrays["weight"])
        for key, array in arrays.items():
            if array.dtype == np.float32 and array.ndim > 1:
                array[...] = generator.normal(size=array.shape)
            elif f"{key}_length" in arrays:
                array[...] = generator.integers(1, 5, size=array.shape)
                arrays[f"{key}_length"][...] = array.shape[1]
            elif key.endswith("_length") and f"{key[:-7]}" in arrays:
                array[...] = arrays[key[:-7]].shape[1]
        arrays["weight"][...] = 1
        arrays["tag"][...] = [tag_of(epoch, number, row) for row in range(rows)]


class FakeResults:
    """What a session shares with other ranks: each test says what these came to."""

    def __init__(self, session: FakeSession) -> None:
        self.session = session

    def share(self, values: Any, *, wait: bool = False, **how: Any) -> Any:
        """Noted in `reported`; a test puts into `shared` what all ranks came to."""
        self.session.reported.append((how["epoch"], how["step"], how["rows"], dict(values)))
        return self.session.shared.get(how["epoch"], dict(values)) if wait else None

    def gather(self, values: Any, **how: Any) -> MeansOfTrainers:
        """A test puts into `gathered` what all trainers came to."""
        self.share(values, step=0, **how)
        own = MeansOfTrainers(means=dict(values), rows=how["rows"], parts=1, trainers=1)
        return self.session.gathered.get(how["epoch"], own)

    def sum_states(self, states: bytes, **at: int) -> bytes:
        """A test may set `summed`, which is given the states and where they were said."""
        return self.session.summed(states, at)

    def agree(self, value: float, **at: int) -> float:
        """A test may set `agreed`, which is given the value and where it was said."""
        return self.session.agreed(value, at)


class FakeIterator:
    """One pass over an epoch from where it was opened."""

    def __init__(self, session: FakeSession, start: Position) -> None:
        self.session = session
        self.start = start
        self.epoch = 0 if session.evaluation else start.epoch
        self.next_number = 0 if session.evaluation else start.number
        self.taken = 0
        self.closed = False

    @property
    def rounds(self) -> int:
        return self.taken // self.session.replicas

    def __iter__(self) -> Iterator[FakeBatch]:
        return self

    def __next__(self) -> FakeBatch:
        number = self.next_number
        self._wait(number)
        if number >= self.session.batches(self.epoch):
            raise StopIteration
        if self.session.fail_at == (self.epoch, number):
            self.session.error = LostError(
                expected="an answer", got="none", where="worker w1", remedy="Start a worker."
            )
            raise self.session.error
        self.next_number += 1
        self.taken += 1
        self.session.yielded.append((self.epoch, number))
        return self._batch(number)

    def take_stacked(self, keys: Collection[str], most: int) -> dict[str, Any]:
        batches = [next(self)]
        while len(batches) < most and self._is_alike():
            batches.append(next(self))
        return {key: np.stack([batch[key] for batch in batches]) for key in keys}

    def _is_alike(self) -> bool:
        session, number = self.session, self.next_number
        late = (self.epoch, number) in (session.starve_at, session.fail_at) or session.error is not None
        shape, before = (((counted // session.replicas) % len(session.shapes)) for counted in (number, number - 1))
        return not late and number < session.batches(self.epoch) and shape == before

    def close(self) -> None:
        with self.session.changed:
            self.closed = True
            self.session.changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _wait(self, number: int) -> None:
        with self.session.changed:
            if self.session.delay_s:
                self.session.changed.wait_for(self._stopped, self.session.delay_s)
            if self.session.starve_at == (self.epoch, number):
                self.session.starving.set()
                self.session.changed.wait_for(self._stopped)
        if self.session.error is not None:
            raise self.session.error
        if self.closed:
            raise ClosedError(expected="an open reading", got="a closed one", where="next", remedy="Open another.")

    def _stopped(self) -> bool:
        return self.closed or self.session.error is not None

    def _batch(self, number: int) -> FakeBatch:
        session = self.session
        layout = layout_of(session.fields, session.shapes[(number // session.replicas) % len(session.shapes)])
        slot, copied = self._slot()
        session.fill(layout.arrays(slot[: layout.nbytes]), self.epoch, number)
        owned = slot if copied else np.asarray(_Owner(slot, session.free))
        batch = FakeBatch(layout.arrays(owned[: layout.nbytes]))
        batch.rows = session.rows(self.epoch, number)
        batch.epoch, batch.number, batch.empty = self.epoch, number, session.empty_at(self.epoch, number)
        return batch

    def _slot(self) -> tuple[Any, bool]:
        session = self.session
        if session.free.qsize() <= 1:
            session.let_go()
        try:
            return session.free.get(timeout=SLOT_WAIT_S), False
        except queue.Empty:
            session.copies += 1
            return _aligned(max(layout_of(session.fields, shape).nbytes for shape in session.shapes)), True


def _aligned(nbytes: int) -> Any:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
