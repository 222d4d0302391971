"""An additional source from which a transform draws recordings: noises, impulse responses.

Rules: it is configured by a table, as a stream's source is; its rows are read when it is opened and kept in memory, so
it suits thousands of recordings, not millions; a bad row is an error, because nobody would count it. It is identified
by its content: the columns that make an index's fingerprint.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.registry import SourceSpec, dotted_name, source_class
from loader_server.sources.source import Indexed
from shared.errors import DataError, SettingsError
from shared.hashing import fingerprint
from shared.settings.parsers import setting, text
from shared.settings.tables import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from loader_server.sources.files.file_facts import FilePlaces
    from loader_server.sources.source import BadRow, Found, Inventory, Source

__all__ = ["SideSource", "SourceName", "side_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceName:
    """The name of the source in its table, next to the source's own settings."""

    source: str = setting(text, "the kind of source")


@dataclass(frozen=True, slots=True)
class SideSource:
    """A source as a job file configures it; two are equal if their settings and folders are."""

    #: The table as JSON with sorted keys: settings have to be hashable, and equal whatever their order.
    table: str
    #: The folder that its paths start from, and a cache for remote files; None until a job file is opened.
    places: FilePlaces | None = None

    def at(self, places: FilePlaces) -> SideSource:
        """Return the same source with a folder that its paths start from, and a cache for remote files."""
        return replace(self, places=places)

    def digest(self, where: str) -> str:
        """Return a hash of its settings, its columns and the versions that decode it.

        Columns that differ between copies do not count. Raise what `open` raises, and what the source's `versions`
        does.
        """
        source = self.open(where)
        try:
            # By content, like an index's fingerprint: a copy of the data on another machine gives the same digest.
            columns = {**source.indexed.numbers, **source.indexed.strings}
            facts = (f"{name} {_values(columns[name])}" for name in sorted(columns.keys() - source.local_columns))
            return fingerprint(self.table, repr(sorted(source.versions.items())), *facts)
        finally:
            source.close()

    def open(self, where: str) -> Source:
        """Return the source, open for reading.

        Raise a DataError if its data set cannot be used, or it has a bad row or no good one; raise a SettingsError if
        its kind is unknown or its settings are wrong. Other errors of the source pass, such as an OSError if the disk
        fails.
        """
        assert self.places is not None, "settings that were read have a folder"
        source = _spec(json.loads(self.table), self.places, where).make()
        try:
            # Looked at anew by each process: nobody indexes it, and a bad row among noises would be counted nowhere.
            inventory = source.survey()
            parts = [source.probe(piece) for piece in inventory.pieces(source.piece_rows)]
        except DataError as error:
            raise DataError(
                expected=error.expected, got=error.got, where=f"{where}, {error.where}", remedy=error.remedy
            ) from error
        _refuse_bad([row for part in parts for row in part.bad.values()], sum(len(part.rows) for part in parts), where)
        source.open(_indexed(source, inventory, [part for part in parts if len(part.rows)], self.places.base))
        return source


def side_source(value: object) -> SideSource:
    """Return the side source that a table configures.

    Raise a SettingsError if the value is not a table, its `source` is missing or no string, or JSON cannot hold the
    table, as if it has a date; nothing else is looked at yet.
    """
    with contextlib.suppress(TypeError):  # json has no dates, which TOML has
        if isinstance(value, dict) and isinstance(value.get("source"), str):
            return SideSource(json.dumps(value, sort_keys=True))
    raise SettingsError(
        expected="a table with a source and its settings",
        got=repr(value),
        where="recordings",
        remedy='Write for instance { source = "manifest", paths = ["noises.csv"] }.',
    )


def _spec(table: Mapping[str, Any], places: FilePlaces, where: str) -> SourceSpec:
    name = str(table["source"])
    _, own = read_tables((SourceName, source_class(name, where).Settings), table, where)
    return SourceSpec(
        name=name,
        dotted=dotted_name(name, where),
        settings=own,
        base=places.base,
        where=f"{where} ({name})",
        cache=places.cache,
    )


def _refuse_bad(bad: list[BadRow], good: int, where: str) -> None:
    """Raise a DataError if there is a bad row, or no good one."""
    if bad or not good:
        shown = "".join(f"; {row.where}, line {row.line}: {row.reason}: {row.detail}" for row in bad[:3])
        raise DataError(
            expected="recordings that can all be used",
            got=f"{len(bad)} bad rows and {good} good ones{shown}",
            where=where,
            remedy="Mend or remove the bad rows." if bad else "Name a source that has some.",
        )


def _indexed(source: Source, inventory: Inventory, parts: list[Found], base: Path) -> Indexed:
    """Return what an index would hold, from all parts that have good rows, of which there is at least one.

    Raise what the source's `conclude` raises, such as a DataError.
    """
    numbers = {
        name: np.concatenate([np.asarray(part.numbers[name], np.int64) for part in parts]) for name in parts[0].numbers
    }
    return Indexed(
        samples=sum(len(part.rows) for part in parts),
        numbers=numbers,
        strings={name: [text for part in parts for text in part.strings[name]] for name in parts[0].strings},
        origin=inventory.origin,
        about={**inventory.about, **source.conclude(numbers)},
        place=base,
    )


def _values(column: Any) -> str:
    return repr(column.tolist() if isinstance(column, np.ndarray) else list(column))
