"""Features of whole batches, written from where they lie in mapped files into their places. Pure.

Rules: the bytes are those that decoding each record would give; lists whose bytes are already those of an array are
copied as bytes, which takes a third of numpy's time for such small pieces. Everything else is decoded, one by one.
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

#: The buffer that holds a record, and where it begins and ends there.
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
    out[:] = 0
    begins, kinds, sizes = unpacked(runs)
    others = (runs == SCATTERED) | ~_are_arrays(form, kinds)
    if others.any():
        for row in others.nonzero()[0].tolist():
            value = _value(form, int(runs[row]), records[row])
            out[row, : len(value)] = value
        sizes = sizes * ~others
    octets, places = out.data.cast("B"), range(0, out.nbytes, out[0].nbytes)
    for (data, first, _), begin, size, place in zip(records, begins.tolist(), sizes.tolist(), places, strict=True):
        start = first + begin
        octets[place : place + size] = memoryview(data)[start : start + size]


def _numbers(form: FeatureForm, runs: NDArray[np.int64], records: Sequence[RecordPlace]) -> list[Any]:
    """One value for each sample; single integers, most of which have one byte, are read at once."""
    begins, kinds, _ = unpacked(runs)
    if form.shape or (kinds != INT64).any() or (runs == SCATTERED).any():
        return [_value(form, *one) for one in zip(runs.tolist(), records, strict=True)]
    places = ((data, start + begin) for (data, start, _), begin in zip(records, begins.tolist(), strict=True))
    return list(starmap(int64_at, places))


def _are_arrays(form: FeatureForm, kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these runs are byte for byte what the array holds."""
    alike: NDArray[np.bool_] = kinds == BYTES
    if form.dtype == "float32":
        alike |= kinds == FLOAT
    return alike if sys.byteorder == "little" else np.zeros_like(alike)


def _value(form: FeatureForm, run: int, record: RecordPlace) -> Any:
    data, start, stop = record
    if run == SCATTERED:
        raw = data[start:stop]
        return form.value(raw, features_of(raw).get(form.key))
    begin, kind, size = unpacked(run)
    at = start + begin
    if kind == INT64 and not form.shape:
        return int64_at(data, at)
    return form.value_in_runs(data, kind, ((at, at + size),))
