"""What a trainer counts: all batches that it read, for metrics, and each epoch by itself, for the epoch's log line.

Rules: pure; plain numbers that only grow; a few microseconds a batch. Waits are reported twice: for each batch by the
reader of the feed, and for each step by the training loop, if it does. An epoch's log line uses the loop's figures if
there are any, because a reader inside `tf.data` runs ahead of the steps. What was read ahead, or by an iterator that
was dropped, counts towards the epoch that it belongs to; steps count only once they were trained on.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.metrics.names import WAIT_BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shared.wire.layout import Field
    from shared.wire.messages import Pushed
    from shared.wire.parts import WireShape

#: How many batches that were read and not trained on are counted separately.
_MOST_UNTRAINED = 4096

#: What a training loop does besides waiting for data.
PHASES = ("warm_up", "step", "checkpoint")

__all__ = ["PHASES", "Accounts", "EpochAccount", "ReadCounts", "ReadTimes", "split_wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes:
    """The times of one batch: when it was taken, how long the consumer waited, and how long making arrays took."""

    at_s: float
    wait_s: float
    conversion_s: float


@dataclass(slots=True)
class ReadCounts:
    """All batches read so far."""

    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    build_wait_s: float = 0.0
    transfer_wait_s: float = 0.0
    conversion_s: float = 0.0
    #: Waits that the training loop reported; None until it reports any.
    step_wait_s: float | None = None
    #: What the training loop reported of its other phases, and of steps traced in the midst of training.
    phases_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    retraces: int = 0
    rounds: int = 0
    #: Rows with a sample, of the batches that were trained on.
    trained_rows: int = 0
    sample_rows: int = 0
    masked_rows: int = 0
    vacant_rows: int = 0
    #: Bytes of padded tensors: of samples, past their ends, and of rows without a sample.
    sample_bytes: int = 0
    padding_bytes: int = 0
    masked_bytes: int = 0
    #: Waits by WAIT_BOUNDS_S: each is counted at the lowest bound that it does not exceed, or in the last place.
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BOUNDS_S) + 1))


@dataclass(slots=True)
class EpochAccount:
    """One epoch, from the first batch of it that was read."""

    began_s: float
    #: The batch number at which this trainer began to train on it.
    first: int = 0
    steps: int = 0
    read_wait_s: float = 0.0
    step_wait_s: float | None = None
    masked_samples: int = 0
    sample_bytes: int = 0
    padded_bytes: int = 0
    shapes: set[WireShape] = field(default_factory=set)

    def log_fields(self, *, now_s: float, batches: int) -> dict[str, float]:
        """The fields of its log line; `waiting` and `padding` (masked rows included) are shares."""
        seconds = max(now_s - self.began_s, 1e-9)
        waited_s = self.read_wait_s if self.step_wait_s is None else self.step_wait_s
        return {
            "steps": self.steps,
            "seconds": round(seconds, 3),
            "waiting": round(min(waited_s / seconds, 1.0), 4),
            "padding": round(1 - self.sample_bytes / self.padded_bytes, 4) if self.padded_bytes else 0.0,
            "shapes": len(self.shapes),
            "masked": self.masked_samples,
            "complete": round(1 - self.first / batches, 4) if batches else 1.0,
        }


class Accounts:
    """The counts of one feed, whose batches have these fields."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self.counts = ReadCounts()
        known = {one.key: one for one in fields}
        # Marks beside a packed key have no lengths of their own.
        self._step_bytes = {
            key: np.dtype(one.dtype).itemsize * math.prod(axis or 1 for axis in one.shape[1:])
            for key, one in known.items()
            if one.padded and f"{key}_length" in known
        }
        #: The keys of a batch that it needs to see.
        self.keys = frozenset(f"{key}_length" for key in self._step_bytes)
        self._epochs: dict[int, EpochAccount] = {}
        #: Rows with a sample of each batch that was read and not trained on yet, by epoch and number.
        self._untrained: dict[tuple[int, int], int] = {}

    @property
    def staged(self) -> int:
        """How many batches with samples were handed to the reader and are not trained on, up to 4096."""
        return len(self._untrained)

    def count_read(self, headers: Sequence[Pushed], arrays: Mapping[str, Any], times: ReadTimes) -> None:
        """Batches of one shape were handed to the reader at once, after waiting for the first."""
        first = headers[0]
        epoch = self._epochs.get(first.epoch)
        if epoch is None:
            epoch = self._epochs[first.epoch] = EpochAccount(times.at_s - times.wait_s)
        epoch.read_wait_s += times.wait_s
        epoch.shapes.add(first.shape)
        epoch.masked_samples += sum(header.masked for header in headers)
        self._count_times(first, len(headers), times)
        self._count_rows(headers, arrays, epoch)

    def _count_times(self, header: Pushed, batches: int, times: ReadTimes) -> None:
        counts = self.counts
        build_s, transfer_s = split_wait(times.wait_s, header.build_us / 1e6, in_slot=header.in_slot)
        counts.batches += batches
        counts.nbytes += batches * header.nbytes
        counts.waits[0] += batches - 1
        counts.wait_s += times.wait_s
        counts.build_wait_s += build_s
        counts.transfer_wait_s += transfer_s
        counts.conversion_s += times.conversion_s
        counts.waits[bisect_left(WAIT_BOUNDS_S, times.wait_s)] += 1

    def _count_rows(self, headers: Sequence[Pushed], arrays: Mapping[str, Any], epoch: EpochAccount) -> None:
        counts, shape = self.counts, headers[0].shape
        space, rows = len(headers) * shape.rows, sum(header.rows for header in headers)
        counts.sample_rows += rows
        for header in headers:
            if not header.empty:  # an empty place has another batch's number
                self._note_untrained((header.epoch, header.number), header.rows)
        counts.masked_rows += sum(header.masked for header in headers)
        # A packed row may lack several samples.
        counts.vacant_rows += sum(max(0, shape.rows - header.rows - header.masked) for header in headers)
        row_bytes = sample_bytes = 0
        lengths = dict(shape.lengths)
        for key, step in self._step_bytes.items():
            row_bytes += lengths[key] * step
            sample_bytes += int(np.add.reduce(arrays[f"{key}_length"], axis=None)) * step
        counts.sample_bytes += sample_bytes
        counts.padding_bytes += max(0, rows * row_bytes - sample_bytes)
        counts.masked_bytes += (space - rows) * row_bytes
        epoch.sample_bytes += sample_bytes
        epoch.padded_bytes += space * row_bytes

    def _note_untrained(self, batch: tuple[int, int], rows: int) -> None:
        """Note a batch; the oldest of too many is merged into the next, because after reading far ahead only sums
        matter.
        """
        self._untrained[batch] = rows
        if len(self._untrained) > _MOST_UNTRAINED:
            oldest, following = itertools.islice(self._untrained, 2)
            older = self._untrained.pop(oldest)
            if oldest[0] == following[0]:
                self._untrained[following] += older

    def count_step_wait(self, epoch: int, wait_s: float) -> None:
        """The training loop waited this long for the data of a step."""
        self.counts.step_wait_s = (self.counts.step_wait_s or 0.0) + wait_s
        account = self._epochs.get(epoch)
        if account is not None:
            account.step_wait_s = (account.step_wait_s or 0.0) + wait_s

    def count_trained(self, epoch: int, number: int, rounds: int = 1, *, stop: float = math.inf) -> None:
        """Count rounds, the batches from `number` to `stop` (excluded) of the epoch, as trained on; ignored once the
        epoch is closed.
        """
        for one in list(self._untrained):  # a reader may be adding more
            if one[0] == epoch and number <= one[1] < stop:
                self.counts.trained_rows += self._untrained.pop(one, 0)
        account = self._epochs.get(epoch)
        if account is not None:
            self.counts.rounds += rounds
            account.first = account.first if account.steps else number
            account.steps += rounds

    def count_given_back(self, epoch: int, number: int) -> None:
        """A batch that was read is not this trainer's any more; ignored if it was not read."""
        self._untrained.pop((epoch, number), None)

    def forget(self) -> None:
        """The cursor was moved elsewhere: what was read so far belongs to no epoch that will be reported."""
        self._epochs = {}
        self._untrained = {}

    def close(self, epoch: int) -> EpochAccount | None:
        """The epoch is over: its account, if any of it was read; earlier epochs are forgotten."""
        account = self._epochs.get(epoch)
        for old in [one for one in list(self._epochs) if one <= epoch]:  # a reader may be adding the next one
            del self._epochs[old]
        for one in [one for one in list(self._untrained) if one[0] <= epoch]:
            self._untrained.pop(one, 0)
        return account


def split_wait(wait_s: float, build_s: float, *, in_slot: bool) -> tuple[float, float]:
    """Split a wait into the part for building the batch, and the part for its transfer."""
    build_wait_s = wait_s if in_slot else min(wait_s, build_s)
    return build_wait_s, wait_s - build_wait_s
