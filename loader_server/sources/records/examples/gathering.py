"""Features of whole batches, written from where they lie in mapped files into their places. Pure.

Rules: the bytes are those that decoding each record would give; lists whose bytes are already those of an array are
copied as bytes, which takes a third of what numpy takes for such small pieces. All else is decoded, one by one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from loader_server.sources.records.examples.decoder import SCATTERED, unpacked
from loader_server.sources.records.examples.wire_format import BYTES, FLOAT, INT64, features_of, int64_at

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.records.examples.feature_forms import FeatureForm

__all__ = ["RecordPlace", "gather_examples"]

#: What holds a record, where it begins in there, and where it ends.
RecordPlace: TypeAlias = "tuple[mmap.mmap | bytes, int, int]"


def gather_examples(
    forms: Sequence[FeatureForm],
    columns: Mapping[str, NDArray[np.int64]],
    samples: NDArray[np.int64],
    records: Sequence[RecordPlace],
    out: Mapping[str, NDArray[Any]],
) -> None:
    """Write those features of these samples that `out` has, one sample a row, their lengths, and zeros behind them."""
    for form in forms if len(samples) else ():
        if form.field is None or form.key not in out:
            continue
        runs: list[int] = columns[f"run_{form.key}"][samples].tolist()
        if form.field.padded:
            _gather_lists(form, runs, records, out[form.key])
            out[f"{form.key}_length"][:] = columns[f"length_{form.key}"][samples]
        else:
            out[form.key][:] = [_value(form, *one) for one in zip(runs, records, strict=True)]


def _gather_lists(form: FeatureForm, runs: Sequence[int], records: Sequence[RecordPlace], out: NDArray[Any]) -> None:
    octets, width, zeros = out.data.cast("B"), out[0].nbytes, memoryview(bytes(out[0].nbytes))
    for row, (run, record) in enumerate(zip(runs, records, strict=True)):
        begin, kind, size = unpacked(run)
        place = row * width
        if run != SCATTERED and _is_array(form, kind):
            data, start = record[0], record[1] + begin
            octets[place : place + size] = memoryview(data)[start : start + size]
            octets[place + size : place + width] = zeros[size:]
        else:
            value = _value(form, run, record)
            out[row, : len(value)] = value
            out[row, len(value) :] = 0


def _is_array(form: FeatureForm, kind: int) -> bool:
    """Whether the run has the bytes that the array has."""
    return sys.byteorder == "little" and (kind == BYTES or (kind == FLOAT and form.dtype == "float32"))


def _value(form: FeatureForm, run: int, record: RecordPlace) -> Any:  # noqa: ANN401 - array or number
    data, start, stop = record
    if run == SCATTERED:
        raw = data[start:stop]
        return form.value(raw, features_of(raw).get(form.key))
    begin, kind, size = unpacked(run)
    at = start + begin
    if kind == INT64 and not form.shape:
        return int64_at(data, at)
    return form.value_in_runs(data, kind, ((at, at + size),))
