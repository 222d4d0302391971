"""Builder for a source that makes whole batches: readers have them made, the building thread copies them into place.

Rules: as for any builder. A batch keeps the shape that it came with; after a shard's last batch there are batches
without rows. An error while making one ends the want, and nothing is masked: there are no samples.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.building.build_counts import Built
from loader_server.building.builder import Builder
from loader_server.building.not_finite import float_keys, rows_not_finite
from loader_server.building.read_ahead import Prepared, unwatched
from shared.hashing import digest64
from shared.wire.batch_layout import BucketShape, layout_of
from shared.wire.payload import round_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.building.deadline import Deadline
    from loader_server.building.quarantine import Quarantine
    from loader_server.sources.whole_source import WholeSource
    from loader_server.stream import Stream
    from shared.wire.messages import Want

__all__ = ["WholeBuilder"]


@dataclass(frozen=True, slots=True)
class _Made(Prepared):
    """A batch that the source made; `values` is None if there is none."""

    values: Mapping[str, NDArray[Any]] | None = None


class WholeBuilder(Builder):
    """Builder of one stream whose source makes whole batches.

    Making it imports what the source needs; raises SettingsError if that fails.
    """

    def __init__(self, stream: Stream, quarantine: Quarantine, deadline: Deadline, source: WholeSource) -> None:
        super().__init__(stream, quarantine, deadline)
        self._source = source
        self._floats = float_keys(stream.chain.fields)
        # Before the worker reports that it is ready: importing takes seconds, which its first want would wait for.
        source.begin_making()

    def reads(self, want: Want) -> bool:
        """Return True: making a batch takes long, so reader threads do it."""
        return True

    def prepare(self, want: Want, begin: Callable[[int], None] = unwatched) -> Prepared:
        """Have the source make the batch, and lay it out by the lengths that it has; an empty want makes nothing.

        Raise DataError if the batch is beyond the epoch's end, and any error of the plan or of making the batch.
        """
        began_ns = time.perf_counter_ns()
        planned = self.planned(want)
        values = None if want.empty else self._source.make_batch(want.epoch, want.number, begin)
        shape = BucketShape(rows=1, lengths={key: _steps(key, values) for key in planned.shape.lengths})
        layout = layout_of(self.stream.fields, shape)
        return _Made(
            planned=planned,
            samples=planned.samples[:0],
            shape=shape,
            layout=layout,
            gaps=tuple(layout.gaps()),
            strings=None,
            raw=(),
            kept={},
            read_us=(time.perf_counter_ns() - began_ns) // 1000,
            values=values,
        )

    def build(
        self,
        want: Want,
        prepared: Prepared,
        payload: NDArray[np.uint8],
        *,
        digest: bool = True,
        convicted: AbstractSet[int] = frozenset(),  # there are no samples
    ) -> Built:
        """Copy the batch into `payload`, writing every byte, and return the facts; hash it if `digest`, else give 0.

        Without a batch, the rows are empty, with tag -1. NaN and infinite values are counted, never masked.
        """
        began_ns = time.perf_counter_ns()
        assert isinstance(prepared, _Made)
        arrays: Mapping[str, NDArray[Any]] = prepared.layout.arrays(payload)
        # Every byte: a buffer has arbitrary content, and gaps must be the same for all workers.
        payload[:] = 0
        if prepared.values is None:
            arrays["tag"][:] = -1
        else:
            self._write_element(arrays, want.number, prepared.values)
        round_in_place(payload, prepared.layout, self.stream.float32)
        return Built(
            rows=int(prepared.values is not None),
            masked=0,
            digest=digest64(payload.data) if digest else 0,
            build_us=(time.perf_counter_ns() - began_ns) // 1000,
            read_us=prepared.read_us,
            # Counted, never masked: a batch that is made whole has one row, and no sample that could be named.
            not_finite=tuple((key, 1) for key in self._floats if len(rows_not_finite(arrays[key]))),
        )

    def _write_element(
        self, arrays: Mapping[str, NDArray[Any]], number: int, values: Mapping[str, NDArray[Any]]
    ) -> None:
        for field in self.stream.chain.fields:
            arrays[field.key][0] = values[field.key]
            if field.padded:
                arrays[f"{field.key}_length"][0] = len(values[field.key])
        arrays["weight"][0], arrays["tag"][0] = 1, number


def _steps(key: str, values: Mapping[str, NDArray[Any]] | None) -> int:
    return 0 if values is None else len(values[key])
