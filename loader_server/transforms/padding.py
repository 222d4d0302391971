"""The values of cells that hold no sample: the setting `padding` of a stream, checked against its keys.

Rules: pure. A key that the setting leaves out has 0, and so has one with the value 0: the setting then changes neither
bytes nor digests. Lengths, weights, tags and the marks of packed rows are no keys of samples, and keep what they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import SettingsError
from shared.settings.parsers import nearest
from shared.wire.batch_layout import BucketShape, Field, layout_of
from shared.wire.payload import round_in_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from loader_server.transforms.find import NamedTransform
    from shared.settings.job import PaddingValue

__all__ = ["padding_of", "padding_tokens", "words_of", "zeros_for_tokens"]


def padding_of(
    written: Iterable[tuple[str, PaddingValue]],
    fields: Sequence[Field],
    steps: Sequence[NamedTransform],
    float32: str,
    where: str,
) -> dict[str, np.generic]:
    """Return the values other than 0, by key, each of its key's dtype, and rounded to the form `float32` of the job.

    Raise SettingsError for a key that samples do not have, a value that the key's dtype cannot hold, and a tokenizer
    that is not there or has no padding token. `where` is the stream's place in the job file.
    """
    by_key = {field.key: field for field in fields}
    tokens = padding_tokens(steps)
    found = {}
    for key, value in written:
        place = f"{where}, padding.{key}"
        if key not in by_key:
            known = ", ".join(f'"{name}"' for name in by_key)
            raise SettingsError(
                expected=f"a key of this stream's samples ({known}){nearest(key, by_key)}",
                got=f'"{key}"',
                where=place,
                remedy="Name one of these; the transforms determine which keys there are.",
            )
        padding = _held(by_key[key], _number(key, value, tokens, place), float32, place)
        if padding:
            found[key] = padding
    return found


def words_of(padding: Mapping[str, np.generic]) -> tuple[str, ...]:
    """Return words for fingerprints, one for each key, sorted; none without padding."""
    return tuple(f"padding {key}={padding[key].item()!r}" for key in sorted(padding))


def padding_tokens(steps: Iterable[NamedTransform]) -> dict[str, int]:
    """Return the ids of the tokenizers' own padding tokens, by key; a key whose tokenizer has none is left out."""
    return {key: token for step in steps for key, token in getattr(step.call, "padding_tokens", {}).items()}


def zeros_for_tokens(
    steps: Iterable[NamedTransform], written: Iterable[tuple[str, PaddingValue]]
) -> dict[str, tuple[str, int]]:
    """Return the keys that are padded with 0 although their tokenizer has another padding token.

    Each comes with the name of its transform, and the id of that token. A key for which the job file has a value, 0
    included, is left out.
    """
    named = {key for key, _ in written}
    return {
        key: (step.name, token)
        for step in steps
        for key, token in padding_tokens([step]).items()
        if token and key not in named
    }


def _number(key: str, value: PaddingValue, tokens: Mapping[str, int], where: str) -> float:
    """Return the value as a number; raise SettingsError if it is to be a tokenizer's, and there is none."""
    if not isinstance(value, str):
        return value
    if key not in tokens:
        raise SettingsError(
            expected=f'a tokenizer of "{key}" that has a padding token',
            got="none: its transforms name no such token",
            where=where,
            remedy=f"Write the id, padding = {{ {key} = 3 }}, or train the tokenizer with a padding token.",
        )
    return tokens[key]


def _held(field: Field, value: float, float32: str, where: str) -> np.generic:
    """Return the value in the field's dtype; raise SettingsError if the dtype cannot hold it."""
    dtype = np.dtype(field.dtype)
    if dtype.kind == "f":
        padding: np.generic = _rounded(value, field, float32)
        if not isinstance(value, bool) and np.isfinite(padding):
            return padding
        held = "a finite number" + (f" as {float32}" if field.dtype == "float32" and float32 != "float32" else "")
    elif dtype.kind == "b":
        if isinstance(value, bool):
            return np.bool_(value)
        held = "true or false"
    else:
        bounds = np.iinfo(dtype)
        if isinstance(value, int) and not isinstance(value, bool) and bounds.min <= value <= bounds.max:
            return dtype.type(value)  # type: ignore[no-any-return] # a scalar of that dtype
        held = f"an integer from {bounds.min} to {bounds.max}"
    raise SettingsError(
        expected=f'a value that "{field.key}" can hold: {held}, as it is {field.dtype}',
        got=str(value).lower() if isinstance(value, bool) else str(value),
        where=where,
        remedy="Write such a value, or have a transform give the key another dtype.",
    )


def _rounded(value: float, field: Field, float32: str) -> Any:
    """Return a float as a batch has it: as `round_in_place` rounds the values beside it. It may be infinite."""
    layout = layout_of([Field(key=field.key, dtype=field.dtype, shape=())], BucketShape(rows=1, lengths={}))
    payload = np.zeros(layout.nbytes, np.uint8)
    array = layout.arrays(payload)[field.key]
    with np.errstate(over="ignore"):
        array[0] = value
    round_in_place(payload, layout, float32)
    return array[0]
