"""Examples as samples, whatever file they lie in: a record's index columns, its decoding, and whole batches. Pure.

Rules: a record is parsed once, during indexing. If a feature's values lie in one run of the record's bytes, the index
keeps that run, so that decoding reads nothing else; otherwise decoding parses the record again. Indexing decodes
exactly as later reads do, so the lengths in the index cannot differ from those of the decoded values.

Batches are gathered by copying from mapped files straight into the rows of a batch; the result equals, byte for byte,
what decoding each record gives. Lists whose stored bytes are already those of the array are copied as bytes, which
takes a third of numpy's time for such small pieces; all others are decoded one by one.
"""

from __future__ import annotations

import contextlib
import sys
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_server.sources.records.examples.feature_forms import FeatureForm, UnfitFeature, forms_of_examples
from loader_server.sources.records.examples.wire_format import (
    BYTES,
    FLOAT,
    INT64,
    Feature,
    MalformedExample,
    features_of,
    int64_at,
)
from shared.errors import DataError, SampleError, SettingsError
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Mapping, Sequence

    from loader_server.sources.records.examples.feature_forms import FeatureForm
    from loader_server.sources.records.examples.wire_format import Feature

__all__ = [
    "FIRST_RECORDS",
    "MOST_RECORDS_WITHOUT",
    "ExampleDecoder",
    "RecordPlace",
    "forms_of_records",
    "packed_run",
    "refuse_unknown_features",
]

#: Number of records whose features are taken if the job file names none.
FIRST_RECORDS = 64
#: A feature that the job file names is refused as unknown if none of this many first records has it: many more than
#: above, because a rare feature is no mistake.
MOST_RECORDS_WITHOUT = 1024

#: A run is one int64: begin (the upper 31 bits, enough for any record), kind, and size in bytes.
_KIND_BITS, _SIZE_BITS = 2, 30
#: Marks values that lie in several runs, in none, or in one of a gigabyte or more. No packed run is negative.
_SCATTERED = -1

Numbers = TypeVar("Numbers", int, NDArray[np.int64])

#: A record's place: the buffer that holds it, and its begin and end there.
RecordPlace: TypeAlias = "tuple[mmap.mmap | bytes, int, int]"


class ExampleDecoder:
    """Parser of Examples for a fixed list of feature forms."""

    def __init__(self, forms: Sequence[FeatureForm]) -> None:
        self.forms = tuple(forms)
        self._steps = [(form, f"run_{form.key}") for form in forms]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the index columns: a run for each feature, and a length for each that has one."""
        lengths = (f"length_{form.key}" for form in self.forms if form.has_length)
        return (*(f"run_{form.key}" for form in self.forms), *lengths)

    def look(self, raw: bytes, where: str) -> list[int]:
        """Return the column values of one record, in the order of `columns`.

        Raise a SampleError if the record is not an Example or a feature does not fit its form; numpy's ValueError
        passes if a step of a feature list is an empty list of floats.
        """
        try:
            features = features_of(raw)
            runs = [packed_run(features.get(form.key)) for form in self.forms]
            # Every value is decoded, even if only its length is kept: what cannot be decoded has to be known now.
            values = ((form, form.value(raw, features.get(form.key))) for form in self.forms)
            return runs + [len(value) for form, value in values if form.has_length]
        except MalformedExample as error:
            raise _unusable(
                "undecodable", "a tf.train.Example or SequenceExample", f"other bytes: {error}", where
            ) from None
        except UnfitFeature as error:
            raise _unusable(error.reason, error.expected, error.got, where) from None

    def decode(self, raw: bytes, columns: Mapping[str, NDArray[Any]], sample: int) -> dict[str, Any]:
        """Return the feature values of a record that `look` has accepted, by key.

        `columns` are those of the index, and `sample` is the record's place in them. The record is parsed only if the
        values of a feature are scattered over it. Other bytes give other values, or raise MalformedExample,
        UnfitFeature or another ValueError, or an IndexError.
        """
        values: dict[str, Any] = {}
        scattered: list[FeatureForm] = []
        for form, column in self._steps:
            run = int(columns[column][sample])
            if run == _SCATTERED:  # parsing the record serves all scattered features, so it is put off
                scattered.append(form)
                continue
            begin, kind, size = _unpacked(run)
            values[form.key] = form.value_in_runs(raw, kind, ((begin, begin + size),))
        if scattered:
            features = features_of(raw)
            values |= {form.key: form.value(raw, features.get(form.key)) for form in scattered}
        return values

    def gather(
        self,
        columns: Mapping[str, NDArray[np.int64]],
        samples: NDArray[np.int64],
        records: Sequence[RecordPlace],
        out: Mapping[str, NDArray[Any]],
    ) -> None:
        """Write the numeric features that `out` has, one sample a row; padded ones get lengths and zeros behind them.

        `columns` are those of the index, `samples` the places in them, and `records` the record of each sample. Nothing
        is written without samples. A record that `look` has not accepted gives other values, or raises
        MalformedExample, UnfitFeature or another ValueError, or an IndexError.
        """
        for form in self.forms if len(samples) else ():
            field = form.field
            if field is None or form.key not in out:
                continue
            runs = columns[f"run_{form.key}"][samples]
            if field.padded:
                _gather_lists(form, runs, records, out[form.key])
                out[f"{form.key}_length"][:] = columns[f"length_{form.key}"][samples]
            else:
                out[form.key][:] = _numbers(form, runs, records)


def forms_of_records(records: Iterable[bytes], where: str) -> tuple[FeatureForm, ...]:
    """Return the forms of the features that these records have; raise a DataError if they have none.

    Malformed records are left out; raise a DataError as well if there is no record.
    """
    examples, count = [], 0
    for raw in records:
        count += 1
        # A malformed record says nothing about the features; it becomes a bad row when its piece is probed.
        with contextlib.suppress(MalformedExample):
            examples.append((raw, features_of(raw)))
    forms = forms_of_examples(examples)
    if not forms:
        raise DataError(
            expected="records that are tf.train.Example or SequenceExample",
            got=f"{len(examples)} of the first {count} that are, without any feature" if count else "no records at all",
            where=where,
            remedy='Name other files, or the features: features = { audio = "float32 [any]" }.',
        )
    return forms


def refuse_unknown_features(forms: Sequence[FeatureForm], records: Iterable[bytes], where: str) -> None:
    """Raise a SettingsError for a form whose key none of these records has.

    A missing list counts as empty, so a misspelt key would otherwise give empty lists in all records. Only as many
    records as necessary are parsed. Nothing is refused if no record could be parsed, or none has any feature.
    """
    missing, known = {form.key for form in forms}, set[str]()
    for raw in records:
        if not missing:
            return
        with contextlib.suppress(MalformedExample):
            keys = features_of(raw).keys()
            missing -= keys
            known |= keys
    # If no record could be parsed, the key is not at fault: probing reports the malformed records.
    if missing and known:
        wrong = min(missing)
        raise SettingsError(
            expected=f"features out of {', '.join(sorted(known))}{nearest(wrong, known)}",
            got=f'"{wrong}", which none of the first records has',
            where=f"{where}, features",
            remedy="Mend `features` of the stream.",
        )


def packed_run(feature: Feature | list[Feature] | None) -> int:
    """Pack a feature's only run (begin, kind, size) into one integer.

    Return _SCATTERED if the feature is missing, has several runs or none, is a feature list, or is too large to pack.
    """
    if not isinstance(feature, tuple) or len(feature[1]) != 1:
        return _SCATTERED
    kind, ((start, stop),) = feature
    return (start << _KIND_BITS | kind) << _SIZE_BITS | stop - start if stop - start < 2**_SIZE_BITS else _SCATTERED


def _unpacked(run: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the begin, kind and size of a packed run, or of each in an array of packed runs."""
    begin = run >> _SIZE_BITS
    return begin >> _KIND_BITS, begin & (2**_KIND_BITS - 1), run & (2**_SIZE_BITS - 1)


def _unusable(reason: str, expected: str, got: str, where: str) -> SampleError:
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend the record, or `features` of the stream, then run loader-server index.",
    )


# --- whole batches ---


def _gather_lists(
    form: FeatureForm, runs: NDArray[np.int64], records: Sequence[RecordPlace], out: NDArray[Any]
) -> None:
    """Write one list a row, padded with zeros: by copying bytes where they are the array's, else by decoding.

    Raise UnfitFeature if a decoded value does not fit its form, and MalformedExample if it cannot be parsed. There has
    to be a row. IndexError of `_value` passes through.
    """
    out[:] = 0
    begins, kinds, sizes = _unpacked(runs)
    others = (runs == _SCATTERED) | ~_are_arrays(form, kinds)
    for row in np.flatnonzero(others).tolist():
        value = _value(form, int(runs[row]), records[row])
        out[row, : len(value)] = value
    sizes = sizes * ~others  # the rows just decoded copy nothing below
    octets, places = out.data.cast("B"), range(0, out.nbytes, out[0].nbytes)
    for (data, first, _), begin, size, place in zip(records, begins.tolist(), sizes.tolist(), places, strict=True):
        # A slice of a memoryview is no copy; a slice of a map would be.
        octets[place : place + size] = memoryview(data)[first + begin : first + begin + size]


def _numbers(form: FeatureForm, runs: NDArray[np.int64], records: Sequence[RecordPlace]) -> list[Any]:
    """Return one value for each sample, which is an array if the form has fixed axes.

    If all are single integers, most of which have one byte, they are read without parsing a run. Raise UnfitFeature if
    a value does not fit its form, MalformedExample if it cannot be parsed, and an IndexError if the bytes end before it
    does.
    """
    begins, kinds, _ = _unpacked(runs)
    if form.shape or (kinds != INT64).any() or (runs == _SCATTERED).any():
        return [_value(form, run, record) for run, record in zip(runs.tolist(), records, strict=True)]
    places = ((data, start + begin) for (data, start, _), begin in zip(records, begins.tolist(), strict=True))
    return list(starmap(int64_at, places))


def _are_arrays(form: FeatureForm, kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each run whether its bytes are exactly those of the array.

    Packed floats are little-endian, like a float32 array on a little-endian machine; a bytes value holds an array
    already. On a big-endian machine no run qualifies.
    """
    are_arrays: NDArray[np.bool_] = (kinds == BYTES) | (kinds == FLOAT) & (form.dtype == "float32")
    return are_arrays if sys.byteorder == "little" else np.zeros_like(are_arrays)


def _value(form: FeatureForm, run: int, record: RecordPlace) -> Any:
    """Decode one feature of one record; parse the record only if the feature's values are scattered.

    Raise UnfitFeature if the value does not fit its form, MalformedExample for bytes that cannot be parsed, and an
    IndexError if the bytes end before a single integer does.
    """
    data, start, stop = record
    if run == _SCATTERED:
        raw = data[start:stop]
        return form.value(raw, features_of(raw).get(form.key))
    begin, kind, size = _unpacked(run)
    at = start + begin
    if kind == INT64 and not form.shape:  # read without making an array of one
        return int64_at(data, at)
    return form.value_in_runs(data, kind, ((at, at + size),))
