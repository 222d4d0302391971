"""Conversion of string, ragged and sparse values to dense tensors of numbers, which alone can cross, and back.

A value that is not dense, or no number, becomes parts under keys of their own: values with offsets. A string tensor
`text` becomes `text:bytes`, all strings one after another, and `text:sizes`, the bytes of each; a ragged one
`text:flat` with `text:rows_0`, `text:rows_1`, … from the outermost on; a sparse one `text:flat` with `text:at` and
`text:dense`. Flat strings are divided in turn.

Rules: imports TensorFlow only where a pipeline is built; a value without parts stays as it is; zero rows are a value
like any other, because a shard may have ended. Keys have no colon before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tensorflow as tf

__all__ = ["joined_values", "parted", "parts_of"]

_BYTES, _SIZES, _FLAT, _ROWS, _AT, _DENSE = "bytes", "sizes", "flat", "rows_", "at", "dense"


def parted(dataset: tf.data.Dataset, where: str) -> tf.data.Dataset:
    """Return the data set with each value replaced by its parts; the same data set if no value has parts.

    A data set whose elements are no dicts is returned as it is. Raise SettingsError if a value is neither dense, ragged
    nor sparse.
    """
    import tensorflow as tf  # only where pipelines are built

    spec = dataset.element_spec
    if not isinstance(spec, dict):
        return dataset
    for key, value_spec in spec.items():
        require(
            isinstance(value_spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec),
            expected=f'"{key}" as a dense, ragged or sparse tensor',
            got=f"{value_spec}",
            where=where,
            remedy="Make it one in a map, or leave it out.",
        )
    # Unchanged if it can be: a map that changes nothing would still cost each element a call.
    if all(isinstance(value_spec, tf.TensorSpec) and value_spec.dtype != tf.string for value_spec in spec.values()):
        return dataset
    return dataset.map(
        lambda element: {name: part for key, value in element.items() for name, part in parts_of(key, value).items()}
    )


def parts_of(key: str, value: Any) -> dict[str, Any]:
    """Return a value's parts by key, or the value itself if it is dense and numeric.

    Parts of a ragged, sparse or string tensor have keys that begin with `key` and a colon; `_joined` reverses it.
    """
    import tensorflow as tf  # only where pipelines are built

    if isinstance(value, tf.RaggedTensor):
        rows = {f"{key}:{_ROWS}{place}": lengths for place, lengths in enumerate(value.nested_row_lengths())}
        return parts_of(f"{key}:{_FLAT}", value.flat_values) | rows
    if isinstance(value, tf.SparseTensor):
        places = {f"{key}:{_AT}": value.indices, f"{key}:{_DENSE}": value.dense_shape}
        return parts_of(f"{key}:{_FLAT}", value.values) | places
    if value.dtype == tf.string:
        joined = tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(value, [-1])), tf.uint8)
        return {f"{key}:{_BYTES}": joined, f"{key}:{_SIZES}": tf.strings.length(value)}
    return {key: value}


def joined_values(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by key, each joined from all its parts; a value without parts is returned as it is."""
    grouped: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        key, _, kind = name.partition(":")
        grouped.setdefault(key, {})[kind] = part
    return {key: _joined(own_parts) for key, own_parts in grouped.items()}


def _joined(parts: Mapping[str, Any]) -> Any:
    """Return the value that has these parts, by their kinds: a plain one, strings, a ragged or a sparse tensor."""
    import tensorflow as tf  # only where pipelines are built

    if set(parts) == {""}:
        return parts[""]
    if _BYTES in parts:
        return _strings(parts[_BYTES], parts[_SIZES])
    flat = _joined({kind.removeprefix(_FLAT).removeprefix(":"): part for kind, part in parts.items() if _FLAT in kind})
    if _AT in parts:
        return tf.SparseTensor(parts[_AT], flat, parts[_DENSE])
    rows = [parts[f"{_ROWS}{place}"] for place in range(sum(kind.startswith(_ROWS) for kind in parts))]
    return tf.RaggedTensor.from_nested_row_lengths(flat, rows, validate=False)


def _strings(joined: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return the strings whose bytes are joined, cut by their sizes and in the shape of `sizes`."""
    import tensorflow as tf  # only where pipelines are built

    # TensorFlow cannot cut one string into many of given sizes, so by way of its bytes, one string each.
    letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), tf.cast(joined, tf.int32))
    each = tf.RaggedTensor.from_row_lengths(letters, tf.reshape(sizes, [-1]), validate=False)
    return tf.reshape(tf.strings.reduce_join(each, axis=-1), tf.shape(sizes))
