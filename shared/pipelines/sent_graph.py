"""A data set that a trainer sends: the values of an element and a TensorFlow graph, as bytes.

Rules: pure; knows no TensorFlow; no Python objects cross. A reader survives any bytes. Equal bytes are the same data.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from shared.errors import DataError
from shared.hashing import fingerprint
from shared.pipelines.element_values import ElementValue
from shared.wire.batch_layout import DTYPES

__all__ = ["MOST_BYTES", "SentGraph", "digest_of_graph"]

#: Largest graph, with the lookup tables inside it; larger tables have to be read from files.
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SentGraph:
    """Serialized GraphDef (`graph`) whose elements are dicts of `values`."""

    values: tuple[ElementValue, ...]
    graph: bytes

    def encode(self) -> bytes:
        """Return values and graph as bytes."""
        packed: bytes = msgpack.packb([[[one.key, one.dtype, one.shape] for one in self.values], self.graph])
        return packed

    @staticmethod
    def decode(content: bytes, where: str) -> SentGraph:
        """Return what `encode` wrote; raise DataError for any other bytes."""
        try:
            said, graph = msgpack.unpackb(content)
            values = tuple(_value(*one) for one in said)
        except Exception as error:  # bytes that are none raise many kinds of errors
            raise DataError(
                expected="a graph as a trainer sends it",
                got=type(error).__name__,
                where=where,
                remedy="Remove it; the next trainer_client.distribute sends it anew.",
            ) from None
        return SentGraph(values, bytes(graph))


def _value(key: str, dtype: str, shape: list[int | None]) -> ElementValue:
    """Return a value of the element; raise ValueError if it is not one."""
    if not isinstance(key, str) or dtype not in DTYPES or not all(size is None or size >= 0 for size in shape):
        raise ValueError
    return ElementValue(key, dtype, tuple(shape))


def digest_of_graph(content: bytes) -> str:
    """Return the fingerprint that names this content."""
    return fingerprint(content)
