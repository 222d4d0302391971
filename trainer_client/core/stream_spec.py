"""The coordinator's description of a stream, and whether a pushed batch fits it.

Rules: pure. A batch fits if it is the requested one, is no larger than some bucket (batches may be padded to their
longest row instead of the bucket's length), and has exactly the layout that follows from its shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from shared.wire.batch_layout import BucketShape, Field, Layout, layout_of

if TYPE_CHECKING:
    from shared.wire.message_parts import WireShape
    from shared.wire.messages import Attached, Pushed
    from trainer_client.core.upcoming import UpcomingBatch

__all__ = ["StreamSpec"]

#: The most layouts that are cached: batches that are padded to their longest row may have thousands of shapes.
_MOST_LAYOUTS = 4096

#: Handing a batch to TensorFlow takes about 0.2 ms and asking for one 0.1 ms, whatever its size, so copying several
#: small ones into one array is cheaper.
_AT_A_TIME_BYTES = 2**20
_MOST_AT_A_TIME = 16


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """A stream's batch fields, bucket shapes and plan digest, as the coordinator sent them."""

    job: str
    stream: str
    evaluation: bool
    #: In queue mode: what is done with the batches; empty in lockstep.
    work: str
    plan_digest: str
    fields: tuple[Field, ...]
    shapes: tuple[BucketShape, ...]
    #: Number of shards, if batches are made whole: shard n mod this makes batch n. 0: any worker builds any batch.
    producers: int
    #: The fields of a sample of the data set below a user's pipeline.
    base_fields: tuple[Field, ...]
    most_batches: int
    heartbeat_timeout_s: float
    _layouts: dict[WireShape, Layout | None] = field(default_factory=dict)

    @classmethod
    def of(cls, attached: Attached) -> StreamSpec:
        """Return the description in the coordinator's answer."""
        return cls(
            job=attached.job,
            stream=attached.stream,
            evaluation=attached.evaluation,
            work=attached.work or "",
            plan_digest=attached.cursor.plan_digest,
            fields=tuple(wire.field() for wire in attached.fields),
            shapes=tuple(wire.bucket() for wire in attached.shapes),
            producers=attached.producers,
            base_fields=tuple(wire.field() for wire in attached.base_fields),
            most_batches=attached.most_batches,
            heartbeat_timeout_s=attached.heartbeat_timeout_ms / 1000,
        )

    @cached_property
    def array_shapes(self) -> tuple[BucketShape, ...]:
        """Return the shapes without the bytes of strings, which are no lengths of arrays."""
        strings = {field.key for field in self.fields if field.is_string}
        return tuple(
            BucketShape(rows=shape.rows, lengths={key: n for key, n in shape.lengths.items() if key not in strings})
            for shape in self.shapes
        )

    def largest_bytes(self) -> int:
        """Return the payload size of the largest shape, in bytes."""
        return max(layout_of(self.fields, shape).nbytes for shape in self.shapes)

    @cached_property
    def at_a_time(self) -> int:
        """Return how many batches a framework should take at once: up to 16 if they are small, 1 if large.

        As many as fit into 1 MiB, reckoned with the largest shape.
        """
        return max(1, min(_MOST_AT_A_TIME, _AT_A_TIME_BYTES // max(1, self.largest_bytes())))

    def layout(self, shape: WireShape) -> Layout | None:
        """Return the layout of a batch of this shape; None if no batch of this stream may have that shape.

        A shape is allowed if its rows, and the lengths of all padded fields, lie within one of the stream's buckets.
        """
        if shape not in self._layouts:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape] = self._new_layout(shape)
        return self._layouts[shape]

    def _new_layout(self, wire: WireShape) -> Layout | None:
        # A batch may be padded to its longest row, so its shape is any that lies within a bucket. A larger one would
        # not fit into a slot.
        wanted = wire.bucket()
        padded = {key for field in self.fields for key in field.length_keys}
        fits = any(
            wanted.rows <= shape.rows and all(wanted.lengths[key] <= shape.lengths[key] for key in padded)
            for shape in self.shapes
            if padded <= wanted.lengths.keys()
        )
        return layout_of(self.fields, wanted) if fits else None

    def fits(self, header: Pushed, batch: UpcomingBatch) -> bool:
        """Return whether the header announces the requested batch, in a permitted shape and with the right size.

        The epoch, the number and whether it is empty must be those requested; its rows must not exceed those of its
        shape.
        """
        # A worker that answers with another batch under a valid ticket would be trained on unnoticed.
        wanted = (batch.position.epoch, batch.number, batch.empty)
        if (header.epoch, header.number, header.empty) != wanted:
            return False
        layout = self.layout(header.shape)
        return layout is not None and layout.nbytes == header.nbytes and header.rows <= header.shape.rows
