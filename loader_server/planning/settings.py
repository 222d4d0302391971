"""The settings of a stream's table about batching, and the same as integers.

Rules: pure; `PlanSettings` is what the job file has, units included; `Limits` is what the planner works with, integers
only, so that nothing after this module rounds. An amount in seconds needs a key that has a time; any other unit means
steps of the key. Must not know tables, samples or epochs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping  # noqa: TC003 - dataclasses look at it
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from shared.errors import SettingsError
from shared.settings.parsers import Amount, BadValue, amount, choice, flag, setting, whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "MOST_SHAPES",
    "NO_KEY",
    "ROWS_INSTEAD",
    "UNLIMITED",
    "Limits",
    "PlanSettings",
    "Shapes",
    "length_amount",
    "limits_by_epoch",
    "limits_of",
]

#: The bucketed key of a stream without `length`: each sample has one step of it, so that all are in one bucket.
NO_KEY = ""
#: What to write if a budget is not what is meant.
ROWS_INSTEAD = "For batches of 32 samples each, write rows = 32 instead of a budget."
#: The budget of batches with a fixed number of rows: more than any batch uses.
UNLIMITED = 2**62

#: Most shapes that `shapes = "auto"` tries: each one costs a compilation.
MOST_SHAPES = 32

Shapes = Literal["auto", "none"] | int | tuple[Amount, ...]
#: Amounts by the epoch from which they hold, ascending; the first epoch is 0.
Stages = tuple[tuple[int, Amount], ...]

#: Parser of a length or an amount of any key.
length_amount = amount("s", "frames", "samples", "tokens", "characters", "bytes", "steps")


def _shapes(value: object) -> Shapes:
    """Return `shapes` as parsed.

    Raise SettingsError unless it is "auto", "none", a whole number from 1 to 256, or a list that is not empty and has
    no true or false, and BadValue if an entry of the list is no length.
    """
    # A bool is an int in Python, and `shapes = true` a mistake.
    if value in ("auto", "none"):
        return "auto" if value == "auto" else "none"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 256:
        return value
    if isinstance(value, list) and value and not any(isinstance(length, bool) for length in value):
        return tuple(map(_boundary, value))
    raise SettingsError(
        expected='"auto", "none", a number of shapes from 1 to 256, or a list of lengths',
        got=repr(value),
        where="shapes",
        remedy='Write shapes = "auto", shapes = 16, or shapes = ["5 s", "10 s", "20 s"].',
    )


def _boundary(length: object) -> Amount:
    """Return a bucket's length; an integer without a unit is in steps of its key.

    Raise BadValue if it is neither an integer nor a length with a unit, or not above 0.
    """
    boundary: Amount = Amount(float(length), "steps") if isinstance(length, int) else length_amount(length)
    if boundary.value <= 0:
        raise BadValue("a list of lengths above 0")
    return boundary


def _least_length(value: object) -> Amount:
    """Return a length, which may also be written as 0 without a unit; raise BadValue for anything else."""
    # By type, as False is 0 to Python.
    least: Amount = Amount(0.0, "steps") if type(value) is int and value == 0 else length_amount(value)
    return least


def _max_length(value: object) -> Amount | Stages:
    """Return a length, or a curriculum's lengths by epoch, ascending.

    Raise SettingsError if a curriculum has no epoch 0 or a key that is no epoch's number, and BadValue for an invalid
    length.
    """
    if not isinstance(value, dict):
        limit: Amount = length_amount(value)
        return limit
    epochs = [str(key) for key in value]
    if "0" not in epochs or not all(map(_is_epoch, epochs)):
        raise SettingsError(
            expected="a length, or a table of epochs and lengths that begins with epoch 0",
            got=f"a table of {', '.join(epochs) or 'nothing'}",
            where="max_length",
            remedy='Write max_length = { 0 = "4 s", 2 = "8 s", 5 = "16 s" }: up to 8 s from epoch 2 on, for example.',
        )
    return tuple(sorted((int(epoch), length_amount(limit)) for epoch, limit in value.items()))


def _is_epoch(key: str) -> bool:
    # `int` also takes " 1", "1_0" and digits of other scripts; "01" would be a second name of epoch 1.
    return key.isascii() and key.isdecimal() and len(key) < 10 and key == str(int(key))


def _limits(value: object) -> Mapping[str, Amount]:
    """Return amounts by key; raise SettingsError if the value is no table, and BadValue if one is no amount."""
    if isinstance(value, dict):
        return {str(key): length_amount(most) for key, most in value.items()}
    raise SettingsError(
        expected="a table of keys and amounts",
        got=repr(value),
        where="limits",
        remedy='Write limits = { text = "4000 characters" }.',
    )


def _sub_buckets(value: object) -> Mapping[str, int]:
    """Return the second key and its number of sub-buckets.

    Raise SettingsError unless the value is a table of exactly one key, with a number from 2 to 16.
    """
    if isinstance(value, dict) and len(value) == 1:
        ((key, subs),) = value.items()
        if isinstance(subs, int) and 2 <= subs <= 16:
            return {str(key): subs}
    raise SettingsError(
        expected="a table of one key and a number from 2 to 16",
        got=repr(value),
        where="sub_buckets",
        remedy="Write sub_buckets = { text = 3 }.",
    )


def _weights(value: object) -> tuple[float, ...]:
    """Return one weight a source; raise SettingsError unless the value is a list, all of numbers above 0."""
    # By type and not isinstance, as a bool is an int in Python, and `weights = [true]` a mistake.
    if isinstance(value, list) and all(type(weight) in {int, float} and weight > 0 for weight in value):
        return tuple(map(float, value))
    raise SettingsError(
        expected="a list of numbers above 0", got=repr(value), where="weights", remedy="Write weights = [3, 1]."
    )


def _flags(value: object) -> tuple[bool, ...]:
    """Return one flag a source; raise SettingsError unless the value is a list, all of true or false."""
    if isinstance(value, list) and all(isinstance(cycles, bool) for cycles in value):
        return tuple(value)
    raise SettingsError(
        expected="a list of true or false", got=repr(value), where="cycle", remedy="Write cycle = [false, true]."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Settings that determine how a stream's samples become batches."""

    budget: Amount | None = setting(
        length_amount,
        'the most that a batch may hold of the bucketed key, padding included, such as "300 s" or "4096 tokens"; '
        "instead of it, `rows = 32` makes batches of 32 samples",
        default=None,
    )
    rows: int = setting(
        whole(1, 2**20),
        "instead of a budget, the rows of each batch, whatever its shape: 32 makes batches of 32 samples, in the last "
        "of which rows may be masked",
        default=0,
    )
    shapes: Shapes = setting(
        _shapes,
        'how many padded shapes: "auto", a number, a list of lengths, or "none" to batch in plain order',
        default="auto",
    )
    order: str = setting(
        choice("shuffled", "sorted", "laplace", "as_is"), "the order of samples and batches", default="shuffled"
    )
    pad_to: str = setting(
        choice("bucket", "batch"),
        "pad to the bucket's length (few shapes), or to the longest sample of a batch (or group)",
        default="bucket",
    )
    window: int = setting(whole(1), "samples that are shuffled and bucketed together", default=262_144)
    max_rows: int = setting(whole(0), "the most rows of a batch; 0: as many as the budget allows", default=0)
    min_length: Amount | None = setting(
        _least_length,
        "shorter samples are dropped, and counted; without it those of length 0 are, and with 0 none is",
        default=None,
    )
    max_length: Amount | Stages | None = setting(
        _max_length,
        'longer samples are dropped, and counted; or a curriculum: { 0 = "4 s", 2 = "8 s" } from epochs 0 and 2 on',
        default=None,
    )
    objective: str = setting(
        choice("steps", "area"), "what automatic shapes make least: batches, or padded cells", default="steps"
    )
    length_multiple: int = setting(whole(1, 2**20), "padded lengths are multiples of this", default=1)
    rows_multiple: int = setting(whole(1, 4096), "rows are multiples of this where the budget allows", default=1)
    quadratic_length: Amount | None = setting(
        length_amount, "a sample of length l counts l + l*l/this against the budget, for attention", default=None
    )
    limits: Mapping[str, Amount] | None = setting(
        _limits, "the most that a batch may hold of other keys, padding included", default=None
    )
    weights: tuple[float, ...] = setting(
        _weights, "how many samples of each source for how many of the others", default=()
    )
    cycle: tuple[bool, ...] = setting(
        _flags, "for each source: true to start it over when it runs out, false to end the epoch", default=()
    )
    sub_buckets: Mapping[str, int] | None = setting(
        _sub_buckets, "a second key, and into how many buckets by its length each bucket is divided", default=None
    )
    curriculum_epochs: int = setting(whole(0), "the first epochs, in which samples come sorted by length", default=0)
    epoch_parts: int = setting(
        whole(1, 100_000),
        "an epoch is one of this many parts of the data: 4 makes quarters; not for evaluation",
        default=1,
    )
    largest_first: bool = setting(flag, "the largest shape comes first, as an early test of memory", default=False)
    packing: Amount | None = setting(
        length_amount,
        'several samples share rows of this length, such as "60 s", told apart by segment ids',
        default=None,
    )
    carry: bool = setting(
        flag,
        "the chunks of a recording come in consecutive batches in the same row, with `reset` where one begins",
        default=False,
    )
    laplace_samples: int = setting(
        whole(1), 'with order = "laplace": samples in one run of rising or falling length', default=1000
    )

    @property
    def max_lengths(self) -> tuple[tuple[int, Amount | None], ...]:
        """Longest sample allowed, by the epoch from which it holds; None if there is no limit."""
        return self.max_length if isinstance(self.max_length, tuple) else ((0, self.max_length),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings' amounts in steps of the keys that they limit."""

    #: The bucketed key.
    key: str
    #: The most that a batch may use: steps of the bucketed key, padding included, plus the quadratic term; UNLIMITED
    #: if all batches have equally many rows, which are `max_rows` and `rows_multiple` then.
    budget: int
    #: 0 if there is no limit but the budget.
    max_rows: int
    rows_multiple: int
    length_multiple: int
    #: 0 if there is no quadratic term.
    quadratic: int
    min_length: int
    #: None if there is no limit.
    max_length: int | None
    #: Padded lengths that the settings name; empty if the planner chooses them.
    boundaries: tuple[int, ...]
    #: Most steps of other keys in a batch.
    budgets: Mapping[str, int]
    #: The key by which buckets are divided into sub-buckets, and into how many; None and 1 if they are not.
    sub_key: str | None
    subs: int
    #: Whether samples of length 0 take part. They count as one step, so that each has a cell.
    keeps_empty: bool = False

    @property
    def deciding(self) -> tuple[str, ...]:
        """Keys whose lengths decide whether a sample takes part, and in which bucket."""
        subs = () if self.sub_key is None else (self.sub_key,)
        return tuple(dict.fromkeys((self.key, *self.budgets, *subs)))

    @property
    def longest(self) -> int | None:
        """Longest sample that takes part: with `max_length` set, at most the last bucket; None if there is no limit."""
        if self.max_length is None or not self.boundaries:
            return self.max_length
        return min(self.max_length, self.boundaries[-1])

    def counted(self, key: str, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a key's lengths as they count for bucket and budget: 0 as 1 if such samples of the key take part."""
        # Samples that a filter drops have lengths below 0, and keep them.
        return np.where(lengths == 0, 1, lengths) if self.keeps_empty and key == self.key else lengths

    def padded(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths rounded up to `length_multiple`."""
        return -(-lengths // self.length_multiple) * self.length_multiple

    def used(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how much of the budget one row of each padded length uses; it may exceed the budget."""
        # l + l*l/q, rounded up: -(-a // b) is a / b rounded up.
        return lengths - (-lengths * lengths // self.quadratic) if self.quadratic else lengths

    @property
    def longest_within(self) -> int:
        """Longest sample of which one padded row is within the budget: a multiple of `length_multiple`, perhaps 0."""
        # The positive root of l + l*l/q = budget, with an integer square root, so that no machine rounds otherwise.
        square = self.quadratic * self.quadratic + 4 * self.quadratic * self.budget
        longest = (math.isqrt(square) - self.quadratic) // 2 if self.quadratic else self.budget
        return longest // self.length_multiple * self.length_multiple

    def rows(self, lengths: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return how many rows of these padded lengths fit into a batch, at least one.

        Budget, quadratic term, budgets of other keys and `max_rows` count. It is a multiple of `rows_multiple` if that
        many fit. A key without lengths here is not limited.
        """
        # budget // (l + l*l/q) with numerator and denominator times q, so that everything stays an integer.
        own = np.maximum(lengths[self.key], 1)
        rows = (
            self.budget * self.quadratic // (own * self.quadratic + own * own) if self.quadratic else self.budget // own
        )
        for key, budget in self.budgets.items():
            if key in lengths:
                rows = np.minimum(rows, budget // np.maximum(lengths[key], 1))
        if self.max_rows:
            rows = np.minimum(rows, self.max_rows)
        multiple = np.where(rows >= self.rows_multiple, rows // self.rows_multiple * self.rows_multiple, rows)
        return np.maximum(multiple, 1).astype(np.int64)


def limits_of(settings: PlanSettings, *, key: str, per_second: Mapping[str, float | None]) -> Limits:
    """Return the settings' amounts as integers.

    With a curriculum, return the widest limits: a sample counts if it takes part in any epoch. Raise SettingsError if
    the budget is below one step, a key is not padded, `limits` or `sub_buckets` names the bucketed key, settings
    exclude each other, or an amount is in seconds of a key without time. `batch_size` has checked budget and rows.
    """

    def steps(name: str, limit: Amount | None, of: str = key, *, up: bool = False) -> int:
        if limit is None:
            return 0
        # The margin of 1e-6 absorbs float errors: 0.29 s at 100 steps a second come out as 28.999999999999996.
        exact = limit.value * _steps_a_unit(name, limit, of, per_second)
        return math.ceil(exact - 1e-6) if up else math.floor(exact + 1e-6)

    _check_keys(settings, key, per_second)
    _check_together(settings)
    budget = UNLIMITED if settings.rows else steps("budget", settings.budget)
    if budget < 1:
        raise SettingsError(
            expected=f'at least one step of "{key}"',
            got=str(settings.budget),
            where="budget",
            remedy=f"Raise the budget. {ROWS_INSTEAD}",
        )
    named = settings.shapes if isinstance(settings.shapes, tuple) else ()
    if settings.packing is not None:
        named = (settings.packing,)
    # Rounded up twice, to steps and to the multiple, so that a sample of just the length that was written still fits.
    multiple = settings.length_multiple
    boundaries = {-(-steps("shapes", length, up=True) // multiple) * multiple for length in named}
    return Limits(
        key=key,
        budget=budget,
        max_rows=settings.rows or settings.max_rows,
        rows_multiple=settings.rows or settings.rows_multiple,
        length_multiple=settings.length_multiple,
        quadratic=steps("quadratic_length", settings.quadratic_length),
        min_length=steps("min_length", settings.min_length, up=True),
        max_length=max(
            (steps("max_length", limit) for _, limit in settings.max_lengths if limit is not None), default=None
        ),
        boundaries=tuple(sorted(boundaries)),
        sub_key=next(iter(settings.sub_buckets or {}), None),
        subs=next(iter((settings.sub_buckets or {}).values()), 1),
        keeps_empty=settings.min_length is not None and settings.min_length.value == 0,
        budgets={other: steps(f"limits.{other}", most, other) for other, most in (settings.limits or {}).items()},
    )


def limits_by_epoch(
    settings: PlanSettings, *, key: str, per_second: Mapping[str, float | None]
) -> tuple[tuple[int, Limits], ...]:
    """Return the limits by the epoch from which they hold; there is more than one only with a curriculum.

    Raise SettingsError as `limits_of` does.
    """
    return tuple(
        (epoch, limits_of(dataclasses.replace(settings, max_length=limit), key=key, per_second=per_second))
        for epoch, limit in settings.max_lengths
    )


def _check_keys(settings: PlanSettings, key: str, per_second: Mapping[str, float | None]) -> None:
    """Raise SettingsError if the bucketed key, or one that `limits` or `sub_buckets` names, is not padded.

    Raise it also if `limits` or `sub_buckets` names the bucketed key.
    """
    if key not in per_second:
        raise _unknown_key("length", key, per_second)
    for name, others in (("limits", settings.limits), ("sub_buckets", settings.sub_buckets)):
        for other in others or {}:
            if other not in per_second or other == key:
                raise _unknown_key(f"{name}.{other}", other, per_second)


def _check_together(settings: PlanSettings) -> None:
    """Raise SettingsError if settings exclude each other.

    Packed rows have one shape and are padded to it, neither they nor plain order have buckets to divide, and carried
    state excludes what `_not_for_carry` names.
    """
    if settings.packing is not None and (settings.shapes != "auto" or settings.pad_to != "bucket"):
        raise _not_together("packing", f'shapes = {settings.shapes!r}, pad_to = "{settings.pad_to}"')
    if settings.carry and (others := _not_for_carry(settings)):
        raise _not_together("carry", " and ".join(others))
    if settings.sub_buckets and (settings.shapes == "none" or settings.packing is not None):
        raise _not_together("sub_buckets", 'shapes = "none" or packing')


def _not_for_carry(settings: PlanSettings) -> list[str]:
    """Return the settings that exclude `carry`, as written, or [].

    With them rows would change between batches, or epochs begin in mid-recording.
    """
    excluded = {
        "packing": settings.packing is not None,
        "sub_buckets": bool(settings.sub_buckets),
        f"shapes = {settings.shapes!r}": not _is_single(settings.shapes),
        f'pad_to = "{settings.pad_to}"': settings.pad_to != "bucket",
        f"epoch_parts = {settings.epoch_parts}": settings.epoch_parts > 1,
        f'order = "{settings.order}"': settings.order == "laplace",
    }
    return [written for written, is_set in excluded.items() if is_set]


def _is_single(shapes: Shapes) -> bool:
    """Return whether all batches have one shape; with `carry` that is what "auto" means."""
    return len(shapes) == 1 if isinstance(shapes, tuple) else shapes in ("auto", 1)


def _not_together(name: str, other: str) -> SettingsError:
    return SettingsError(
        expected=f"{name} alone", got=f"{name} with {other}", where=name, remedy="Leave one of them out."
    )


def _steps_a_unit(name: str, limit: Amount, key: str, per_second: Mapping[str, float | None]) -> float:
    """Return how many steps one unit of an amount is: 1 unless the unit is seconds.

    Raise SettingsError for seconds of a key without time.
    """
    if limit.unit != "s":
        return 1.0
    steps = per_second[key]
    if steps is None:
        raise SettingsError(
            expected=f'an amount in steps of "{key}", such as "{limit.value:g} tokens"',
            got=f'"{limit}"',
            where=name,
            remedy=f'The key "{key}" has no time: write {name} = "<number> tokens", or frames, characters, bytes.'
            + (f" {ROWS_INSTEAD}" if name == "budget" else ""),
        )
    return steps


def _unknown_key(name: str, key: str, per_second: Mapping[str, float | None]) -> SettingsError:
    known = ", ".join(f'"{other}"' for other in per_second)
    return SettingsError(
        expected=f"a padded key of this stream ({known})", got=f'"{key}"', where=name, remedy="Name one of these."
    )
