"""Layouts of a stream's batches: computed once for each shape, and for each size of its strings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shared.wire.batch_layout import BucketShape, Layout, layout_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loader_server.batches.batch_strings import FoundStrings
    from loader_server.planning import PlannedBatch
    from loader_server.stream import Stream

__all__ = ["LaidOut", "Layouts"]

#: Layouts kept: a stream has one for each bucket, and more if batches are padded to their longest row.
_LAYOUTS_KEPT = 1024


class LaidOut(NamedTuple):
    """A batch's complete shape, its layout, the byte ranges between its tensors, and its strings if it has any."""

    shape: BucketShape
    layout: Layout
    gaps: tuple[slice, ...]
    strings: FoundStrings | None = None


class Layouts:
    """The layouts of one stream; any thread may ask."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        #: By the `id` of the planned shape, because shapes are unhashable, and the room of its strings. The planned
        #: shape is kept, so that its id is not reused.
        self._known: dict[tuple[int, tuple[int, ...]], tuple[BucketShape, LaidOut]] = {}

    def of(self, planned: PlannedBatch, samples: NDArray[np.int64]) -> LaidOut:
        """Return how a batch of these samples is laid out: those that are planned, or none."""
        roomy = self._laid_out(planned.shape, ())
        strings = self._stream.strings.find(planned, samples, roomy.shape)
        if strings is None:
            return roomy
        shape, layout, gaps, _ = self._laid_out(planned.shape, strings.room)
        return LaidOut(shape, layout, gaps, strings)

    def _laid_out(self, planned: BucketShape, room: tuple[int, ...]) -> LaidOut:
        """Return the layout of a planned shape, with this room for strings in place of the most that they may take."""
        # Without a lock: readers that come at the same time compute the same layout, and the last one is kept.
        key = (id(planned), room)
        known = self._known.get(key)
        if known is None or known[0] is not planned:
            if len(self._known) >= _LAYOUTS_KEPT:
                self._known.clear()
            shape = self._stream.shape(planned)
            if room:
                keys = (field.key for field in self._stream.strings.fields)
                shape = replace(shape, lengths={**shape.lengths, **dict(zip(keys, room, strict=True))})
            layout = layout_of(self._stream.fields, shape)
            known = self._known[key] = (planned, LaidOut(shape, layout, tuple(layout.gaps())))
        return known[1]
