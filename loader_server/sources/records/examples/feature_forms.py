"""What a feature of an Example becomes in a raw sample: its dtype and shape, from settings or from records. Pure.

A form is written `"int64"`, one number; `"float32 [any]"`, a list of any length; `"float32 [any, 80]"`, rows of 80;
`"text"` and `"bytes"`, for transforms, also as lists, `"text [any]"`. Rules: integers have to fit the dtype, nothing
wraps around; integers are never read as floats; a number where the record has bytes is the bytes of an array as numpy's
`tobytes()` gives them, the lowest byte first. A missing list is empty; any other missing feature makes the record a bad
one, as in TensorFlow.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.records.examples.wire_format import BYTES, FLOAT, INT64, count_int64, int64_of
from shared.errors import SettingsError
from shared.wire.layout import DTYPES, Field

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.records.examples.wire_format import Feature, Features, Run

__all__ = ["FeatureForm", "UnfitFeature", "feature_forms", "forms_of_examples", "forms_said"]

_NO_NUMBERS = ("text", "bytes")
_FORM = re.compile(r"(\w+)(?: ?\[((?:any|[1-9]\d*)(?:, ?[1-9]\d*)*)\])?")
_KIND_NAMES = {BYTES: "bytes", FLOAT: "floats", INT64: "integers", 0: "nothing"}
#: The form of a list of this kind by default.
_USUAL = {BYTES: "bytes", FLOAT: "float32", INT64: "int64"}


class UnfitFeature(ValueError):
    """A feature that does not have its form: why in one word, what was expected, and what came."""

    def __init__(self, reason: str, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.reason, self.expected, self.got = reason, expected, got


@dataclass(frozen=True, slots=True)
class FeatureForm:
    """The form of the feature with this key; `dtype` may be text or bytes, None in `shape` is any number."""

    key: str
    dtype: str
    shape: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        axes = ", ".join("any" if axis is None else str(axis) for axis in self.shape)
        return f"{self.dtype} [{axes}]" if axes else self.dtype

    @property
    def field(self) -> Field | None:
        """The field as a batch has it; text and bytes are for transforms."""
        return None if self.dtype in _NO_NUMBERS else Field(key=self.key, dtype=self.dtype, shape=self.shape)

    @property
    def has_length(self) -> bool:
        """Whether the index says how long it is; only bytes have no length that one could plan with."""
        return self.dtype == "text" or bool(self.shape)

    @property
    def step(self) -> int:
        """Values in each entry of the first axis."""
        return math.prod(axis or 1 for axis in self.shape[1:])

    def value(self, raw: bytes, found: Feature | list[Feature] | None) -> Any:
        """The feature's value in a raw sample."""
        if found is None or (not isinstance(found, list) and not found[1]):
            return self._missing()
        if not isinstance(found, list):
            return self.value_in_runs(raw, *found)
        steps = [self._flat(raw, *step) for step in found]
        if any(len(step) != self.step for step in steps):
            sizes = sorted({len(step) for step in steps})
            raise self._other_shape(f"steps of {', '.join(map(str, sizes[:4]))} values")
        return self._shaped([one for step in steps for one in step] if self._is_of_texts else _joined(steps, self))

    def value_in_runs(self, raw: mmap.mmap | bytes, kind: int, runs: Sequence[Run]) -> Any:
        """The feature's value in a raw sample, from the ranges of bytes that hold its values."""
        return self._shaped(self._flat(raw, kind, runs))

    @property
    def _is_of_texts(self) -> bool:
        return self.dtype in _NO_NUMBERS

    def _missing(self) -> Any:
        if not self.shape or self.shape[0] is not None:
            raise UnfitFeature("missing_feature", f'a value of "{self.key}"', "none")
        return [] if self._is_of_texts else np.zeros((0, *(axis or 0 for axis in self.shape[1:])), self.dtype)

    def _flat(self, raw: mmap.mmap | bytes, kind: int, runs: Sequence[Run]) -> Any:
        """All values, flat."""
        if kind == BYTES:
            return self._of_bytes([raw[start:stop] for start, stop in runs])
        if kind == FLOAT and self.dtype.startswith("float"):
            parts = [np.frombuffer(raw, "<f4", (stop - start) // 4, start) for start, stop in runs]
            return (parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(self.dtype)
        if kind == INT64 and self.dtype not in _NO_NUMBERS and not self.dtype.startswith("float"):
            return self._narrowed(_integers(raw, runs))
        raise UnfitFeature("other_kind", f'"{self.key}" as {self}', _KIND_NAMES[kind])

    def _of_bytes(self, values: list[bytes]) -> Any:
        if self.dtype == "bytes":
            return values
        if self.dtype == "text":
            return [self._text(value) for value in values]
        if len(values) != 1 or len(values[0]) % np.dtype(self.dtype).itemsize:
            got = f"{len(values)} values" if len(values) != 1 else f"{len(values[0])} bytes"
            raise self._other_shape(got)
        return np.frombuffer(values[0], np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype)

    def _text(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            got = f"the byte 0x{value[error.start]:02x} after {error.start} others"
            raise UnfitFeature("not_utf8", f'"{self.key}" in UTF-8', got) from None

    def _narrowed(self, wide: NDArray[np.int64]) -> NDArray[Any]:
        """The values in the form's dtype, if all of them fit."""
        if self.dtype == "int64" or not len(wide):
            return wide.astype(self.dtype, copy=False)
        least, most = (0, 1) if self.dtype == "bool" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
        for value in (int(wide.min()), int(wide.max())):
            if not least <= value <= most:
                expected = f'"{self.key}" from {least} to {most} ({self.dtype})'
                raise UnfitFeature("out_of_range", expected, str(value))
        return wide.astype(self.dtype)

    def _shaped(self, flat: Any) -> Any:
        """The values in rows, or the single value."""
        if not self.shape:
            if len(flat) != 1:
                raise self._other_shape(f"{len(flat)} values")
            return flat[0]
        first = len(flat) // self.step
        if first * self.step != len(flat) or self.shape[0] not in (None, first):
            raise self._other_shape(f"{len(flat)} values")
        return flat if len(self.shape) == 1 else flat.reshape(first, *(axis or 0 for axis in self.shape[1:]))

    def _other_shape(self, got: str) -> UnfitFeature:
        return UnfitFeature("other_shape", f'"{self.key}" as {self}', got)


def _integers(raw: mmap.mmap | bytes, runs: Sequence[Run]) -> NDArray[np.int64]:
    parts = [int64_of(raw, start, stop) for start, stop in runs]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def _joined(steps: list[NDArray[Any]], form: FeatureForm) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, form.dtype), *steps])


# --- where forms come from ---


def feature_forms(said: object) -> tuple[tuple[str, str], ...]:
    """The setting `features`: a table of keys and forms, as the job file says it, but checked, and as pairs."""
    if not isinstance(said, dict) or not said:
        raise _unread(repr(said), "features")
    return tuple((key, str(_form(key, form))) for key, form in sorted(said.items()))


def _form(key: str, said: object) -> FeatureForm:
    found = _FORM.fullmatch(said) if isinstance(said, str) else None
    if found is None or found[1] not in (*DTYPES, *_NO_NUMBERS):
        raise _unread(repr(said), f'features, "{key}"')
    axes = tuple(None if axis.strip() == "any" else int(axis) for axis in (found[2] or "").split(",") if axis)
    if found[1] in _NO_NUMBERS and len(axes) > 1:
        raise _unread(repr(said), f'features, "{key}"')
    return FeatureForm(key, found[1], axes)


def _unread(got: str, where: str) -> SettingsError:
    return SettingsError(
        expected='a dtype, and axes where there are some, such as "int64", "float32 [any, 80]" or "text"',
        got=got,
        where=where,
        remedy='Write for instance features = { audio = "float32 [any]", label = "int32", words = "text" }; dtypes are '
        f"{', '.join(sorted(DTYPES))}, text and bytes.",
    )


def forms_said(said: Iterable[tuple[str, str]]) -> tuple[FeatureForm, ...]:
    """Forms that `feature_forms` checked."""
    return tuple(_form(key, form) for key, form in said)


def forms_of_examples(examples: Sequence[tuple[bytes, Features]]) -> tuple[FeatureForm, ...]:
    """The forms that these records have, sorted by key: a feature with one value in each of them is a number (or
    bytes), any other a list.
    """
    keys = sorted({key for _, found in examples for key in found})
    return tuple(_form_of(key, [(raw, found.get(key)) for raw, found in examples]) for key in keys)


def _form_of(key: str, seen: Sequence[tuple[bytes, Feature | list[Feature] | None]]) -> FeatureForm:
    features = [(raw, feature) for raw, found in seen for feature in (found if isinstance(found, list) else [found])]
    kind = next((feature[0] for _, feature in features if feature is not None and feature[0]), BYTES)
    counts = {_count(raw, *feature) if feature is not None else 0 for raw, feature in features}
    if not any(isinstance(found, list) for _, found in seen):
        return FeatureForm(key, _USUAL[kind], () if counts == {1} else (None,))
    return FeatureForm(key, _USUAL[kind], (None,) if len(counts) != 1 or counts == {1} else (None, counts.pop()))


def _count(raw: bytes, kind: int, runs: Sequence[Run]) -> int:
    """How many values there are."""
    if kind == INT64:
        return count_int64(raw, runs)
    return len(runs) if kind == BYTES else sum(stop - start for start, stop in runs) // 4
