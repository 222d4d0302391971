"""Structure of a dataset's elements: which arrays of a batch, in which nesting.

Rules: each part mirrors what the user named: a key gives a tensor, a tuple of keys a tuple, and a dict of keys a dict.
A tuple of inputs without targets is wrapped in a tuple of one, as `fit`, `evaluate` and `predict` want it. The same
code handles arrays, tensors and specs, so it must not know TensorFlow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import SettingsError, require
from shared.wire.batch_layout import STRING, layout_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Tensor
    from trainer_client.session.feed_session import FeedSession

__all__ = ["ElementStructure", "Keys", "assembler", "masked_batches", "shapes_of"]

_MASKED_TAG = -1

#: A key, a tuple of keys, or a dict of keys.
Keys = str | tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStructure:
    """Inputs, targets and weights as `fit` takes them, or a dict of all keys, which `map` may change.

    Making it raises SettingsError if `map` comes with others, or targets or weights without `inputs`.
    """

    inputs: Keys | None = None
    targets: Keys | None = None
    weights: Keys | None = None
    map: Callable[[dict[str, Any]], Any] | None = None

    def __post_init__(self) -> None:
        named = [name for name in ("inputs", "targets", "weights") if getattr(self, name) is not None]
        require(
            not named or (self.map is None and self.inputs is not None),
            expected="inputs (with targets and weights, if any), or map alone",
            got=" and ".join([*named, "map"] if self.map is not None else named),
            where="feed.dataset",
            remedy="Name inputs; or let map take a dict of all keys and return (inputs, targets, weights).",
        )

    def of(self, values: Mapping[str, Any]) -> Any:
        """Return the element with these values in its places, before `map`; raise SettingsError if a key is missing."""
        if self.inputs is None:
            return dict(values)
        inputs = _filled(self.inputs, values)
        if self.targets is None and self.weights is None:
            # Keras would read a tuple of two as inputs and targets.
            return (inputs,) if isinstance(inputs, tuple) else inputs
        targets = () if self.targets is None else _filled(self.targets, values)
        return (inputs, targets) if self.weights is None else (inputs, targets, _filled(self.weights, values))


def _filled(part: Keys, values: Mapping[str, Any]) -> Any:
    """Return a part of an element with the values of its keys; raise SettingsError if a key is missing."""
    if isinstance(part, str):
        return _value(part, values)
    if isinstance(part, Mapping):
        return {name: _value(key, values) for name, key in part.items()}
    return tuple(_value(key, values) for key in part)


def _value(key: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a key; raise SettingsError if the batches have no such key."""
    if key not in values:
        raise SettingsError(
            expected="a key of the batches (" + ", ".join(values) + ")",
            got=f'"{key}"',
            where="feed.dataset",
            remedy="Name one of these, or let a transform of the stream make it.",
        )
    return values[key]


def assembler(spec: Any, leaf: type) -> Callable[[Sequence[Any]], Any] | None:
    """Return a function that makes an element of this spec from the flat list of its tensors, sorted by key in dicts.

    Return None if the spec contains anything but plain tuples, dicts and leaves of this type.
    """
    return _assembler(spec, leaf, itertools.count())


def _assembler(spec: Any, leaf: type, places: Iterator[int]) -> Callable[[Sequence[Any]], Any] | None:
    """Return the assembler of a part of a spec, whose leaves take the next places; None as `assembler` returns it."""
    if type(spec) is leaf:
        return itemgetter(next(places))
    if type(spec) is tuple:
        parts = [_assembler(part, leaf, places) for part in spec]
        return None if None in parts else lambda flat: tuple([part(flat) for part in parts])  # type: ignore[misc]
    if type(spec) is dict:
        # TensorFlow sorts the keys of a dict as it flattens it; the element has them in the order of the spec.
        by_key = {key: _assembler(spec[key], leaf, places) for key in sorted(spec)}
        ordered = {key: by_key[key] for key in spec}
        return None if None in by_key.values() else lambda flat: {key: part(flat) for key, part in ordered.items()}  # type: ignore[misc]
    return None


def shapes_of(session: FeedSession) -> dict[str, tuple[int | None, ...]]:
    """Return one shape per key for all buckets: a dimension has a size only if all buckets agree on it.

    Batches that producers make whole have the shapes of their fields, with one row.
    """
    if session.spec.producers:
        return {field.key: (1, *field.shape) for field in session.spec.fields}
    layouts = [layout_of(session.spec.fields, shape) for shape in session.spec.shapes]
    tensors = zip(*(layout.tensors for layout in layouts), strict=True)
    return {of_key[0].key: _agreed([tensor.shape for tensor in of_key]) for of_key in tensors}


def _agreed(shapes: list[tuple[int, ...]]) -> tuple[int | None, ...]:
    """Return the sizes that all shapes agree on, and None for the others, and for those that differ in each batch."""
    return tuple(sizes[0] if len(set(sizes)) == 1 and sizes[0] >= 0 else None for sizes in zip(*shapes, strict=True))


def masked_batches(session: FeedSession) -> Iterator[dict[str, NDArray[np.generic]]]:
    """Yield a batch of each padded shape with all rows masked, largest first.

    All values are 0, but for `tag`, which is -1, and strings, which are empty.
    """
    layouts = sorted(
        (layout_of(session.spec.fields, shape) for shape in session.spec.shapes), key=lambda layout: -layout.nbytes
    )
    for layout in layouts:
        yield {tensor.key: _masked(tensor) for tensor in layout.tensors}


def _masked(tensor: Tensor) -> NDArray[Any]:
    if tensor.dtype == STRING:
        return np.full([max(size, 1) for size in tensor.shape], b"", object)
    return np.full(tensor.shape, _MASKED_TAG if tensor.key == "tag" else 0, tensor.dtype)
