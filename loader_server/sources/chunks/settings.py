"""How a stream's recordings are to be cut: from the settings in the job file to steps.

Rules: pure; seconds become steps by each recording's own rate; settings that cannot be met are refused, with what to
write instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.planning.settings import length_amount
from loader_server.sources.chunks.cutting import ChunkTable
from shared.errors import SettingsError
from shared.settings.parsers import Amount, setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.planning import PlanSettings
    from shared.settings.job import StreamSettings
    from shared.wire.batch_layout import Field

    Lengths = Mapping[str, NDArray[np.int64]]

__all__ = ["ChunkRule", "ChunkSettings", "rate_keys"]


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
    step: Amount
    where: str

    @staticmethod
    def read(settings: ChunkSettings, stream: StreamSettings, plan: PlanSettings, where: str) -> ChunkRule | None:
        """Return the rule that the settings ask for, or None if nothing is to be cut.

        Raise a SettingsError for `chunk_step` or `carry` without `chunk`, for `carry` with another `chunk_step` or
        without lockstep, and for chunks that `max_length` would drop.
        """
        length, step = settings.chunk, settings.chunk_step
        if length is None:
            if step is not None or plan.carry:
                raise _chunk_missing("carry = true" if step is None else f'chunk_step = "{step}"', where)
            return None
        if plan.carry and step not in (None, length):
            raise _overlap_carried(step, where)
        if plan.carry and stream.mode != "lockstep":
            raise _leased_carried(where)
        # Only amounts in the same unit can be compared before the rates of recordings are known.
        for _, longest in plan.max_lengths:
            if longest is not None and longest.unit == length.unit and longest.value < length.value:
                raise _all_dropped(length, longest, where)
        return ChunkRule(key=stream.length, length=length, step=step or length, where=where)

    @property
    def said(self) -> str:
        """The rule as text, which differs between streams that cut in different ways."""
        return f"chunks of {self.length} of {self.key}, each {self.step}"

    def table(self, lengths: Lengths, fields: tuple[Field, ...], where: str) -> ChunkTable:
        """Return the chunks of recordings of these lengths, from a source whose raw samples have these fields.

        Raise a SettingsError if the samples lack the key, if a chunk has less than one step, or if chunks leave gaps.
        """
        if self.key not in lengths:
            raise self._cannot_cut(lengths, where)
        steps, stride = (self._steps(name, amount, lengths, fields) for name, amount in self._amounts())
        if np.any(stride > steps):
            raise SettingsError(
                expected=f'at most chunk = "{self.length}", or what lies between two chunks would be in none',
                got=f'"{self.step}"',
                where=f"{self.where}, chunk_step",
                remedy="Write a smaller chunk_step, or leave it out: then one chunk begins where the last one ends.",
            )
        return ChunkTable(lengths[self.key], steps, stride)

    def alike(self, lengths: Lengths) -> tuple[str, ...]:
        """Return the keys that are cut along with `key`: those that are equally long in every recording."""
        own, rates = lengths[self.key], rate_keys(lengths)
        return tuple(key for key, of in lengths.items() if key not in rates and np.array_equal(own, of))

    def refuse_measured(self, names: Sequence[str]) -> SettingsError:
        """Return the error for transforms whose lengths would be measured, because these are of whole recordings."""
        return SettingsError(
            expected="transforms that declare their outputs, because chunk cuts their input",
            got=f"{', '.join(names)}, measured while indexing",
            where=f"{self.where}, transforms",
            remedy="Declare outputs and lengths with @transform(…), or leave chunk out.",
        )

    def _amounts(self) -> tuple[tuple[str, Amount], ...]:
        return ("chunk", self.length), ("chunk_step", self.step)

    def _steps(self, name: str, amount: Amount, lengths: Lengths, fields: tuple[Field, ...]) -> NDArray[np.int64]:
        """Return an amount in steps, rounded half up; raise a SettingsError if that is less than one step."""
        exact = np.asarray(amount.value * self._a_unit(name, amount, lengths, fields))
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

    def _a_unit(
        self, name: str, amount: Amount, lengths: Lengths, fields: tuple[Field, ...]
    ) -> NDArray[np.int64] | float:
        """Return how many steps a unit has, for each recording or for all.

        Raise a SettingsError for an amount in seconds if the key has no rate.
        """
        if amount.unit != "s":
            return 1.0
        if (rates := lengths.get(f"{self.key}_rate")) is not None:
            return rates
        per_second = next((one.per_second for one in fields if one.key == self.key), None)
        if per_second is not None:
            return per_second
        raise SettingsError(
            expected=f'an amount in steps of "{self.key}", such as "{amount.value:g} steps"',
            got=f'"{amount}"',
            where=f"{self.where}, {name}",
            remedy=f'"{self.key}" has no time in the source: write steps, frames, tokens, characters or bytes.',
        )

    def _cannot_cut(self, lengths: Lengths, where: str) -> SettingsError:
        """Return the error for a source whose samples lack the key."""
        having = ", ".join(f'"{key}"' for key in lengths) or "none"
        return SettingsError(
            expected=f'a source whose samples have "{self.key}" (length): they are cut along it, before the transforms',
            got=f"one with {having} ({where})",
            where=f"{self.where}, chunk",
            remedy="Let the transforms keep the name of what the source has, and write that as length.",
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


def _overlap_carried(step: Amount | None, where: str) -> SettingsError:
    """Return the error for carried state with chunks that overlap or leave gaps."""
    return SettingsError(
        expected="chunks that begin where the last one ends, as state is carried from one to the next (carry)",
        got=f'chunk_step = "{step}"',
        where=f"{where}, chunk_step",
        remedy="Leave chunk_step out, or carry.",
    )


def _leased_carried(where: str) -> SettingsError:
    """Return the error for carried state with leased batches."""
    return SettingsError(
        expected='mode = "lockstep", as a trainer has to get each row\'s next chunk (carry)',
        got='mode = "queue", where any trainer may get it',
        where=f"{where}, mode",
        remedy="Leave mode out, or carry.",
    )


def _all_dropped(length: Amount, longest: Amount, where: str) -> SettingsError:
    """Return the error for a chunk longer than `max_length`."""
    return SettingsError(
        expected=f'a chunk of at most max_length = "{longest}", or it would be dropped',
        got=f'chunk = "{length}"',
        where=f"{where}, chunk",
        remedy="Leave max_length out, as no sample is longer than a chunk; or write a shorter chunk.",
    )
