"""Examples as samples, whatever file they lie in: the index columns of a record, and its decoding. Pure.

Rules: a record is parsed once, during indexing. If a feature's values lie in one run of the record's bytes, the index
keeps that run, so that decoding reads nothing else; otherwise decoding parses the record again. Indexing decodes
exactly as later reads do, so the lengths in the index cannot differ from those of the decoded values.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_server.sources.records.examples.feature_forms import UnfitFeature, forms_of_examples
from loader_server.sources.records.examples.wire_format import MalformedExample, features_of
from shared.errors import DataError, SampleError, SettingsError
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from loader_server.sources.records.examples.feature_forms import FeatureForm
    from loader_server.sources.records.examples.wire_format import Feature
    from shared.wire.batch_layout import Field

__all__ = [
    "FIRST_RECORDS",
    "MOST_RECORDS_WITHOUT",
    "SCATTERED",
    "ExampleDecoder",
    "forms_of_records",
    "packed_run",
    "refuse_unknown_features",
    "unpacked",
]

#: Number of records whose features are taken if the job file names none.
FIRST_RECORDS = 64
#: A feature that the job file names is refused as unknown if none of this many first records has it.
MOST_RECORDS_WITHOUT = 1024

#: A run is one int64: begin (the upper 31 bits, enough for any record), kind, and size in bytes.
_KIND_BITS, _SIZE_BITS = 2, 30
#: Marks values that lie in several runs, in none, or in one of a gigabyte or more. No packed run is negative.
SCATTERED = -1

Numbers = TypeVar("Numbers", int, NDArray[np.int64])


class ExampleDecoder:
    """Parser of Examples for a fixed list of feature forms."""

    def __init__(self, forms: Sequence[FeatureForm]) -> None:
        self.forms = tuple(forms)
        self._steps = [(form, f"run_{form.key}") for form in forms]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The batch fields of the numeric features."""
        return tuple(form.field for form in self.forms if form.field is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the index columns: a run for each feature, and a length for each that has one."""
        lengths = (f"length_{form.key}" for form in self.forms if form.has_length)
        return (*(f"run_{form.key}" for form in self.forms), *lengths)

    def look(self, raw: bytes, where: str) -> list[int]:
        """Return the column values of one record, in the order of `columns`.

        Raise a SampleError if the record is not an Example or a feature does not fit its form.
        """
        try:
            found = features_of(raw)
            runs = [packed_run(found.get(form.key)) for form in self.forms]
            # Every value is decoded, even if only its length is kept: what cannot be decoded has to be known now.
            values = ((form, form.value(raw, found.get(form.key))) for form in self.forms)
            return runs + [len(value) for form, value in values if form.has_length]
        except MalformedExample as error:
            expected = "a tf.train.Example or SequenceExample"
            raise _unusable("undecodable", expected, f"other bytes: {error}", where) from None
        except UnfitFeature as error:
            raise _unusable(error.reason, error.expected, error.got, where) from None

    def decode(self, raw: bytes, columns: Mapping[str, NDArray[Any]], sample: int) -> dict[str, Any]:
        """Return the feature values of a record that `look` has accepted, by key.

        `columns` are those of the index, and `sample` is the record's place in them. The record is parsed only if the
        values of a feature are scattered over it.
        """
        values: dict[str, Any] = {}
        scattered: list[FeatureForm] = []
        for form, column in self._steps:
            run = int(columns[column][sample])
            if run == SCATTERED:  # parsing the record serves all scattered features, so it is put off
                scattered.append(form)
                continue
            begin, kind, size = unpacked(run)
            values[form.key] = form.value_in_runs(raw, kind, ((begin, begin + size),))
        if scattered:
            found = features_of(raw)
            values |= {form.key: form.value(raw, found.get(form.key)) for form in scattered}
        return values


def forms_of_records(records: Iterable[bytes], where: str) -> tuple[FeatureForm, ...]:
    """Return the forms of the features that these records have; raise a DataError if they have none."""
    examples, seen = [], 0
    for raw in records:
        seen += 1
        # A malformed record says nothing about the features; it becomes a bad row when its piece is probed.
        with contextlib.suppress(MalformedExample):
            examples.append((raw, features_of(raw)))
    forms = forms_of_examples(examples)
    if not forms:
        raise DataError(
            expected="records that are tf.train.Example or SequenceExample",
            got=f"{len(examples)} of the first {seen} that are, without any feature" if seen else "no records at all",
            where=where,
            remedy='Name other files, or the features: features = { audio = "float32 [any]" }.',
        )
    return forms


def refuse_unknown_features(forms: Sequence[FeatureForm], records: Iterable[bytes], where: str) -> None:
    """Raise a SettingsError for a form whose key none of these records has.

    A missing list counts as empty, so a misspelt key would otherwise give empty lists in all records. Only as many
    records as necessary are parsed.
    """
    missing, known = {form.key for form in forms}, set[str]()
    for raw in records:
        if not missing:
            return
        with contextlib.suppress(MalformedExample):
            found = features_of(raw).keys()
            missing -= found
            known |= found
    # If no record could be parsed, the key is not at fault: probing reports the malformed records.
    if missing and known:
        wrong = min(missing)
        raise SettingsError(
            expected=f"features out of {', '.join(sorted(known))}{nearest(wrong, known)}",
            got=f'"{wrong}", which none of the first records has',
            where=f"{where}, features",
            remedy="Mend `features` of the stream.",
        )


def packed_run(found: Feature | list[Feature] | None) -> int:
    """Pack a feature's only run (begin, kind, size) into one integer.

    Return SCATTERED if the feature is missing, has several runs or none, is a feature list, or is too large to pack.
    """
    if not isinstance(found, tuple) or len(found[1]) != 1:
        return SCATTERED
    kind, ((start, stop),) = found
    return (start << _KIND_BITS | kind) << _SIZE_BITS | stop - start if stop - start < 2**_SIZE_BITS else SCATTERED


def unpacked(run: Numbers) -> tuple[Numbers, Numbers, Numbers]:
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
