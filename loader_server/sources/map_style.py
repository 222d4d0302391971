"""A user's own map-style class as a source: `__len__` and `__getitem__`, as written for PyTorch.

`__getitem__` gives a dict of arrays, numbers and strings, or a tuple whose values the setting `keys` names. In
addition, a class may have

- `lengths()`, a mapping from keys to one whole number a sample: then no sample is looked at while indexing, and these
  keys are the padded ones; `<key>_width` has the lengths along a second axis that varies as well;
- `fingerprint()`, a text that changes when the data does;
- `identity(i)`, a text that stays the same for as long as sample i does.

Rules: each process makes the class from its name and its arguments; it is never pickled. Only one thread at a time
calls it, the one that decodes. Without `lengths()`, indexing looks at every sample once, and a key whose first axis
varies is padded; a key that `any_size` names is padded along its first two axes. A key that is missing, or has another
dtype or shape than before, is an error that names the sample's number. Values that are neither arrays nor numbers, such
as strings, go to the transforms only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loader_server.named_objects import import_named
from loader_server.sources.any_size import any_size_keys, refuse_unknown_keys
from loader_server.sources.blame import error_text, undecoded
from loader_server.sources.sample_kinds import fields_of_sample, has_axes, has_length, kinds_of_sample, shown_kind
from loader_server.sources.sample_limits import look_twice
from loader_server.sources.source import BadRow, Found, Indexed, Inventory, Source
from shared.errors import DataError, SampleError, SettingsError, StokerError
from shared.settings.parsers import setting, text, texts
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

__all__ = ["ItemPiece", "MapStyleSettings", "MapStyleSource"]

_Values: TypeAlias = dict[str, Any]

#: Types of values that go to the transforms as they are, although numpy would make arrays of them.
_NO_ARRAYS = (str, bytes, Mapping, type(None))
#: Limit of a sample's length, as far as messages count.
_LONGEST = 2**48


def _keyword_arguments(value: object) -> dict[str, Any]:
    """Return a table of plain values with sorted keys, so that their order in the job file does not matter.

    Raise a SettingsError if the value is not a table, or JSON cannot hold it.
    """
    try:
        plain = json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        plain = None
    if not isinstance(plain, dict):
        raise SettingsError(
            expected="a table of strings, numbers, lists and tables",
            got=repr(value),
            where="arguments",
            remedy="Write [streams.<name>.arguments] and below it path = … .",
        )
    return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStyleSettings:
    """Settings of a stream with a user's own class."""

    source: str = setting(text, "a class with `__len__` and `__getitem__`, such as my_data:Digits")
    arguments: Mapping[str, Any] | None = setting(
        _keyword_arguments, "the keyword arguments that it is made with", default=None
    )
    keys: tuple[str, ...] = setting(texts, "names of the values, where `__getitem__` gives a tuple", default=())
    any_size: tuple[str, ...] = any_size_keys()


@dataclass(frozen=True, slots=True)
class ItemPiece:
    """Samples `start` to before `stop` of the class, with their lengths if the class has `lengths()`."""

    start: int
    stop: int
    lengths: Mapping[str, NDArray[np.int64]]


class MapStyleSource(Source):
    """Samples of a class. Columns: each sample's number in the class, and the lengths of its arrays and strings."""

    Settings = MapStyleSettings
    piece_rows = 16
    settings: MapStyleSettings

    #: The first usable sample, once it was looked for.
    _first: _Values | None = None
    #: The count and fingerprint that `open` compared last, so that opening piece after piece asks the class once.
    _checked: tuple[object, object] | None = None

    @cached_property
    def _data(self) -> Any:
        """Return the instance of the class, made on first use; raise a SettingsError if it cannot be made.

        An error of Stoker's own that the class raises passes.
        """
        return _made_from(self.settings)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields as the index has them; before there is one, those of the first usable sample.

        Then the first axis is padded for the keys that the class has lengths of, or for every array if it has no
        `lengths()`; there are no fields if the class has no samples. Raise a DataError if the class has samples, but
        none can be used; a ReadError or MachineError if the machine failed; a SettingsError if the class cannot be
        made. Errors of `_known_lengths` and an error of Stoker's own that the class raises pass.
        """
        if hasattr(self, "indexed"):
            return tuple(Field(**{**field, "shape": tuple(field["shape"])}) for field in self.indexed.about["fields"])
        first = self._first_sample()
        if not first and len(self._data):
            raise self._none_usable()
        self._refuse_any_size(first)
        padded = set(self._known_lengths() if self._has_lengths else first)
        return tuple(fields_of_sample(first, padded, self._wide(first)))

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return the sample count and the class's fingerprint of its data; "" if it has no fingerprint or an empty one.

        Raise a DataError if `fingerprint()` fails, or a SettingsError if the class cannot be made. An error of Stoker's
        own that making it raises passes.
        """
        fingerprint = self._fingerprint()
        return f"{len(self._data)} {fingerprint}" if fingerprint else ""

    def survey(self) -> Inventory:
        """Ask the class for its number of samples, and for their lengths if it has `lengths()`.

        Raise a DataError if `lengths()` or `fingerprint()` fails, or lengths are not a whole number of at least 0 for
        each sample; a SettingsError if the class cannot be made. Other errors of making the class pass.
        """
        items, lengths = len(self._data), self._known_lengths()

        def pieces(rows: int) -> Iterator[ItemPiece]:
            for start in range(0, items, rows):
                stop = min(start + rows, items)
                yield ItemPiece(start, stop, {key: column[start:stop] for key, column in lengths.items()})

        return Inventory(total=items, pieces=pieces, about={"data": self._fingerprint(), "items": items})

    def _wide(self, first: _Values) -> set[str]:
        """Return the keys that are padded along two axes: of `any_size`, or those of which `lengths()` has a width.

        Errors of `_known_lengths` pass.
        """
        known = self._known_lengths()
        with_widths = {key for key in first if has_axes(first[key], 2) and f"{key}_width" in known}
        return {key for key in self.settings.any_size if has_axes(first.get(key), 2)} | with_widths

    def _refuse_any_size(self, first: _Values) -> None:
        """Raise a SettingsError if `any_size` names no array of two axes, or one of which `lengths()` has no width.

        Errors of `_known_lengths` pass.
        """
        known = self._known_lengths()
        keys = [key for key, value in first.items() if has_axes(value, 2)]
        remedy = "Mend any_size, or name the key of an array with two axes or more."
        if self._has_lengths:
            keys = [key for key in keys if key in known and f"{key}_width" in known]
            remedy = "A class with lengths() gives those along both axes there, as <key> and <key>_width."
        if first:
            refuse_unknown_keys(self.settings.any_size, keys, f"{self.of_job.table}, {self.settings.source}", remedy)

    @property
    def _has_lengths(self) -> bool:
        return hasattr(self._data, "lengths")

    def _known_lengths(self) -> dict[str, NDArray[np.int64]]:
        """Return the class's lengths by key, or nothing if it has no `lengths()`.

        Raise a DataError if `lengths()` fails, or does not give a mapping with a whole number of at least 0 for each
        sample. Errors of making the class pass, such as a SettingsError.
        """
        lengths = self._ask("lengths") if self._has_lengths else {}
        if not isinstance(lengths, Mapping):
            raise self._wrong_lengths("a mapping of keys and lengths", f"a {type(lengths).__name__}")
        return {str(key): self._checked_lengths(str(key), column) for key, column in lengths.items()}

    def _checked_lengths(self, key: str, given: Any) -> NDArray[np.int64]:
        """Return the lengths of one key; raise a DataError unless each sample has a whole number of at least 0."""
        expected = f'a whole number of at least 0 for each of {len(self._data)} samples as lengths of "{key}"'
        try:
            column = np.asarray(given)
        except ValueError as error:  # lists in lists, not equally long
            raise self._wrong_lengths(expected, str(error)) from None
        if column.shape != (len(self._data),) or not np.issubdtype(column.dtype, np.integer):
            raise self._wrong_lengths(expected, f"{column.dtype} {list(column.shape)}")
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) <= _LONGEST:
            raise self._wrong_lengths(expected, f"numbers from {column.min()} to {column.max()}")
        return column.astype(np.int64)

    def _wrong_lengths(self, expected: str, got: str) -> DataError:
        return self._error(expected, got, "Mend lengths(), or remove it: then every sample is looked at.")

    def _fingerprint(self) -> str:
        return str(self._ask("fingerprint")) if hasattr(self._data, "fingerprint") else ""

    def _ask(self, method: str) -> Any:
        """Return what a method of the class returns without arguments; raise a DataError if it raises anything."""
        try:
            return getattr(self._data, method)()
        except Exception as error:  # a user's code may raise anything
            raise self._error(
                f"{method}() to succeed", error_text(error), "Mend it, or leave it out of the class."
            ) from error

    def probe(self, piece: ItemPiece) -> Found:
        """Return the lengths of these samples: from the class if it has `lengths()`, or by making each sample.

        Samples that are made and fail become bad rows. Raise a DataError if the keys, dtypes or shapes of a sample
        differ from those of the first usable one in more than the first axes; a ReadError or MachineError if the
        machine failed; a SettingsError if the class cannot be made. An error of Stoker's own that the class raises
        passes.
        """
        items = range(piece.start, piece.stop)
        if self._has_lengths:
            columns = {f"length_{key}": column for key, column in piece.lengths.items()}
            return Found(rows=items, numbers={"item": np.arange(piece.start, piece.stop), **columns})
        first, bad = self._first_sample(), dict[int, BadRow]()
        lengths: dict[str, list[int]] = {key: [] for key, value in first.items() if has_length(value)}
        widths: dict[str, list[int]] = {key: [] for key in sorted(self._wide(first))} if first else {}
        good: list[int] = []
        for item in items:
            sample = self._sample_or_bad(item)
            if isinstance(sample, BadRow):
                bad[item] = sample
            else:
                # An error, not a bad row: every sample has to have the fields of the first one.
                self._refuse_other_kinds(item, sample)
                good.append(item)
                for key, column in lengths.items():
                    column.append(len(sample[key]))
                for key, column in widths.items():
                    column.append(sample[key].shape[1])
        measured = lengths | {f"{key}_width": column for key, column in widths.items()}
        return Found(rows=good, numbers={"item": good} | {f"length_{key}": measured[key] for key in measured}, bad=bad)

    def _sample_or_bad(self, item: int) -> _Values | BadRow:
        """Return a sample, or a BadRow if it is unusable; raise a ReadError or MachineError if the machine failed.

        Other errors of Stoker's own that the class raises, such as a DataError or a SettingsError, pass as well; a
        SampleError makes a BadRow.
        """
        try:
            return look_twice(lambda: self._sample(item), self.of_job.largest_sample, lambda: self._named(item))
        except SampleError as error:
            problem: SampleError = error
        except StokerError:
            raise
        except Exception as error:  # a user's code may raise anything
            found = undecoded(error, self._named(item))
            if not isinstance(found, SampleError):
                raise found from error
            problem = found
        return BadRow(self.settings.source, item, problem.reason, f"expected {problem.expected}, got {problem.got}")

    def _first_sample(self) -> _Values:
        """Return the first usable sample, which all others have to match; an empty dict if there is none.

        Raise a ReadError or MachineError if the machine failed. Raise a SettingsError if the class cannot be made. An
        error of Stoker's own that the class raises passes.
        """
        if self._first is None:
            # Samples before it are bad rows: they must not decide what all others have to look like.
            samples = (self._sample_or_bad(item) for item in range(len(self._data)))
            self._first = next((sample for sample in samples if not isinstance(sample, BadRow)), {})
        return self._first

    def _none_usable(self) -> DataError:
        """Return the error for a class without usable samples, with what is wrong with the first one.

        Raise a ReadError or MachineError if the machine fails while that one is made. An error of Stoker's own that the
        class raises passes.
        """
        bad = self._sample_or_bad(0)
        return self._error(
            "a sample that can be used",
            f"none of {len(self._data)}; of the first one: {bad.detail if isinstance(bad, BadRow) else 'no value'}",
            "Mend the class: a sample is a dict of arrays, numbers and strings, or a tuple, whose values are named by "
            'keys = ["…", "…"] in the job file.',
        )

    def _refuse_other_kinds(self, item: int, sample: _Values) -> None:
        """Raise a DataError if a sample differs from the first usable one in keys, dtypes or shapes.

        First axes may differ. Raise a ReadError or MachineError if the machine fails while the first one is made. An
        error of Stoker's own that the class raises passes.
        """
        first = self._first_sample()
        wide = self._wide(first)
        expected, got = kinds_of_sample(first, wide), kinds_of_sample(sample, wide)
        for key in (*expected, *got):
            if key not in got or key not in expected or got[key] != expected[key]:
                raise DataError(
                    expected=f"{shown_kind(key, expected)}, as the samples before",
                    got=shown_kind(key, got),
                    where=self._named(item),
                    remedy="Every sample has the same keys, dtypes and shapes, but for first axes: mend the class"
                    + (f', or write any_size = ["{key}"].' if has_axes(sample.get(key), 2) else "."),
                )

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the fields: padded are the keys that the class has lengths of, or else those whose lengths differ.

        They stand under "fields" as plain tables. Raise a DataError if the class has lengths of a key that is neither
        an array with axes nor a string; a ReadError or MachineError if the machine failed; a SettingsError if the class
        cannot be made. An error of Stoker's own that the class raises passes.
        """
        first, padded = self._first_sample(), set()
        for name, lengths in numbers.items():
            if name.startswith("length_") and (self._has_lengths or (lengths != lengths[0]).any()):
                padded.add(name.removeprefix("length_"))
        wide = self._wide(first)
        padded = (padded | wide) - {f"{key}_width" for key in wide}
        self._refuse_lengths_of_nothing(padded, first)
        return {"fields": [asdict(field) for field in fields_of_sample(first, padded, wide)]}

    def _refuse_lengths_of_nothing(self, padded: AbstractSet[str], first: _Values) -> None:
        """Raise a DataError if a padded key is neither an array with axes nor a string in the first usable sample."""
        keys = sorted(key for key, value in first.items() if has_length(value))
        for key in sorted(padded - set(keys)):
            raise self._error(
                f"lengths() of keys that are arrays or strings ({', '.join(keys) or 'none'})",
                f'"{key}"',
                "Mend lengths(), or remove it: then every sample is looked at.",
            )

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index.

        Raise a DataError if the class's sample count or fingerprint has changed, or `fingerprint()` fails; a
        SettingsError if the class cannot be made, or an error of Stoker's own that making it raises. The class is asked
        once for each state of the data, not again for further pieces.
        """
        expected = (indexed.about["items"], indexed.about["data"])
        # Once for each state of the data: a process that measures lengths opens piece after piece, and a fingerprint
        # may take long.
        if self._checked != expected:
            got = (len(self._data), self._fingerprint())
            if got != expected:
                raise DataError(
                    expected=f'{expected[0]} samples, fingerprint "{expected[1]}", as when the index was made',
                    got=f'{got[0]} samples, fingerprint "{got[1]}"',
                    where=f"{self.settings.source}, index {indexed.place}",
                    remedy="The data has changed: run loader-server index.",
                )
            self._checked = expected
        self.indexed = indexed
        self._items = indexed.numbers["item"]

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:  # a class has no bytes to read
        """Return the sample that the class makes, with its arrays and numbers as new arrays.

        Raise a SampleError if it is neither a mapping nor a tuple or list that `keys` can name, or a value has an
        unusable dtype; an IndexError if the number is out of range. What the class raises, or making it, passes.
        """
        return self._sample(int(self._items[self.checked(sample)]))

    def name(self, sample: int) -> str:
        """Return the class's name and the sample's number in it, as one text; raise an IndexError if there is none."""
        return self._named(int(self._items[self.checked(sample)]))

    def place(self, sample: int) -> tuple[str, int]:
        """Return the class's name and the sample's number in it; whether the number is in range is not checked."""
        return self.settings.source, int(self._items[sample])

    def identity(self, sample: int) -> str:
        """Return the class's `identity` of the sample as text, or else its number and the index's fingerprint.

        What the class's `identity` raises passes, and so do errors of making the class.
        """
        if not hasattr(self._data, "identity"):
            return super().identity(sample)
        return str(self._data.identity(int(self._items[sample])))

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the module that the job file names, and the one that defines the class.

        Raise a SettingsError if the class is not there or cannot be imported.
        """
        target = import_named(self.settings.source, "a class", "source")
        return tuple(dict.fromkeys((self.settings.source.partition(":")[0], target.__module__)))

    def _named(self, item: int) -> str:
        return f"{self.settings.source}, sample {item}"

    def _error(self, expected: str, got: str, remedy: str) -> DataError:
        return DataError(expected=expected, got=got, where=self.settings.source, remedy=remedy)

    def _sample(self, item: int) -> _Values:
        """Return a sample as a dict of new arrays and of other values as they are.

        Raise a SampleError if the class gives no mapping, and no tuple or list of as many values as `keys` has, or if a
        value has an unusable dtype. What the class raises passes.
        """
        given = self._data[item]
        if isinstance(given, tuple | list) and len(given) == len(self.settings.keys):
            given = dict(zip(self.settings.keys, given, strict=True))
        if not isinstance(given, Mapping):
            keys = f"a tuple of {len(self.settings.keys)} values" if self.settings.keys else "a dict, or keys = […]"
            values = f" of {len(given)}" if isinstance(given, tuple | list) else ""
            raise self._bad("structure", keys, f"a {type(given).__name__}{values}", item)
        return {str(key): self._value(key, value, item) for key, value in given.items()}

    def _value(self, key: str, value: Any, item: int) -> Any:
        """Return a new array; a string, bytes, mapping or None as it is.

        Raise a SampleError for a dtype that batches cannot have, and for lists of unequal lengths. Other errors of
        numpy pass.
        """
        if isinstance(value, _NO_ARRAYS):
            return value
        try:
            array = np.array(value)  # a copy, so that a transform's changes in place do not reach the class
            dtype = str(array.dtype)
        except ValueError:  # numpy refuses lists of unequal lengths
            dtype = "values of unequal lengths"
        if dtype not in DTYPES:
            raise self._bad("dtype", f'"{key}" of a dtype of {", ".join(sorted(DTYPES))}', dtype, item)
        return array

    def _bad(self, reason: str, expected: str, got: str, item: int) -> SampleError:
        return SampleError(
            reason=reason,
            expected=expected,
            got=got,
            where=self._named(item),
            remedy="Mend the class, or name the keys.",
        )


def _made_from(settings: MapStyleSettings) -> Any:
    """Make an instance of the user's class.

    Raise a SettingsError if the class cannot be imported or made, its `__len__` raises, or it lacks `__len__` or
    `__getitem__`. An error of Stoker's own that its code raises passes as it is.
    """
    made = import_named(settings.source, "a class", "source")
    try:
        data = made(**(settings.arguments or {}))
        if hasattr(data, "__len__"):
            len(data)
    except StokerError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise SettingsError(
            expected=f"{settings.source} to be made from its arguments",
            got=error_text(error),
            where="[streams.<name>.arguments]",
            remedy="Mend the arguments, or the class.",
        ) from error
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise SettingsError(
            expected="a class with __len__ and __getitem__",
            got=f"a {type(data).__name__} that lacks one of them",
            where=settings.source,
            remedy="Samples are asked for by number: give it both.",
        )
    return data
