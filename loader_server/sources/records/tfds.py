"""The tfds source: a data set that TensorFlow Datasets prepared in TFRecord or ArrayRecord files, without TensorFlow.

Rules: the library knows what the features are and decodes them with numpy, during indexing. If every feature of every
record turns out to be plain numbers, lists or text, the index keeps where their bytes lie, and later reads take them
from there: in 2 µs a record, where the library takes 90. Samples are like those of a map-style class: each is looked at
during indexing, and a key whose first axis differs is padded. A digest of each record tells whether it is the indexed
one.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import any_size_keys
from loader_server.sources.files.file_facts import changed
from loader_server.sources.files.same_files import digest_of_number, signed_digest
from loader_server.sources.map_style import ItemPiece, MapStyleSource
from loader_server.sources.records.array_record_files import ArrayRecordFiles
from loader_server.sources.records.examples.decoder import ExampleDecoder, packed_run
from loader_server.sources.records.examples.feature_forms import FeatureForm, UnfitFeature, parsed_forms
from loader_server.sources.records.examples.wire_format import Features, MalformedExample, features_of
from loader_server.sources.records.tfrecord_readers import TFRecordReaders
from loader_server.sources.remote.urls import is_url, joined
from shared.errors import DataError, SettingsError
from shared.extras import library
from shared.settings.parsers import setting, text, texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Found, Indexed

__all__ = ["PreparedItems", "TfdsSettings", "TfdsSource"]

#: In place of a run: decoding the feature's bytes does not give what the library gives. A run is never negative, and -1
#: marks values that are scattered over the record.
_UNLIKE = -2

#: What reads the files of a data set by record number, by what the library calls their format.
_READERS: dict[str, type[ArrayRecordFiles | TFRecordReaders]] = {
    "array_record": ArrayRecordFiles,
    "tfrecord": TFRecordReaders,
}

#: The files that the library needs in a data set's folder.
_DESCRIPTIONS = ("dataset_info.json", "features.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TfdsSettings:
    """Further settings of a stream with source = "tfds"."""

    folder: str = setting(
        text, "the folder of a prepared data set, such as tensorflow_datasets/mnist/3.0.1, or its URL"
    )
    split: str = setting(text, "the split, or a part of it, such as train[:90%]")
    keys: tuple[str, ...] = setting(texts, "the features to read; left out: all of them", default=())
    any_size: tuple[str, ...] = any_size_keys()

    @property
    def source(self) -> str:
        """Return the name of the data set for messages: its folder, and the split in parentheses."""
        return f"{self.folder} ({self.split})"


class TfdsSource(MapStyleSource):
    """Source of the samples of one split.

    Index columns: those of a map-style class, a run for each feature whose bytes can be used as they are, and a digest
    of each record.
    """

    Settings = TfdsSettings  # type: ignore[assignment]
    piece_rows = 256
    settings: TfdsSettings  # type: ignore[assignment]

    @functools.cached_property
    def _data(self) -> PreparedItems:
        return PreparedItems(self.settings, self.files)

    def stamp(self) -> str:
        """Return a text that changes with any of the split's files, or with those that describe the data set.

        Raise a DataError if the data set cannot be used, a ReadError if its store cannot be asked, and a SettingsError
        for an unknown key or if the library is missing.
        """
        described = [joined(self.settings.folder, name) for name in _DESCRIPTIONS]
        return self.files.stamp(described + self._data.paths)

    def probe(self, piece: ItemPiece) -> Found:
        """Decode these samples with the library, and note digests and where plain features lie.

        Samples that cannot be used become bad rows. Raise a DataError if a sample's keys, dtypes or shapes differ from
        those of the first usable one or a file is not whole, a ReadError for a record that is damaged
        or cannot be read, and a MachineError if memory or descriptors run out twice with too little free. Errors of
        `_plain_runs` and, as samples are made a second time here, of the library pass through.
        """
        found = super().probe(piece)
        forms, runs, digests = _forms(self._first_sample()), list[list[int]](), list[int]()
        # Only a comparison of each record's bytes with what the library makes of them shows that no feature is encoded.
        for item in found.rows:
            raw = self._data.read(item)
            digests.append(signed_digest(raw))
            runs.append(_plain_runs(forms, raw, self._sample(item)))
        columns = np.array(runs, np.int64).reshape(len(runs), len(forms)).T
        plain = {f"run_{form.key}": column for form, column in zip(forms, columns, strict=True)}
        return replace(found, numbers={**found.numbers, **plain, "digest": digests})

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the fields, and the forms of all features; no forms if a feature of any record needs the library.

        There are none either without a usable sample. Raise a ReadError if a record up to the first usable one is
        damaged, a DataError if its file is not whole, and a MachineError if memory or descriptors run out twice with
        too little free. SettingsError of `_first_sample` passes through.
        """
        about = super().conclude(numbers)
        shapes = {field["key"]: tuple(field["shape"]) for field in about["fields"]}
        # The first sample tells which axes there are, the fields which of them vary from sample to sample.
        forms = [replace(form, shape=shapes.get(form.key, ())) for form in _forms(self._first_sample())]
        # All or nothing: a record with one feature for the library has to be decoded by it anyway.
        # Values that differ along two axes are left to the library as well: a list of numbers does not tell its rows.
        may_be_plain = bool(forms) and not any(None in form.shape[1:] for form in forms)
        are_plain = may_be_plain and all((numbers[f"run_{form.key}"] != _UNLIKE).all() for form in forms)
        return {**about, "forms": {form.key: str(form) for form in forms} if are_plain else {}}

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if the data set has changed since, or cannot be used any more.

        Raise a SettingsError for a key that the data set lacks, or if a library is missing, and a ReadError if its
        store cannot be asked.
        """
        super().open(indexed)
        # An index from before features were taken from bytes has no forms: then the library decodes.
        self._plain = ExampleDecoder(parsed_forms(indexed.about.get("forms", {}).items()))

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the files of these samples, if they are remote.

        Raise a DataError if such a file is gone when it is first looked at, a ReadError if its store cannot be asked,
        and a SettingsError if the store's library is missing.
        """
        if self.files.are_remote:
            self.files.expect_local(self._data.files_of(self._items[samples].tolist()))

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each record; raise a ReadError if it is damaged or its digest is not the indexed one.

        Raise an IndexError if a sample's number is out of range. Errors of opening a file pass through: a DataError if
        it is no whole ArrayRecord file, a ReadError if it cannot be fetched, and an OSError if it cannot be opened.
        """
        known = self.all_checked(samples)
        digests = self.indexed.numbers["digest"][known].tolist()
        for item, digest in zip(self._items[known].tolist(), digests, strict=True):
            raw = self._data.read(item)
            if signed_digest(raw) != digest:
                raise changed("the record that was indexed", "other bytes", self._named(item))
            yield raw

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the features by key: from their indexed places, or else decoded by the library.

        Raise an IndexError if the sample's number is out of range, and a SampleError if the library gives a value of an
        unusable dtype. Errors of the library or of `ExampleDecoder.decode` pass through for bytes that are not the
        indexed ones.
        """
        item = int(self._items[self.checked(sample)])
        if not self._plain.forms:
            return {key: self._value(key, value, item) for key, value in self._data.decoded(raw).items()}
        values = self._plain.decode(raw, self.indexed.numbers, sample)
        # A single number becomes an array without axes, as the library gives it.
        return {key: value if isinstance(value, str) else np.array(value) for key, value in values.items()}

    @property
    def gathers(self) -> bool:
        """Return whether whole batches are written from records: only if all features are plain and all files local."""
        return bool(self._plain.forms) and not self.files.are_remote

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the numeric features of these records that `out` has, byte for byte what decoding would give.

        Raise what `read` raises: a ReadError if a record is damaged or not the indexed one, a DataError if its file is
        not whole, and an IndexError if a sample's number is out of range.
        """
        self._plain.gather(
            self.indexed.numbers, samples, [(raw, 0, len(raw)) for raw in self.read(samples.tolist())], out
        )

    def identity(self, sample: int) -> str:
        """Return the data set's folder and the record's digest; raise an IndexError if the number is out of range."""
        number = int(self.indexed.numbers["digest"][self.checked(sample)])
        return f"{self.settings.folder}, a record of digest {digest_of_number(number)}"

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the module of this class alone, because there is no user code."""
        return (type(self).__module__,)

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the version of the library, because it decodes; raise a SettingsError if it is missing."""
        return {"tensorflow-datasets": str(_tfds().__version__)}

    def close(self) -> None:
        """Drop the open files, if any; each is closed when its last reader is done with it."""
        if "_data" in self.__dict__:
            self._data.close()
        super().close()


class PreparedItems:
    """The samples of a split, with the interface of a map-style class.

    Making it reads the descriptions: raise what `_info` and `_chosen` raise, and a DataError if a file of the split is
    absent or a ReadError if its store cannot be asked.
    """

    def __init__(self, settings: TfdsSettings, files: Files) -> None:
        info = _info(files, settings)
        self._records: ArrayRecordFiles | TFRecordReaders = _READERS[info.file_format.value](files)
        #: The library's instructions: how many records to skip and to take of each file that the split lies in.
        self._parts = [part for part in info.splits[settings.split].file_instructions if part.take]
        #: The number of records of the split up to the end of each part.
        self._ends = list(accumulate(part.take for part in self._parts))
        self._features = _chosen(info.features, settings)
        #: The files that the split lies in.
        self.paths = [str(part.filename) for part in self._parts]
        # The library knows the files only beside the descriptions, which lie in a temporary folder here.
        if is_url(settings.folder):
            self.paths = [joined(settings.folder, Path(path).name) for path in self.paths]
        sizes = [files.facts(path).bytes for path in self.paths]
        self._fingerprint = f"{info.full_name}, {settings.split}: {self._ends} records in files of {sizes} bytes"

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, item: int) -> dict[str, Any]:
        return self.decoded(self.read(item))

    def fingerprint(self) -> str:
        """Return a text that changes when the data set does.

        It has the data set's name, version and split, the record counts of its parts, and the sizes of its files.
        """
        return self._fingerprint

    def files_of(self, items: Iterable[int]) -> dict[str, None]:
        """Return the files that hold these records as the keys of a dict, each once, in order of first use."""
        return dict.fromkeys(self.paths[bisect_right(self._ends, item)] for item in items)

    def read(self, item: int) -> bytes:
        """Return the bytes of a record of the split; raise a ReadError if it is damaged or its file cannot be fetched.

        Raise a DataError if the file is not whole, an OSError if it cannot be opened, and an IndexError
        if `item` is beyond the last record. SettingsError of `read` and MachineError of `ArrayRecordFiles` pass
        through.
        """
        # A split such as train[:90%] may begin and end within files: `skip` is the number of records before it.
        place = bisect_right(self._ends, item)
        part = self._parts[place]
        return self._records[self.paths[place]].read(part.skip + item - (self._ends[place] - part.take))

    def decoded(self, raw: bytes) -> dict[str, Any]:
        """Return the features of a record; nested ones are named by path, such as `speaker/age`.

        The library's errors for bytes that it cannot decode pass through.
        """
        return dict(_flat("", self._features, self._features.deserialize_example_np(raw)))

    def close(self) -> None:
        """Drop the open files; each is closed when its last reader is done with it."""
        self._records.close()


def _forms(sample: Mapping[str, Any]) -> tuple[FeatureForm, ...]:
    """Return the forms of a sample's values, or () if any of them is neither an array nor a text, or there are none.

    The first axis of an array may have any size in its form.
    """
    forms = []
    for key, value in sample.items():
        if isinstance(value, np.ndarray):
            forms.append(FeatureForm(key, str(value.dtype), (None, *value.shape[1:]) if value.ndim else ()))
        elif isinstance(value, str):
            forms.append(FeatureForm(key, "text"))
        else:
            return ()
    return tuple(forms)


def _plain_runs(forms: Sequence[FeatureForm], raw: bytes, sample: Mapping[str, Any]) -> list[int]:
    """Return the packed run of each feature, or _UNLIKE if its bytes do not decode to the library's value.

    If the record cannot be parsed, that holds for all features. Raise MalformedExample if an integer has more than 10
    bytes.
    """
    try:
        features = features_of(raw)
    except MalformedExample:
        return [_UNLIKE] * len(forms)
    return [
        packed_run(features.get(form.key)) if _is_like(form, raw, features, sample[form.key]) else _UNLIKE
        for form in forms
    ]


def _is_like(form: FeatureForm, raw: bytes, features: Features, value: Any) -> bool:
    """Return whether the feature, decoded from the record's bytes, equals the library's value exactly.

    Return False if the bytes do not fit the form; raise MalformedExample if an integer has more than 10 bytes.
    """
    try:
        own = form.value(raw, features.get(form.key))
    except UnfitFeature:
        return False
    if isinstance(value, str) or isinstance(own, str):
        return bool(own == value)
    # Bytes are compared, not values, so that NaN equals itself, and 0.0 is not -0.0.
    array = np.asarray(own)
    return (array.dtype, array.shape, array.tobytes()) == (value.dtype, value.shape, value.tobytes())


def _flat(path: str, features: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path and the plain value of each nested feature; a path is the keys joined by "/", behind `path`.

    Raise a UnicodeDecodeError for a text that is not UTF-8.
    """
    for key, feature in features.items():
        if isinstance(values[key], Mapping):
            yield from _flat(f"{path}{key}/", feature, values[key])
        else:
            yield path + key, _plain(feature, values[key])


def _plain(feature: Any, value: Any) -> Any:
    """Return a text as a string, other bytes as they are, and anything else as an array of the feature's dtype.

    Empty lists get the dtype too; without it, numpy would make them floats. Raise a UnicodeDecodeError for a text that
    is not UTF-8.
    """
    if isinstance(value, bytes):
        return value.decode() if type(feature).__name__ == "Text" else value
    return np.asarray(value, feature.np_dtype)


def _chosen(features: Any, settings: TfdsSettings) -> Any:
    """Return the features named in `keys`, or all; raise a SettingsError for an unknown key.

    Raise it too if the library is missing.
    """
    unknown = sorted(set(settings.keys) - set(features))
    if unknown:
        raise SettingsError(
            expected=f"keys out of {', '.join(sorted(features))}",
            got=unknown[0],
            where=f'source = "tfds", {settings.folder}',
            remedy="Name features of the data set in `keys`, or leave it out.",
        )
    return _tfds().features.FeaturesDict({key: features[key] for key in settings.keys or features})


def _info(files: Files, settings: TfdsSettings) -> Any:
    """Return the library's description of the data set.

    Raise a DataError if the folder holds no prepared data set, the split is unknown, or the files are of another kind;
    raise a ReadError if the descriptions cannot be fetched, and a SettingsError if the library is missing.
    """
    tfds, where = _tfds(), files.where(settings.folder)
    for name in _DESCRIPTIONS:  # raises for a named pipe, on which the library would block
        files.path(joined(settings.folder, name))
    try:
        with _descriptions(files, settings.folder) as folder:
            info = tfds.builder_from_directory(folder).info
        _ = info.splits[settings.split].file_instructions
    except (OSError, ValueError, KeyError, AssertionError, tfds.core.dataset_info.DatasetInfoFileError) as error:
        raise DataError(
            expected=f"a data set that TensorFlow Datasets prepared, with the split {settings.split}",
            got=" ".join(str(error).split())[:300],
            where=where,
            remedy="Name the folder with dataset_info.json and features.json in it, and one of its splits.",
        ) from None
    if info.file_format is None or info.file_format.value not in _READERS:
        raise DataError(
            expected="a data set in TFRecord or ArrayRecord files",
            got=f"one in {info.file_format.value if info.file_format else 'unknown'} files",
            where=where,
            remedy='Prepare it with file_format="array_record".',
        )
    return info


@contextlib.contextmanager
def _descriptions(files: Files, folder: str) -> Iterator[str]:
    """Yield a local folder with the files that describe the data set; remote ones are downloaded first.

    The folder of downloaded ones is removed at the end of the block. Raise a DataError if a remote one is absent, a
    ReadError if it cannot be fetched, and an OSError if the copy cannot be written. SettingsError of `open` passes
    through.
    """
    if not is_url(folder):
        yield files.where(folder)
        return
    with tempfile.TemporaryDirectory() as here:
        for name in _DESCRIPTIONS:
            with files.open(joined(folder, name)) as file:
                Path(here, name).write_bytes(file.read())
        yield here


def _tfds() -> Any:
    return library(
        "tensorflow_datasets",
        extra="tfds",
        use="which reads the data sets that it prepared",
        where='source = "tfds"',
    )
