"""Features of whole batches, copied from mapped files straight into the rows of a batch. Pure.

Rules: the result equals, byte for byte, what decoding each record gives. Lists whose stored bytes are already those of
the array are copied as bytes, which takes a third of numpy's time for such small pieces; all others are decoded one by
one.
"""

from __future__ import annotations

import sys
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.sources.records.examples.decoder import SCATTERED, unpacked
from loader_server.sources.records.examples.wire_format import BYTES, FLOAT, INT64, features_of, int64_at

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.records.examples.feature_forms import FeatureForm

__all__ = ["RecordPlace", "gather_examples"]

#: A record's place: the buffer that holds it, and its begin and end there.
RecordPlace: TypeAlias = "tuple[mmap.mmap | bytes, int, int]"


def gather_examples(
    forms: Sequence[FeatureForm],
    columns: Mapping[str, NDArray[np.int64]],
    samples: NDArray[np.int64],
    records: Sequence[RecordPlace],
    out: Mapping[str, NDArray[Any]],
) -> None:
    """Write the features that `out` has, one sample a row, with their lengths and zero padding.

    `columns` are those of the index, `samples` the places in them, and `records` the record of each sample.
    """
    for form in forms if len(samples) else ():
        field = form.field
        if field is None or form.key not in out:
            continue
        runs = columns[f"run_{form.key}"][samples]
        if field.padded:
            _gather_lists(form, runs, records, out[form.key])
            out[f"{form.key}_length"][:] = columns[f"length_{form.key}"][samples]
        else:
            out[form.key][:] = _numbers(form, runs, records)


def _gather_lists(
    form: FeatureForm, runs: NDArray[np.int64], records: Sequence[RecordPlace], out: NDArray[Any]
) -> None:
    """Write one list a row, padded with zeros: by copying bytes where they are the array's, else by decoding."""
    out[:] = 0
    begins, kinds, sizes = unpacked(runs)
    others = (runs == SCATTERED) | ~_are_arrays(form, kinds)
    if others.any():
        for row in others.nonzero()[0].tolist():
            value = _value(form, int(runs[row]), records[row])
            out[row, : len(value)] = value
        sizes = sizes * ~others  # the rows just decoded copy nothing below
    octets, places = out.data.cast("B"), range(0, out.nbytes, out[0].nbytes)
    for (data, first, _), begin, size, place in zip(records, begins.tolist(), sizes.tolist(), places, strict=True):
        start = first + begin
        # A slice of a memoryview is no copy; a slice of a map would be.
        octets[place : place + size] = memoryview(data)[start : start + size]


def _numbers(form: FeatureForm, runs: NDArray[np.int64], records: Sequence[RecordPlace]) -> list[Any]:
    """Return one value for each sample.

    If all are single integers, most of which have one byte, they are read without parsing a run.
    """
    begins, kinds, _ = unpacked(runs)
    if form.shape or (kinds != INT64).any() or (runs == SCATTERED).any():
        return [_value(form, *one) for one in zip(runs.tolist(), records, strict=True)]
    places = ((data, start + begin) for (data, start, _), begin in zip(records, begins.tolist(), strict=True))
    return list(starmap(int64_at, places))


def _are_arrays(form: FeatureForm, kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell for each run whether its bytes are exactly those of the array.

    Packed floats are little-endian, like a float32 array on a little-endian machine; a bytes value holds an array
    already. On a big-endian machine no run qualifies.
    """
    alike: NDArray[np.bool_] = kinds == BYTES
    if form.dtype == "float32":
        alike |= kinds == FLOAT
    return alike if sys.byteorder == "little" else np.zeros_like(alike)


def _value(form: FeatureForm, run: int, record: RecordPlace) -> Any:
    """Decode one feature of one record; parse the record only if the feature's values are scattered."""
    data, start, stop = record
    if run == SCATTERED:
        raw = data[start:stop]
        return form.value(raw, features_of(raw).get(form.key))
    begin, kind, size = unpacked(run)
    at = start + begin
    if kind == INT64 and not form.shape:
        return int64_at(data, at)
    return form.value_in_runs(data, kind, ((at, at + size),))
