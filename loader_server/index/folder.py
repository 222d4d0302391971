"""The index: made once from a source; planner and source work from it.

A folder with `meta.json` and a folder of columns that it names. Rules: columns are written and synced under a name that
nothing refers to, then `meta.json` is replaced: a crash leaves the old index or the new one. One indexer at a time. The
bytes do not depend on the number of processes. Opening maps files and reads nothing for each sample.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.index.column_files import file_of, mapped, open_strings
from loader_server.sources.sample_limits import LARGEST_SAMPLE, OVER_LARGEST
from loader_server.sources.source import Indexed
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.settings.parsers import settings_that_count
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.transforms.chain import Chain

__all__ = ["FORMAT", "Index", "Meta", "columns_fingerprint", "fields_in", "meta_json", "open_index", "read_meta"]

#: The format's version; raise it whenever the meaning of the folder's content changes.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The content of `meta.json`.

    `recipe` is that of the transforms that samples went through while indexing, or empty; `about` holds further facts
    of the source; `made_from` is a fingerprint of everything that the index was made from, or empty if changes cannot
    be noticed.
    """

    format: int
    source: str
    settings: dict[str, Any]
    #: The files that the source was made from, with what tells whether they changed.
    origin: list[dict[str, Any]]
    #: The name of the folder of columns; replacing `meta.json` with one that names another is the commit.
    folder: str
    samples: int
    #: Names of columns; those of measured lengths are keys, whose files are numbered in this order.
    numbers: list[str]
    strings: list[str]
    measured: list[str]
    fields: list[dict[str, Any]]
    recipe: str
    #: Rows left out, by reason.
    bad: dict[str, int]
    fingerprint: str
    about: dict[str, Any]
    made_from: str = ""
    #: The most bytes that a decoded sample may have; 0: no limit.
    largest_sample: int = LARGEST_SAMPLE


#: Our own keys of `meta.json`. Any other key is the source's: earlier releases wrote its facts at the top level, not
#: under `about`.
_OWN = tuple(field.name for field in fields(Meta) if field.name != "about")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An open index: the source's columns, and the lengths and fields measured after undeclared transforms.

    `meta.bad` counts the rows left out.
    """

    folder: Path
    meta: Meta
    #: What the source gets when it is opened: its own columns, mapped.
    indexed: Indexed
    #: Lengths after undeclared transforms, by key, and the fields that these gave; empty if all declare theirs.
    measured: Mapping[str, NDArray[np.int64]]
    fields: tuple[Field, ...]

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of all columns and the source's settings."""
        return self.meta.fingerprint

    @property
    def samples(self) -> int:
        """Return how many samples the index has, by its `meta.json`; rows that are bad are not among them."""
        return self.meta.samples

    def measured_lengths(self, chain: Chain) -> Mapping[str, NDArray[np.int64]]:
        """Return the lengths of all samples, by key, that were measured for padded fields; none if all are declared.

        Raise a DataError if the lengths were measured with another chain.
        """
        self._refuse_other_chain(chain)
        return self.measured

    def bound(self, chain: Chain) -> Chain:
        """Return the chain as it is if all its fields are declared, or a copy with those found while indexing.

        Raise a DataError if the fields were found with another chain.
        """
        if not chain.measured:
            return chain
        self._refuse_other_chain(chain)
        return chain.bound(self.fields)

    def refuse_other_source(self, source: str, settings: Any) -> None:
        """Raise a DataError if the index was made with another source, or another value of a setting that counts."""
        # Through JSON, as the index's settings went: tuples have become lists there.
        wanted = json.loads(json.dumps({"source": source, **settings_that_count(settings)}))
        indexed = {"source": self.meta.source, **self.meta.settings}
        self._refuse_unless(
            indexed == wanted,
            expected=f"an index made with {_listed(wanted)}",
            got=f"one made with {_listed(indexed)}",
            remedy="The stream's source has changed: run loader-server index.",
        )

    def refuse_lacking(self, columns: frozenset[str]) -> None:
        """Raise a DataError if the index lacks one of these columns; an index without samples passes."""
        lacking = sorted(columns - {*self.meta.numbers, *self.meta.strings})
        self._refuse_unless(
            not lacking or not self.samples,
            expected=f"an index with the columns {', '.join(sorted(columns))}",
            got=f"one without {', '.join(lacking)}",
            remedy="It was made by another version, or for another job file: run loader-server index.",
        )

    def refuse_other_limit(self, largest: int) -> None:
        """Raise a DataError if the index was made with another limit on the size of decoded samples.

        If recordings are cut now, so that there is no limit (0), an index made with one is good unless it left out rows
        for their size. An index made without a limit lacks nothing; a sample that is too large is refused when it is
        decoded.
        """
        limit = self.meta.largest_sample
        shows_in_rows = largest or OVER_LARGEST in self.meta.bad
        self._refuse_unless(
            largest == limit or not limit or not shows_in_rows,
            expected=f"an index made with largest_sample = {_limit(largest)}",
            got=f"one made with {_limit(limit)}",
            remedy="[job] has changed, or whether recordings are cut: run loader-server index.",
        )

    def refuse_other_trial(self, chain: Chain) -> None:
        """Raise a DataError if transforms that may refuse samples are not those that samples were tried with."""
        self._refuse_unless(
            chain.index_recipe == self.meta.recipe,
            expected="an index without the samples that the transforms refuse",
            got="one made with other transforms, or with other settings of these",
            remedy="Run loader-server index.",
        )

    def _refuse_other_chain(self, chain: Chain) -> None:
        self._refuse_unless(
            chain.recipe == self.meta.recipe,
            expected="an index whose lengths were measured with these transforms",
            got="one measured with others" if self.meta.recipe else "one without measured lengths",
            remedy="Run loader-server index, or declare the transforms with @transform(…).",
        )

    def _refuse_unless(self, holds: object, *, expected: str, got: str, remedy: str) -> None:
        """Raise a DataError with these words and the index's folder unless the condition holds."""
        if not holds:
            raise DataError(expected=expected, got=got, where=str(self.folder), remedy=remedy)


def _limit(largest: int) -> str:
    return f'"{largest} B"' if largest else "no limit, as recordings are cut"


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items())


def open_index(folder: Path) -> Index:
    """Return the open index of a folder; raise a DataError if there is none, or one of another format, or damaged.

    Errors of `fields_in` pass through.
    """
    meta = read_meta(folder)
    columns = folder / meta.folder
    try:
        indexed = Indexed(
            samples=meta.samples,
            numbers={name: mapped(columns / file_of(name)).view(np.int64) for name in meta.numbers},
            strings={name: open_strings(columns, name) for name in meta.strings},
            origin=meta.origin,
            about=meta.about,
            fingerprint=meta.fingerprint,
            place=folder,
        )
        return Index(
            folder=folder,
            meta=meta,
            indexed=indexed,
            measured={
                key: mapped(columns / f"measured_{place}.npy").view(np.int64) for place, key in enumerate(meta.measured)
            },
            fields=fields_in(meta.fields),
        )
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from None


def fields_in(facts: Iterable[Mapping[str, Any]]) -> tuple[Field, ...]:
    """Return fields that were written as JSON, with lists as shapes; raise KeyError or TypeError for malformed ones."""
    return tuple(Field(**{**field, "shape": tuple(field["shape"])}) for field in facts)


def read_meta(folder: Path) -> Meta:
    """Return the content of `meta.json`; raise a DataError if there is none, or one of another format, or damaged."""
    try:
        facts = json.loads((folder / "meta.json").read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(expected="an index", got="none", where=str(folder), remedy="Run loader-server index.") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from None
    version = facts.get("format") if isinstance(facts, dict) else "none"
    if version != FORMAT:
        raise DataError(
            expected=f"an index of format {FORMAT}",
            got=f"format {version}",
            where=str(folder),
            remedy="It was made by another version: run loader-server index.",
        )
    # A key that is missing gets its default or, without one, makes `Meta` raise TypeError.
    own = {name: facts.pop(name) for name in _OWN if name in facts}
    about = facts.pop("about", {})
    try:
        return Meta(**own, about={**facts, **about})
    except TypeError as error:
        raise _damaged(folder, error) from None


def _damaged(folder: Path, error: Exception) -> DataError:
    remedy = "It is damaged: run loader-server index."
    if isinstance(error, PermissionError):
        remedy = "Let this user read it (chown, chmod), or run as the user that it belongs to."
    return DataError(expected="a whole index", got=str(error), where=str(folder), remedy=remedy)


def columns_fingerprint(columns: Path, settings: str, local: frozenset[str]) -> str:
    """Return the fingerprint of all columns except `local` ones, so that copies of a data set share it.

    Raise an OSError if a column cannot be opened, and a ValueError if one is damaged, or empty.
    """
    # Sorted, because a file system lists names in an order of its own.
    files = sorted(file for file in columns.glob("*.npy") if file.name.removesuffix(".npy") not in local)
    parts = (part for file in files for part in (file.name, mapped(file).view(np.uint8).data))
    return fingerprint(settings, *parts)


def meta_json(meta: Meta) -> str:
    """Return the content of `meta.json`, with sorted keys so that equal facts give equal bytes.

    Raise a TypeError if `about` or another fact has a value that JSON cannot hold.
    """
    return json.dumps(asdict(meta), indent=1, ensure_ascii=False, sort_keys=True)
