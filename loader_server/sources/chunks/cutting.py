"""How a stream's recordings are cut: from the settings in the job file to steps, and to the table of all chunks.

Rules: pure, and integers only once seconds have become steps by each recording's own rate; settings that cannot be met
are refused, with what to write instead. The chunks of a recording are numbered one after another, and recordings follow
each other in order. Chunks begin at regular steps, so without an overlap each step is in exactly one chunk; the last
may be short. A recording no longer than a chunk is a single chunk, and so is an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.settings import length_amount
from shared.errors import SettingsError
from shared.settings.parsers import Amount, setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.planning import PlanSettings
    from shared.settings.job import StreamSettings
    from shared.wire.batch_layout import Field

    Lengths = Mapping[str, NDArray[np.int64]]

__all__ = ["ChunkRule", "ChunkSettings", "ChunkTable", "rate_keys"]


def rate_keys(lengths: Lengths) -> frozenset[str]:
    """Return the keys that hold the rate of another key (steps a second), which are not lengths."""
    return frozenset(f"{key}_rate" for key in lengths) & lengths.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSettings:
    """The settings for chunks in a stream's table."""

    chunk: Amount | None = setting(
        length_amount,
        'long samples are cut along `length`, before the transforms: each "10 s" is a sample of its own',
        default=None,
    )
    chunk_step: Amount | None = setting(
        length_amount,
        "from one chunk's beginning to the next one's; without it chunks do not overlap",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRule:
    """Rule to cut along `key` into chunks of `length`, one beginning each `step`; `where` is the stream's table."""

    key: str
    length: Amount
    #: From one chunk's beginning to the next one's.
    step: Amount
    where: str

    @staticmethod
    def read(settings: ChunkSettings, stream: StreamSettings, plan: PlanSettings, where: str) -> ChunkRule | None:
        """Return the rule that the settings ask for, or None if nothing is to be cut.

        Raise a SettingsError for `chunk_step` or `carry` without `chunk`, for `chunk` without `length`, for `carry`
        with another `chunk_step` or without lockstep, and for chunks longer than a `max_length` in the same unit.
        """
        length, step = settings.chunk, settings.chunk_step
        if length is None:
            if step is not None or plan.carry:
                raise _chunk_missing("carry = true" if step is None else f'chunk_step = "{step}"', where)
            return None
        if not stream.length:
            raise _uncuttable(where)
        # Whose state a batch needs has to follow from its number: so chunks follow each other without a gap, and each
        # trainer gets the next chunk of its own rows.
        if plan.carry and step not in (None, length):
            raise _overlap_carried(step, where)
        if plan.carry and stream.mode != "lockstep":
            raise _leased_carried(where)
        _refuse_dropped(length, plan, where)
        return ChunkRule(key=stream.length, length=length, step=step or length, where=where)

    @property
    def summary(self) -> str:
        """Return the rule as text, which differs between streams that cut in different ways."""
        return f"chunks of {self.length} of {self.key}, each {self.step}"

    def table(self, lengths: Lengths, fields: tuple[Field, ...], where: str) -> ChunkTable:
        """Return the chunks of recordings of these lengths, from a source whose raw samples have these fields.

        Raise a SettingsError if the samples lack the key, if a chunk or step is less than one step of the key, if an
        amount is in seconds and the key has no rate, or if chunks leave gaps.
        """
        # Cut before the transforms: decoding an hour for each ten seconds of it would cost 360 times as much.
        if self.key not in lengths:
            having = ", ".join(f'"{key}"' for key in lengths) or "none"
            raise SettingsError(
                expected=f'a source whose samples have "{self.key}" (length): they are cut along it, before transforms',
                got=f"a source with {having} ({where})",
                where=f"{self.where}, chunk",
                remedy="Let the transforms keep the name of what the source has, and write that as length.",
            )
        steps = self._steps("chunk", self.length, lengths, fields)
        stride = self._steps("chunk_step", self.step, lengths, fields)
        if np.any(stride > steps):
            raise SettingsError(
                expected=f'at most chunk = "{self.length}", or what lies between two chunks would be in none',
                got=f'"{self.step}"',
                where=f"{self.where}, chunk_step",
                remedy="Write a smaller chunk_step, or leave it out: then one chunk begins where the last one ends.",
            )
        return ChunkTable(lengths[self.key], steps, stride)

    def alike(self, lengths: Lengths) -> tuple[str, ...]:
        """Return the keys that are cut along with `key`, itself among them: those equally long in every recording.

        Rates are never among them.
        """
        own, rates = lengths[self.key], rate_keys(lengths)
        # By the lengths, as no format says which of its keys run along the same time.
        return tuple(key for key, column in lengths.items() if key not in rates and np.array_equal(own, column))

    def refuse_measured(self, names: Sequence[str]) -> SettingsError:
        """Return the error for transforms whose lengths would be measured, because these are of whole recordings."""
        return SettingsError(
            expected="transforms that declare their outputs, because chunk cuts their input",
            got=f"{', '.join(names)}, measured while indexing",
            where=f"{self.where}, transforms",
            remedy="Declare outputs and lengths with @transform(…), or leave chunk out.",
        )

    def _steps(self, name: str, amount: Amount, lengths: Lengths, fields: tuple[Field, ...]) -> NDArray[np.int64]:
        """Return an amount in steps, rounded half up.

        Raise a SettingsError if that is less than one step, or if it is in seconds and the key has no rate.
        """
        exact = np.asarray(amount.value * self._steps_a_unit(name, amount, lengths, fields))
        # Half a step is rounded up; numpy's rounding would go to the even neighbour.
        steps = np.floor(exact + 0.5).astype(np.int64)
        if np.any(steps < 1):
            raise SettingsError(
                expected=f'at least one step of "{self.key}"',
                got=f'"{amount}"',
                where=f"{self.where}, {name}",
                remedy="Write a larger amount.",
            )
        return steps

    def _steps_a_unit(
        self, name: str, amount: Amount, lengths: Lengths, fields: tuple[Field, ...]
    ) -> NDArray[np.int64] | float:
        """Return how many steps a unit has, for each recording or for all; 1 unless the amount is in seconds.

        Raise a SettingsError for an amount in seconds if the key has no rate.
        """
        if amount.unit != "s":
            return 1.0
        # Each recording's own rate, if the index has it: files of one data set may differ.
        if (rates := lengths.get(f"{self.key}_rate")) is not None:
            return rates
        per_second = next((field.per_second for field in fields if field.key == self.key), None)
        if per_second is not None:
            return per_second
        raise SettingsError(
            expected=f'an amount in steps of "{self.key}", such as "{amount.value:g} steps"',
            got=f'"{amount}"',
            where=f"{self.where}, {name}",
            remedy=f'"{self.key}" has no time in the source: write steps, frames, tokens, characters or bytes.',
        )


def _chunk_missing(got: str, where: str) -> SettingsError:
    """Return the error for a setting that has no meaning without `chunk`."""
    name = got.partition(" ")[0]
    return SettingsError(
        expected=f"chunk, which {name} belongs to",
        got=f"{got} alone",
        where=f"{where}, {name}",
        remedy=f'Write chunk = "10 s" as well, or leave {name} out.',
    )


def _uncuttable(where: str) -> SettingsError:
    """Return the error for samples that are to be cut although no key is named."""
    return SettingsError(
        expected="length, the key along which samples are cut (chunk)",
        got="no such setting",
        where=f"{where}, length",
        remedy="Name a key with a padded axis, or leave chunk out.",
    )


def _overlap_carried(step: Amount | None, where: str) -> SettingsError:
    """Return the error for carried state with chunks that overlap or leave gaps."""
    return SettingsError(
        expected="chunks that begin where the last one ends, as state is carried from one to the next (carry)",
        got=f'chunk_step = "{step}"',
        where=f"{where}, chunk_step",
        remedy="Leave chunk_step out, or carry.",
    )


def _leased_carried(where: str) -> SettingsError:
    """Return the SettingsError for a stream in queue mode that carries state from chunk to chunk."""
    return SettingsError(
        expected='mode = "lockstep", as a trainer has to get each row\'s next chunk (carry)',
        got='mode = "queue", where any trainer may get it',
        where=f"{where}, mode",
        remedy="Leave mode out, or carry.",
    )


def _refuse_dropped(length: Amount, plan: PlanSettings, where: str) -> None:
    """Raise a SettingsError for a chunk longer than a `max_length` in the same unit."""
    # Only amounts in the same unit can be compared before the rates of recordings are known.
    for _, longest in plan.max_lengths:
        if longest is not None and longest.unit == length.unit and longest.value < length.value:
            raise SettingsError(
                expected=f'a chunk of at most max_length = "{longest}", or it would be dropped',
                got=f'chunk = "{length}"',
                where=f"{where}, chunk",
                remedy="Leave max_length out, as no sample is longer than a chunk; or write a shorter chunk.",
            )


# --- the table of chunks ---


@dataclass(frozen=True, slots=True)
class Extents:
    """For each of several chunks its recording, where it begins and ends there, and whether it is the last one."""

    recordings: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    last: NDArray[np.bool_]


class ChunkTable:
    """All chunks of recordings of these lengths: each has `steps` steps, and one begins every `stride` steps.

    `steps` and `stride` are arrays, of one number for all recordings or of one for each.
    """

    def __init__(self, lengths: NDArray[np.int64], steps: NDArray[np.int64], stride: NDArray[np.int64]) -> None:
        self._lengths = lengths
        self._steps = np.broadcast_to(steps, lengths.shape)
        self._stride = np.broadcast_to(stride, lengths.shape)
        # One chunk, and one more for each stride begun beyond its end: the last chunk reaches the recording's end.
        counts = 1 + -(-np.maximum(lengths - self._steps, 0) // self._stride)
        #: The first chunk of each recording, and the number of all chunks as the last entry.
        self.firsts: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def recordings_of(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each chunk, the number of the recording that it was cut from. Numbers are not checked."""
        return np.searchsorted(self.firsts, chunks, side="right") - 1

    def extents(self, chunks: NDArray[np.int64]) -> Extents:
        """Return each chunk's recording, its first step and the one behind its last, and whether it is the last one."""
        recordings = self.recordings_of(chunks)
        starts = (chunks - self.firsts[recordings]) * self._stride[recordings]
        return Extents(
            recordings,
            starts,
            np.minimum(starts + self._steps[recordings], self._lengths[recordings]),
            chunks + 1 == self.firsts[recordings + 1],
        )

    def segments(self, own: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        """Return where segments of chunks begin, followed by the number of chunks: none cuts a recording in two.

        They are the recordings' own segments, `own`, divided further at recordings so that each has about `most`
        chunks.
        """
        # For each multiple of `most`, the first recording that begins there or later. A recording that were cut in two
        # could not be read in one go, nor stay in one window.
        return np.union1d(self.firsts[own], self.firsts[np.searchsorted(self.firsts, np.arange(0, len(self), most))])

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return for each chunk from `start` to before `stop` whether it is the first of its recording."""
        chunks = np.arange(start, stop)
        begins: NDArray[np.bool_] = self.firsts[self.recordings_of(chunks)] == chunks
        return begins
