"""A feed without loader servers: the contract of `trainer_client.feed.Feed` over slots in this process.

Rules: batches are views into 64-byte-aligned slots behind owner objects that return the slot when they die, as the real
ones are; content is a pure function of (epoch, batch number); `starve_at` and `delay_s` make it late, `fail_at` fail.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import ClosedError, LostError, SettingsError
from shared.wire.layout import ALIGNMENT, BucketShape, Field, fields_of_batch, layout_of
from trainer_client.tf import ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

__all__ = ["BATCH_FIELDS", "SHAPES", "Batch", "FakeFeed", "Reading", "tag_of"]

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


class Batch(dict[str, Any]):
    """A batch as the feed yields it."""

    epoch: int
    number: int
    empty: bool
    digest: int = 0


class _Owner:
    """Holds a slot for as long as any array looks into it."""

    def __init__(self, slot: Any, free: queue.SimpleQueue[Any]) -> None:
        self.slot = slot
        self.free = free
        self.__array_interface__ = slot.__array_interface__

    def __del__(self) -> None:
        self.free.put(self.slot)


@dataclass(eq=False)
class FakeFeed:
    """Epochs of these many rounds, one after another, over and over."""

    epochs: Sequence[int] = (10, 12, 9)
    replicas: int = 1
    at_a_time: int = 1
    slots: int = 8
    evaluation: bool = False
    fields: tuple[Field, ...] = BATCH_FIELDS
    shapes: tuple[BucketShape, ...] = SHAPES
    delay_s: float = 0.0
    starve_at: tuple[int, int] | None = None
    fail_at: tuple[int, int] | None = None
    empty_at: Callable[[int, int], bool] = field(default=lambda epoch, number: False)
    on_short_of_slots: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.epoch = 0
        self.cursor = 0
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.starving = threading.Event()
        self.openings = 0
        self.waits_s: list[float] = []
        self.yielded: list[tuple[int, int]] = []
        self.copies = 0
        self._late = False
        self.free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        size = max(layout_of(self.fields, shape).nbytes for shape in self.shapes)
        for _ in range(self.slots):
            self.free.put(_aligned(size))

    def open(self) -> Reading:
        self._late = False
        self.openings += 1
        return Reading(self, self.epoch, self.cursor)

    def trained(self, rounds: int = 1) -> None:
        if self.evaluation or self._late:
            return
        self.cursor += rounds * self.replicas
        end = self.batches(self.epoch)
        if self.cursor >= end:
            assert self.cursor == end, (self.epoch, self.cursor, rounds)
            self.epoch, self.cursor = self.epoch + 1, 0

    def drained(self, reading: Reading) -> None:
        if not self.evaluation and (self.epoch, self.cursor) == reading.start:
            self.epoch, self.cursor = self.epoch + 1, 0
            self._late = True

    def waited(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)

    def batches(self, epoch: int) -> int:
        return self.epochs[epoch % len(self.epochs)] * self.replicas

    def rounds_left(self) -> int:
        return (self.batches(self.epoch) - self.cursor) // self.replicas

    def most_rounds(self) -> int:
        return max(self.epochs)

    def state(self) -> dict[str, Any]:
        return {"stream": "fake", "epoch": self.epoch, "number": self.cursor, "plan": "p"}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["plan"] != "p":
            raise SettingsError(
                expected="plan p", got=str(state["plan"]), where="the checkpoint", remedy="Use the old settings."
            )
        self.epoch, self.cursor = state["epoch"], state["number"]

    def rewind(self) -> None:
        self.epoch, self.cursor = 0, 0

    def close(self) -> None:
        ctrl_c.forget(self)

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


class Reading:
    """One pass over an epoch from where it was opened."""

    def __init__(self, feed: FakeFeed, epoch: int, cursor: int) -> None:
        self.feed = feed
        self.epoch = 0 if feed.evaluation else epoch
        self.next_number = 0 if feed.evaluation else cursor
        self.start = (epoch, cursor)
        self.closed = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        number = self.next_number
        self._wait(number)
        if number >= self.feed.batches(self.epoch):
            raise StopIteration
        if self.feed.fail_at == (self.epoch, number):
            self.feed.error = LostError(expected="an answer", got="none", where="worker w1", remedy="Start a worker.")
            raise self.feed.error
        self.next_number += 1
        self.feed.yielded.append((self.epoch, number))
        return self._batch(number)

    def stacked(self, keys: Collection[str], most: int) -> dict[str, Any]:
        batches = [next(self)]
        while len(batches) < most and self._is_alike():
            batches.append(next(self))
        return {key: np.stack([batch[key] for batch in batches]) for key in keys}

    def _is_alike(self) -> bool:
        feed, number = self.feed, self.next_number
        late = (self.epoch, number) in (feed.starve_at, feed.fail_at) or feed.error is not None
        shape, before = (((one // feed.replicas) % len(feed.shapes)) for one in (number, number - 1))
        return not late and number < feed.batches(self.epoch) and shape == before

    def close(self) -> None:
        with self.feed.changed:
            self.closed = True
            self.feed.changed.notify_all()

    def _wait(self, number: int) -> None:
        with self.feed.changed:
            if self.feed.delay_s:
                self.feed.changed.wait_for(self._stopped, self.feed.delay_s)
            if self.feed.starve_at == (self.epoch, number):
                self.feed.starving.set()
                self.feed.changed.wait_for(self._stopped)
        if self.feed.error is not None:
            raise self.feed.error
        if self.closed:
            raise ClosedError(expected="an open reading", got="a closed one", where="next", remedy="Open another.")

    def _stopped(self) -> bool:
        return self.closed or self.feed.error is not None

    def _batch(self, number: int) -> Batch:
        feed = self.feed
        layout = layout_of(feed.fields, feed.shapes[(number // feed.replicas) % len(feed.shapes)])
        slot, copied = self._slot()
        feed.fill(layout.arrays(slot[: layout.nbytes]), self.epoch, number)
        owned = slot if copied else np.asarray(_Owner(slot, feed.free))
        batch = Batch(layout.arrays(owned[: layout.nbytes]))
        batch.epoch, batch.number, batch.empty = self.epoch, number, feed.empty_at(self.epoch, number)
        return batch

    def _slot(self) -> tuple[Any, bool]:
        feed = self.feed
        if feed.free.qsize() <= 1 and feed.on_short_of_slots is not None:
            feed.on_short_of_slots()
        try:
            return feed.free.get(timeout=SLOT_WAIT_S), False
        except queue.Empty:
            feed.copies += 1
            return _aligned(max(layout_of(feed.fields, shape).nbytes for shape in feed.shapes)), True


def _aligned(nbytes: int) -> Any:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
