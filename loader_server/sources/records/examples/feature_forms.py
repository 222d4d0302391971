"""Forms of features, that is the dtype and shape of a raw sample's value, from settings or from records. Pure.

A form is written `"int64"`, one number; `"float32 [any]"`, a list of any length; `"float32 [any, 80]"`, rows of 80;
`"text"` and `"bytes"`, for transforms, also as lists, `"text [any]"`. Rules: integers have to fit the dtype, nothing
wraps around; integers are never read as floats. If the form is numeric and the record holds bytes, these are the bytes
of an array as numpy's `tobytes()` writes them, little-endian. A missing list is empty; any other missing feature makes
the record a bad one, as in TensorFlow.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.records.examples.wire_format import (
    BYTES,
    FLOAT,
    INT64,
    NO_FEATURE,
    Feature,
    Features,
    Run,
    count_int64,
    int64_of,
)
from shared.errors import SettingsError
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


__all__ = ["FeatureForm", "UnfitFeature", "feature_forms", "forms_of_examples", "parsed_forms"]

_NO_NUMBERS = ("text", "bytes")
#: A dtype, and axes in brackets, of which only the first may be `any`.
_FORM = re.compile(r"(\w+)(?: ?\[((?:any|[1-9]\d*)(?:, ?[1-9]\d*)*)\])?")
_KIND_NAMES = {BYTES: "bytes", FLOAT: "floats", INT64: "integers", 0: "nothing"}
#: The kind in which a record stores numbers of a dtype. A feature of the other kind is refused, never converted.
_STORED_AS = {dtype: FLOAT if dtype.startswith("float") else INT64 for dtype in DTYPES}
#: The dtype that a feature of this kind gets if the job file does not name one.
_USUAL = {BYTES: "bytes", FLOAT: "float32", INT64: "int64"}


class UnfitFeature(ValueError):
    """Feature that does not fit its form: a reason in one word, the expected form, and what the record has."""

    def __init__(self, reason: str, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.reason, self.expected, self.got = reason, expected, got


@dataclass(frozen=True, slots=True)
class FeatureForm:
    """Form of the feature with this key.

    `dtype` may also be "text" or "bytes"; None in `shape` stands for any size.
    """

    key: str
    dtype: str
    shape: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        axes = ", ".join("any" if axis is None else str(axis) for axis in self.shape)
        return f"{self.dtype} [{axes}]" if axes else self.dtype

    @property
    def field(self) -> Field | None:
        """Return the feature's field in a batch, or None for text and bytes, which only transforms use."""
        return None if self._is_of_texts else Field(key=self.key, dtype=self.dtype, shape=self.shape)

    @property
    def has_length(self) -> bool:
        """Return whether the index keeps a length: for texts and lists, not for a single number or bytes value."""
        return self.dtype == "text" or bool(self.shape)

    @property
    def step(self) -> int:
        """Return the number of values in each entry of the first axis: the product of the other axes, 1 without any."""
        return math.prod(axis or 1 for axis in self.shape[1:])

    def value(self, raw: bytes, feature: Feature | list[Feature] | None) -> Any:
        """Return the feature's value in a raw sample; raise UnfitFeature if it does not fit the form.

        `feature` is the parsed feature, a list of features for a feature list, or None if the record lacks it; then, or
        if it has no values at all, a list of any length is empty, and any other form is unfit. Raise MalformedExample
        if an integer has more than 10 bytes, and numpy's ValueError if a step is an empty list of floats.
        """
        if isinstance(feature, list):
            return self._value_of_steps([self._flat(raw, *step) for step in feature])
        return self.value_in_runs(raw, *feature) if feature is not None and feature[1] else self._missing()

    def _value_of_steps(self, steps: list[Any]) -> Any:
        """Return the value of a feature list; raise UnfitFeature if a step has not as many values as the form.

        Raise it too if the form has another number of steps, or is a single value and there is not exactly one.
        """
        sizes = {len(step) for step in steps}
        if sizes - {self.step}:
            raise self._other_shape(f"steps of {', '.join(map(str, sorted(sizes)[:4]))} values")
        if self._is_of_texts:
            return self._shaped([value for step in steps for value in step])
        # The empty array is there for a list without steps, of which numpy would not know the dtype.
        return self._shaped(np.concatenate([np.zeros(0, self.dtype), *steps]))

    def value_in_runs(self, raw: mmap.mmap | bytes, kind: int, runs: Sequence[Run]) -> Any:
        """Return the feature's value from the byte ranges that hold it; raise UnfitFeature if it does not fit.

        Raise MalformedExample if an integer has more than 10 bytes, and another ValueError or an IndexError if `raw`
        ends before a run does.
        """
        return self._shaped(self._flat(raw, kind, runs))

    @property
    def _is_of_texts(self) -> bool:
        return self.dtype in _NO_NUMBERS

    def _missing(self) -> Any:
        """Return an empty value for a missing list of any length; raise UnfitFeature for any other form."""
        if not self.shape or self.shape[0] is not None:
            raise UnfitFeature("missing_feature", f'a value of "{self.key}"', "none")
        return [] if self._is_of_texts else np.zeros((0, *self._step_shape), self.dtype)

    def _flat(self, raw: mmap.mmap | bytes, kind: int, runs: Sequence[Run]) -> Any:
        """Return all values without their shape; raise UnfitFeature if their kind is not that of the form.

        Raise it too for a value that does not fit the dtype, such as a text that is not UTF-8 or an integer out of
        range; raise MalformedExample if an integer has more than 10 bytes, and another ValueError or an IndexError if
        `raw` ends before a run does.
        """
        if kind == BYTES:
            return self._of_bytes([raw[start:stop] for start, stop in runs])
        if kind != _STORED_AS.get(self.dtype):
            raise UnfitFeature("other_kind", f'"{self.key}" as {self}', _KIND_NAMES[kind])
        if kind == FLOAT:
            parts = [np.frombuffer(raw, "<f4", (stop - start) // 4, start) for start, stop in runs]
            # As for integers below, the empty array is there for a step without runs.
            whole = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, "<f4"), *parts])
            return whole.astype(self.dtype)
        return self._narrowed(_integers(raw, runs))

    def _of_bytes(self, values: list[bytes]) -> Any:
        """Return byte values as they are, as texts, or as the numbers of one array, by the form's dtype.

        Raise UnfitFeature if a text is not UTF-8, or if there is not exactly one array of whole numbers.
        """
        if self.dtype == "bytes":
            return values
        if self.dtype == "text":
            return [self._text(value) for value in values]
        if len(values) != 1 or len(values[0]) % np.dtype(self.dtype).itemsize:
            raise self._other_shape(f"{len(values)} values" if len(values) != 1 else f"{len(values[0])} bytes")
        return np.frombuffer(values[0], np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype)

    def _text(self, value: bytes) -> str:
        """Decode UTF-8; raise UnfitFeature for other bytes."""
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise UnfitFeature(
                "not_utf8",
                f'"{self.key}" in UTF-8',
                f"the byte 0x{value[error.start]:02x} after {error.start} others",
            ) from None

    def _narrowed(self, wide: NDArray[np.int64]) -> NDArray[Any]:
        """Cast integers to the form's dtype; raise UnfitFeature if the least or the greatest is out of range."""
        if self.dtype == "int64" or not len(wide):
            return wide.astype(self.dtype, copy=False)
        # Checked before the cast, because `astype` wraps around silently.
        least, most = (0, 1) if self.dtype == "bool" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
        for value in (int(wide.min()), int(wide.max())):
            if not least <= value <= most:
                raise UnfitFeature("out_of_range", f'"{self.key}" from {least} to {most} ({self.dtype})', str(value))
        return wide.astype(self.dtype)

    def _shaped(self, flat: Any) -> Any:
        """Give flat values the form's shape, or return the only one; raise UnfitFeature if the count is wrong."""
        if not self.shape:
            if len(flat) != 1:
                raise self._other_shape(f"{len(flat)} values")
            return flat[0]
        first, rest = divmod(len(flat), self.step)
        if rest or self.shape[0] not in (None, first):
            raise self._other_shape(f"{len(flat)} values")
        return flat if len(self.shape) == 1 else flat.reshape(first, *self._step_shape)

    @property
    def _step_shape(self) -> tuple[int, ...]:
        """Return the sizes of all axes but the first, of which none is open; () if there is at most one axis."""
        return tuple(axis or 0 for axis in self.shape[1:])

    def _other_shape(self, got: str) -> UnfitFeature:
        return UnfitFeature("other_shape", f'"{self.key}" as {self}', got)


def _integers(raw: mmap.mmap | bytes, runs: Sequence[Run]) -> NDArray[np.int64]:
    """Return the integers in these runs as one array; raise MalformedExample if one has more than 10 bytes.

    IndexError and other ValueErrors of `int64_of` and numpy pass through if the bytes end before a run does.
    """
    parts = [int64_of(raw, start, stop) for start, stop in runs]
    # An empty step of a feature list has no runs; the empty array gives it a dtype.
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


# --- where forms come from ---


def feature_forms(value: object) -> tuple[tuple[str, str], ...]:
    """Check the setting `features`, a table of keys and forms, and return it as sorted pairs.

    Raise a SettingsError if it is not a table or empty, or if a form cannot be read.
    """
    if not isinstance(value, dict) or not value:
        raise _unread(value, "features")
    return tuple((key, str(_parsed(key, form))) for key, form in sorted(value.items()))


def _parsed(key: str, text: object) -> FeatureForm:
    """Parse one form; raise a SettingsError if it cannot be read, or gives texts or bytes more than one axis."""
    parts = _FORM.fullmatch(str(text))
    if parts is None or parts[1] not in (*DTYPES, *_NO_NUMBERS):
        raise _unread(text, f'features, "{key}"')
    axes = tuple(None if axis.strip() == "any" else int(axis) for axis in (parts[2] or "").split(",") if axis)
    if parts[1] in _NO_NUMBERS and len(axes) > 1:
        raise _unread(text, f'features, "{key}"')
    return FeatureForm(key, parts[1], axes)


def _unread(value: object, where: str) -> SettingsError:
    return SettingsError(
        expected='a dtype, and axes where there are some, such as "int64", "float32 [any, 80]" or "text"',
        got=repr(value),
        where=where,
        remedy='Write for instance features = { audio = "float32 [any]", label = "int32", words = "text" }; dtypes are '
        f"{', '.join(sorted(DTYPES))}, text and bytes.",
    )


def parsed_forms(pairs: Iterable[tuple[str, str]]) -> tuple[FeatureForm, ...]:
    """Return the forms written in pairs that `feature_forms` has checked; raise a SettingsError for any other form."""
    return tuple(_parsed(key, text) for key, text in pairs)


def forms_of_examples(examples: Sequence[tuple[bytes, Features]]) -> tuple[FeatureForm, ...]:
    """Return the forms of the features in these records, sorted by key; () if they have no features.

    A feature with exactly one value in every record becomes a single number (or bytes), any other a list.
    """
    keys = sorted({key for _, features in examples for key in features})
    return tuple(_form_of(key, [(raw, features.get(key, NO_FEATURE)) for raw, features in examples]) for key in keys)


def _form_of(key: str, sightings: Sequence[tuple[bytes, Feature | list[Feature]]]) -> FeatureForm:
    """Derive a form from all sightings of one key.

    The dtype is that of the first list seen, even an empty one: bytes, float32 or int64, and bytes without any. A
    feature list becomes rows of a fixed width if all steps in all records have equally many values, unless that is one;
    otherwise it becomes a flat list.
    """
    features = [(raw, feature) for raw, seen in sightings for feature in (seen if isinstance(seen, list) else [seen])]
    # Kind 0 has no list at all: a feature that is empty wherever it is seen may be anything, so bytes.
    kind = next((kind for _, (kind, _) in features if kind), BYTES)
    counts = {_count(raw, *feature) for raw, feature in features}
    has_steps = any(isinstance(seen, list) for _, seen in sightings)
    return FeatureForm(key, _USUAL[kind], _shape_of(counts, has_steps=has_steps))


def _shape_of(counts: set[int], *, has_steps: bool) -> tuple[int | None, ...]:
    """Return the shape of a feature, or of a feature list, with these counts of values in a record, or in a step.

    A feature is a single value if every record has one; a feature list has rows if every step has the same number of
    values, other than one. Anything else is a flat list.
    """
    if has_steps:
        return (None, *counts) if len(counts) == 1 and counts != {1} else (None,)
    return () if counts == {1} else (None,)


def _count(raw: bytes, kind: int, runs: Sequence[Run]) -> int:
    """Return the number of values in these runs."""
    if kind == INT64:
        return count_int64(raw, runs)
    return len(runs) if kind == BYTES else sum(stop - start for start, stop in runs) // 4
