"""The streams of a simulated job: how many batches an epoch has, which shape each batch, how long it takes to build.

It stands for the plan, which is a pure function: the coordinator and all workers see the same.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from shared.wire.batch_layout import BucketShape, Field, layout_of
from shared.wire.message_parts import WireField, WireShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loader_server.leases.lease_table import LeaseRules

__all__ = ["Stream"]

_FIELDS = (WireField("audio", "uint8", (None,), None), WireField("weight", "float32", (), None))
_SHAPES = (WireShape(2, (("audio", 8),)), WireShape(4, (("audio", 4),)))
_WRONG = WireShape(9, (("audio", 9),))


@cache
def _nbytes(shape: WireShape) -> int:
    fields = tuple(Field(key=field.key, dtype=field.dtype, shape=field.shape) for field in _FIELDS)
    return layout_of(fields, BucketShape(rows=shape.rows, lengths=dict(shape.lengths))).nbytes


class Stream:
    """Also what the coordinator sees of it (`StreamView`)."""

    carries = False
    fields = _FIELDS
    shapes = _SHAPES
    producers = 0
    base_fields = ()
    wrong_shape = _WRONG

    def __init__(
        self, name: str, *, evaluation: bool, sizes: Sequence[int], build_s: float, leases: LeaseRules | None = None
    ) -> None:
        self.name = name
        self.evaluation = evaluation
        self.leases = leases
        self.digest = f"plan of {name}"
        self._sizes = sizes
        self._build_s = build_s

    def batches(self, epoch: int, group: int) -> int:
        """How many batches an epoch has: where it is not cut into groups evenly, the group plays a part."""
        size = self._sizes[epoch % len(self._sizes)]
        return size + group % 2 if size > 2 else size

    def most_batches(self, group: int) -> int:
        return max(self._sizes) + 1

    def objection(self, group: int) -> None:
        return None

    def shape(self, number: int) -> WireShape:
        return _SHAPES[number % len(_SHAPES)]

    def nbytes(self, number: int) -> int:
        return _nbytes(self.shape(number))

    def largest(self) -> int:
        """No batch has more bytes."""
        return max(map(_nbytes, _SHAPES))

    def build_s(self, number: int) -> float:
        """Half of the batches take three times as long as the others."""
        return self._build_s * (0.5 if number % 2 else 1.5)
