"""How a transform says what it makes, so that batches can be planned before anything is built.

A transform is called with `(sample, rng)`: it changes the dict `sample` in place, or returns another one. It says
what it makes by a decorator:

    from loader_server.transforms.declare import transform

    @transform()                                       # changes values, but no key, dtype, shape or length
    def noise(sample, rng):
        sample["audio"] += 0.01 * rng.standard_normal(len(sample["audio"]), dtype="float32")

    @transform({"audio": ("float32", None, 160)}, lengths={"audio": lambda lengths: lengths["audio"] // 160})
    def framed(sample, rng): ...

An output is its dtype, then its axes; None is the padded one, and only the first may be.

A length is exact, or an upper bound: the batch carries the real one as `<key>_length`. Lengths that hang on `rng`
need an upper bound. Functions of lengths are called with int64 arrays, one number a sample: of the keys made so far
and of the raw sample (`audio` in frames, `audio_rate` in hertz, `text` in characters). A transform without the
decorator is measured while indexing.

Rules: pure; what is declared is checked when it is declared. This module does not know which transforms there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SettingsError
from shared.wire.layout import DTYPES, Field

__all__ = ["Declaration", "LengthRule", "Lengths", "Transform", "declaration_of", "transform"]

Lengths: TypeAlias = Mapping[str, NDArray[np.int64]]
LengthRule: TypeAlias = Callable[[Lengths], NDArray[np.int64]]
Transform: TypeAlias = Callable[[dict[str, Any], np.random.Generator], "dict[str, Any] | None"]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a transform makes: the fields that are new or differ, the lengths that differ, the keys that are gone."""

    outputs: tuple[Field, ...] = ()
    lengths: Mapping[str, LengthRule] = field(default_factory=dict)
    removes: tuple[str, ...] = ()


def transform(
    outputs: Mapping[str, tuple[Any, ...]] | None = None,
    *,
    lengths: Mapping[str, LengthRule] | None = None,
    per_second: Mapping[str, float] | None = None,
    removes: tuple[str, ...] = (),
) -> Callable[[_F], _F]:
    """Declare a transform; `per_second` is how many steps of a key make a second, where its length was changed."""

    def declare(function: _F) -> _F:
        where = f"the declaration of {function.__module__}:{function.__qualname__}"
        fields = tuple(_field(key, spec, (per_second or {}).get(key), where) for key, spec in (outputs or {}).items())
        made = Declaration(outputs=fields, lengths=dict(lengths or {}), removes=tuple(removes))
        function.declaration = made  # type: ignore[attr-defined]
        return function

    return declare


def declaration_of(function: Transform) -> Declaration | None:
    """What a transform declares; None where it has to be measured."""
    found = getattr(function, "declaration", None)
    return found if isinstance(found, Declaration) else None


def _field(key: str, spec: tuple[Any, ...], per_second: float | None, where: str) -> Field:
    dtype, *axes = spec if isinstance(spec, tuple) and spec else (None,)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SettingsError(
            expected=f'"{key}" as (dtype, axes …) with a dtype of {", ".join(sorted(DTYPES))}',
            got=repr(spec),
            where=where,
            remedy='Write for instance ("float32", None, 80).',
        )
    if not all(_is_axis(axis, first=place == 0) for place, axis in enumerate(axes)):
        raise SettingsError(
            expected=f'axes of "{key}" that are whole numbers, the first one or None',
            got=repr(tuple(axes)),
            where=where,
            remedy="Only the first axis of a sample's value can be padded.",
        )
    return Field(key=key, dtype=dtype, shape=tuple(axes), per_second=per_second)


def _is_axis(axis: object, *, first: bool) -> bool:
    return (first and axis is None) or (isinstance(axis, int) and not isinstance(axis, bool) and axis >= 1)
