"""A trainer's counts: of all batches read, for metrics, and of each epoch, for the epoch's log line.

Rules: pure; plain numbers that only grow; a few microseconds a batch. Waits are reported twice: for each batch by the
reader of the feed, and for each step by the training loop, if it measures them. An epoch's log line uses the loop's
figures if there are any, because a reader inside `tf.data` runs ahead of the steps. Batches that were read ahead, or by
an iterator that was dropped, count towards the epoch that they belong to; steps count only once they were trained on.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.metrics.names import WAIT_BOUNDS_S
from shared.stations.limit import gain_words
from trainer_client.core.heard_limits import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shared.wire.batch_layout import Field
    from shared.wire.message_parts import WireShape
    from shared.wire.messages import Limited, Pushed

#: How many batches that were read and not trained on are counted separately; older ones are merged.
_MOST_UNTRAINED = 4096

#: The phases of a training loop other than waiting for data.
PHASES = ("warm_up", "step", "checkpoint")

__all__ = ["PHASES", "Accounts", "EpochAccount", "ReadCounts", "split_wait"]


#: Past the last batch of any epoch, in a stamp of an epoch that was trained on to its end.
_END_OF_EPOCH = 2**62


@dataclass(slots=True)
class ReadCounts:
    """Counts of all batches read so far."""

    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    build_wait_s: float = 0.0
    transfer_wait_s: float = 0.0
    conversion_s: float = 0.0
    #: Sum of the waits that the training loop reported; None until it reports any.
    step_wait_s: float | None = None
    #: Sums of the training loop's other phases, and how many steps were traced in the midst of training.
    phases_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    retraces: int = 0
    rounds: int = 0
    #: Rows with a sample in batches that were trained on.
    trained_rows: int = 0
    sample_rows: int = 0
    masked_rows: int = 0
    vacant_rows: int = 0
    #: Bytes of padded tensors: samples, the padding behind them, and rows without a sample.
    sample_bytes: int = 0
    padding_bytes: int = 0
    masked_bytes: int = 0
    #: Histogram of waits: each counts at the lowest of WAIT_BOUNDS_S that it does not exceed, or in the last place.
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BOUNDS_S) + 1))


@dataclass(slots=True)
class EpochAccount:
    """Counts of one epoch, from the first batch of it that was read."""

    began_s: float
    #: The keys of strings.
    strings: frozenset[str] = frozenset()
    #: The batch number at which this trainer began to train in this epoch.
    first: int = 0
    steps: int = 0
    read_wait_s: float = 0.0
    #: Where the reader's time went: its waits, for building and for the rest, and making arrays.
    build_wait_s: float = 0.0
    transfer_wait_s: float = 0.0
    conversion_s: float = 0.0
    step_wait_s: float | None = None
    masked_samples: int = 0
    sample_bytes: int = 0
    padded_bytes: int = 0
    shapes: set[WireShape] = field(default_factory=set)

    def log_fields(
        self, *, now_s: float, batches: int, limit: Limited | None = None, is_shared: bool = False
    ) -> dict[str, float | str]:
        """Return the fields of the epoch's log line, at its end: what limited it, counts, rates and fractions.

        What limited it is what the coordinator said, as `limit`: without it "unknown".

        The fractions are `waiting` (of the time), its split, `padding` (of the bytes, masked rows included) and
        `complete` (of the epoch's `batches`, from where this trainer began). If trainers share the epoch batch by
        batch, the last is `share` instead, of the batches that this one trained on. Waits are those of the training
        loop if it reported any, else the reader's. The split is always the reader's, as fractions of the time: `build`
        and `transfer` of its waits, and `conversion` of slots into arrays.
        """
        seconds = max(now_s - self.began_s, 1e-9)
        waited_s = self.read_wait_s if self.step_wait_s is None else self.step_wait_s
        waiting = min(waited_s / seconds, 1.0)
        return {
            **_limit_fields(limit),
            "steps": self.steps,
            "seconds": round(seconds, 3),
            "steps_per_s": round(self.steps / seconds, 3),
            "waiting": round(waiting, 4),
            "build": round(self.build_wait_s / seconds, 4),
            "transfer": round(self.transfer_wait_s / seconds, 4),
            "conversion": round(self.conversion_s / seconds, 4),
            "padding": round(1 - self.sample_bytes / self.padded_bytes, 4) if self.padded_bytes else 0.0,
            "shapes": len(set(map(self._without_strings, self.shapes))),
            "masked": self.masked_samples,
            **_extent(self, batches, is_shared=is_shared),
        }

    def _without_strings(self, shape: WireShape) -> WireShape:
        """Return a shape without the bytes of strings, in which batches differ that have arrays of one shape."""
        return replace(shape, lengths=tuple(pair for pair in shape.lengths if pair[0] not in self.strings))


def _extent(account: EpochAccount, batches: int, *, is_shared: bool) -> dict[str, float]:
    """Return as a field how much of an epoch was trained on: `share`, or `complete` from where it began; 1 if empty."""
    part = account.steps if is_shared else batches - account.first
    return {"share" if is_shared else "complete": round(part / batches, 4) if batches else 1.0}


def _limit_fields(limit: Limited | None) -> dict[str, str]:
    """Return what limited an epoch, as `limit` and `at` (the one worker or rank), and what would help, as `gain`."""
    if limit is None:
        return {"limit": "unknown"}
    at, gains = {"at": limit.who} if limit.who else {}, verdict_of(limit).gains
    return {"limit": limit.limit, **at, "gain": "unknown" if gains is None else gain_words(gains)}


class Accounts:
    """The counts of one feed, whose batches have the given fields."""

    def __init__(self, fields: Iterable[Field], note_trained: Callable[[int, int, int], None] | None = None) -> None:
        self.counts = ReadCounts()
        #: Called with epoch, first number and the number after the last, of batches that were trained on.
        self._note_trained = note_trained
        known = {field.key: field for field in fields}
        # Bytes of one step along the padded axis, or of one cell of two such axes. Fields without lengths of their own
        # are left out: the marks beside a packed key.
        self._step_bytes = {
            key: np.dtype(field.dtype).itemsize * math.prod(axis or 1 for axis in field.shape[1:])
            for key, field in known.items()
            if field.padded and f"{key}_length" in known
        }
        #: The keys of a batch that `count_read` needs.
        self._wide = frozenset(field.key for field in known.values() if field.is_wide)
        self.keys = frozenset(f"{key}_length" for key in self._step_bytes) | {f"{key}_width" for key in self._wide}
        self._strings = frozenset(field.key for field in known.values() if field.is_string)
        self._epochs: dict[int, EpochAccount] = {}
        #: Rows with a sample of each batch that was read and not trained on yet, by epoch and number.
        self._untrained: dict[tuple[int, int], int] = {}

    @property
    def staged(self) -> int:
        """Return how many batches, but for empty ones, were handed to the reader and are not trained on, up to 4096."""
        return len(self._untrained)

    def count_read(
        self, headers: Sequence[Pushed], arrays: Mapping[str, Any], *, at_s: float, wait_s: float, conversion_s: float
    ) -> None:
        """Count batches of one shape that were handed to the reader together, at `at_s`.

        The consumer waited `wait_s` for the first; making arrays of them took `conversion_s`.
        """
        first = headers[0]
        epoch = self._epochs.get(first.epoch)
        if epoch is None:
            epoch = self._epochs[first.epoch] = EpochAccount(at_s - wait_s, self._strings)
        epoch.read_wait_s += wait_s
        epoch.shapes.add(first.shape)
        epoch.masked_samples += sum(header.masked for header in headers)
        epoch.conversion_s += conversion_s
        self.counts.conversion_s += conversion_s
        self._count_wait(first, len(headers), wait_s, epoch)
        self._count_rows(headers, arrays, epoch)

    def _count_wait(self, header: Pushed, batches: int, wait_s: float, epoch: EpochAccount) -> None:
        counts = self.counts
        build_s, transfer_s = split_wait(wait_s, header.build_us / 1e6, in_slot=header.in_slot)
        counts.batches += batches
        counts.nbytes += batches * header.nbytes
        counts.waits[0] += batches - 1  # only the first was waited for
        counts.wait_s += wait_s
        counts.build_wait_s += build_s
        counts.transfer_wait_s += transfer_s
        epoch.build_wait_s += build_s
        epoch.transfer_wait_s += transfer_s
        counts.waits[bisect_left(WAIT_BOUNDS_S, wait_s)] += 1

    def _count_rows(self, headers: Sequence[Pushed], arrays: Mapping[str, Any], epoch: EpochAccount) -> None:
        counts, shape = self.counts, headers[0].shape
        space, rows = len(headers) * shape.rows, sum(header.rows for header in headers)
        counts.sample_rows += rows
        for header in headers:
            if not header.empty:  # an empty place has another batch's number
                self._note_untrained((header.epoch, header.number), header.rows)
        counts.masked_rows += sum(header.masked for header in headers)
        # A packed row may lack several samples, so masked ones may outnumber the rows.
        counts.vacant_rows += sum(max(0, shape.rows - header.rows - header.masked) for header in headers)
        row_bytes = sample_bytes = 0
        lengths = dict(shape.lengths)
        for key, step in self._step_bytes.items():
            space_of_row, own = lengths[key], arrays[f"{key}_length"]
            if key in self._wide:
                space_of_row *= lengths[f"{key}_width"]
                own = np.multiply(own, arrays[f"{key}_width"], dtype=np.int64)
            row_bytes += space_of_row * step
            sample_bytes += int(np.add.reduce(own, axis=None)) * step
        counts.sample_bytes += sample_bytes
        counts.padding_bytes += max(0, rows * row_bytes - sample_bytes)
        counts.masked_bytes += (space - rows) * row_bytes
        epoch.sample_bytes += sample_bytes
        epoch.padded_bytes += space * row_bytes

    def _note_untrained(self, batch: tuple[int, int], rows: int) -> None:
        """Note a batch that is not trained on yet; of too many, merge the oldest into the next one of its epoch.

        If the next one is of another epoch, the oldest is dropped.
        """
        # This bounds memory when nobody counts steps; after reading that far ahead only sums matter.
        self._untrained[batch] = rows
        if len(self._untrained) > _MOST_UNTRAINED:
            oldest, following = itertools.islice(self._untrained, 2)
            older = self._untrained.pop(oldest)
            if oldest[0] == following[0]:
                self._untrained[following] += older

    def count_step_wait(self, epoch: int, wait_s: float) -> None:
        """Add the training loop's wait for the data of a step to the feed's total, and to the account of this epoch.

        An epoch of which nothing was read has no account.
        """
        self.counts.step_wait_s = (self.counts.step_wait_s or 0.0) + wait_s
        account = self._epochs.get(epoch)
        if account is not None:
            account.step_wait_s = (account.step_wait_s or 0.0) + wait_s

    def count_phase(self, phase: str, seconds: float) -> None:
        """Add the training loop's time in one of PHASES; raise KeyError for any other phase."""
        self.counts.phases_s[phase] += seconds

    def count_retraces(self, traces: int) -> None:
        """Add to the count of steps that were traced in the midst of training."""
        self.counts.retraces += traces

    def count_trained(self, epoch: int, number: int, rounds: int = 1, *, stop: float = math.inf) -> None:
        """Count rounds as trained on: the epoch's batches from `number` to `stop` (excluded), and their rows.

        Rounds of an epoch that is closed, or of which nothing was read, do not count, but `note_trained` is called. The
        first call for an epoch notes `number` as where training began in it.
        """
        if self._note_trained is not None:
            self._note_trained(epoch, number, _END_OF_EPOCH if stop == math.inf else int(stop))
        for batch in list(self._untrained):  # a copy, because a reader in another thread may be adding more
            if batch[0] == epoch and number <= batch[1] < stop:
                self.counts.trained_rows += self._untrained.pop(batch, 0)
        account = self._epochs.get(epoch)
        if account is not None:
            self.counts.rounds += rounds
            account.first = account.first if account.steps else number
            account.steps += rounds

    def count_given_back(self, epoch: int, number: int) -> None:
        """Forget a batch that was read and is not this trainer's any more; do nothing if it was not read."""
        self._untrained.pop((epoch, number), None)

    def forget(self) -> None:
        """Forget all epochs, because the cursor was moved: batches read so far belong to none that will be logged."""
        self._epochs = {}
        self._untrained = {}

    def close(self, epoch: int) -> EpochAccount | None:
        """Forget this epoch, which is over, and all earlier ones; return its account, or None if nothing was read."""
        account = self._epochs.get(epoch)
        for old in [known for known in list(self._epochs) if known <= epoch]:  # a reader may be adding the next epoch
            del self._epochs[old]
        for batch in [untrained for untrained in list(self._untrained) if untrained[0] <= epoch]:
            self._untrained.pop(batch, 0)
        return account


def split_wait(wait_s: float, build_s: float, *, in_slot: bool) -> tuple[float, float]:
    """Return how much of a wait was for building the batch, and how much for its transfer, in seconds.

    Building gets at most `build_s`, the transfer the rest; of a batch written in place (`in_slot`) building gets all.
    """
    build_wait_s = wait_s if in_slot else min(wait_s, build_s)
    return build_wait_s, wait_s - build_wait_s
