"""Files of columns, whatever their format: which columns and groups they have, when they are surveyed and later.

Rules: all files have one schema. What only rows tell, such as the shape of images, the first rows decide, and the index
keeps. A format says which groups a file has, and reads the columns of a group.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.any_size import any_size_setting, refuse_resized, refuse_unknown_keys
from loader_server.sources.arrays.arrow_types import ColumnKind, kinds_of, refuse_other_columns, unusable
from loader_server.sources.arrays.file_columns import FileColumns, column_in_batch
from loader_server.sources.batch_columns import fields_of_rows
from loader_server.sources.image_files import colours_setting, resize_setting
from loader_server.sources.source import Source
from shared.settings.parsers import by_key, byte_count, setting, text, texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shared.wire.batch_layout import Field

__all__ = ["BROKEN", "ColumnarFiles", "ColumnarSettings", "GroupsOfFile"]

#: What reading broken files raises; pyarrow's own errors are of these kinds. An OSError with an
#: errno is not pyarrow's but the disk's.
BROKEN = (OSError, ValueError, KeyError, NotImplementedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarSettings:
    """Settings of a stream with source = "parquet" or "arrow", besides those of every stream."""

    paths: tuple[str, ...] = setting(texts, "files of one schema, or folders of them, relative to the job file")
    columns: tuple[str, ...] = setting(texts, "the columns that are read; all, if left out", default=())
    rename: tuple[tuple[str, str], ...] = setting(
        by_key(text),
        'keys for columns that are called otherwise in the files, such as { text = "sentence" }',
        default=(),
        later=True,
    )
    cache: int = setting(
        byte_count, "how much decoded data each worker keeps; a window should fit", default=512 * 2**20
    )
    resize: tuple[int, ...] = resize_setting()
    any_size: bool | tuple[str, ...] = any_size_setting()
    colours: str = colours_setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOfFile:
    """A file's columns with their Arrow types, and its groups.

    For each group `rows` is its number of rows, and `places` where it is, in the format's own terms.
    """

    types: Mapping[str, Any]
    #: What `datasets` calls columns that are files, if it wrote this one.
    features: Mapping[str, str] = field(default_factory=dict)
    #: Rows of each group.
    rows: list[int] = field(default_factory=list)
    #: Where each group is: its number in the file, or the byte where it begins.
    places: list[int] = field(default_factory=list)


class ColumnarFiles(Source):
    """Files of one schema: their columns and groups, as they are surveyed or as the index has them."""

    Settings = ColumnarSettings
    settings: ColumnarSettings

    # --- what a format says ---

    @abstractmethod
    def _paths(self) -> list[str]:
        """Return the files that `paths` stands for, in order.

        Raise a DataError if there is none, or if one is named twice; other errors of `Files.found` pass.
        """

    @abstractmethod
    def _look_at(self, path: str) -> GroupsOfFile:
        """Return the columns and groups of a file; raise an error of `BROKEN` if it is damaged or the disk fails.

        Raise a DataError if it cannot be opened, or a ReadError if a remote one cannot be fetched. Other errors of
        `Files` pass.
        """

    @abstractmethod
    def _read_group(self, path: str, place: int, columns: Sequence[str]) -> list[Any]:
        """Return these columns of one group, as Arrow arrays.

        Raise an error of `BROKEN` if the group is damaged or the disk fails, a DataError if the file cannot be opened,
        or a ReadError if a remote one cannot be fetched. Other errors of `Files` pass.
        """

    # --- what there is ---

    @cached_property
    def _surveyed(self) -> dict[str, Any]:
        """Return the columns and the groups of all files; groups without rows are left out.

        Raise a DataError if there is no file, one is missing, named twice or broken, has unusable columns, or differs
        from the first file in its schema; a ReadError if a store cannot be asked or read. SettingsError and
        MachineError of `_paths` and `_groups_in` pass through.
        """
        paths, kinds, features = self._paths(), list[ColumnKind](), dict[str, str]()
        found: dict[str, Any] = {"paths": paths, "file": [], "place": [], "rows": []}
        keys = {column: key for key, column in self.settings.rename}
        wanted = [keys.get(column, column) for column in self.settings.columns]
        for number, path in enumerate(paths):
            groups = self._groups_in(path)
            own = kinds_of(groups.types, wanted, self.files.where(path))
            refuse_other_columns(kinds or own, own, self.files.where(path))
            kinds, features = kinds or own, features or dict(groups.features)
            kept = [at for at, rows in enumerate(groups.rows) if rows]
            found["file"] += [number] * len(kept)
            found["place"] += [groups.places[at] for at in kept]
            found["rows"] += [groups.rows[at] for at in kept]
        kinds = [self._settled(kind, features.get(kind.key, ""), found) for kind in kinds]
        self._refuse_any_size(kinds)
        return {**found, "columns": [kind.to_json() for kind in kinds]}

    def _settled(self, kind: ColumnKind, feature: str, found: Mapping[str, Any]) -> ColumnKind:
        """Return a column's kind with what only its rows tell, such as the shape of its images.

        As many of the `found` groups are read as that takes, none for most kinds. Raise a DataError if one cannot be
        read or if the rows do not tell; errors of `_read_group` that are none of `BROKEN` pass.
        """
        places = zip(found["file"], found["place"], strict=True)
        groups = (self._column_of(found["paths"][file], place, kind.key) for file, place in places)
        return self._file_columns.settled(kind, feature, groups, ", ".join(self.settings.paths))

    def _column_of(self, path: str, place: int, key: str) -> Any:
        """Return a column of a group; raise a DataError if it cannot be read, and what `_settled` lets pass."""
        try:
            return self._read_group(path, place, self._columns_of([key]))[0]
        except BROKEN as error:
            raise unusable(self.files.where(path), f'"{key}" that can be decoded', _text_of(error)) from None

    @cached_property
    def _file_columns(self) -> FileColumns:
        """Return what looks at recordings and images, and decodes them.

        Raise a SettingsError if all images are both resized to one size and of any.
        """
        settings = self.settings
        refuse_resized(settings.any_size, settings.resize, (), self.of_job.table)
        return FileColumns(settings.colours, settings.resize, self.of_job, any_size=settings.any_size)

    def _refuse_any_size(self, kinds: Sequence[ColumnKind]) -> None:
        """Raise a SettingsError if `any_size` names a column that has no two axes, or images that are resized."""
        settings, where = self.settings, self.of_job.table
        images = [kind.key for kind in kinds if kind.holds == "image"]
        lists = [kind.key for kind in kinds if kind.is_wide]
        refuse_unknown_keys(settings.any_size, dict.fromkeys([*images, *lists]), where)
        refuse_resized(settings.any_size, settings.resize, images, where)

    def _groups_in(self, path: str) -> GroupsOfFile:
        """Return a file's columns and groups; raise a DataError if the file is missing or broken, or the disk fails.

        Raise a ReadError if its store cannot be asked or read. SettingsError of `facts` and MachineError of reading
        pass through.
        """
        self.files.facts(path)
        try:
            return self._renamed(self._look_at(path), self.files.where(path))
        except BROKEN as error:
            raise unusable(self.files.where(path), "a whole file of this format", _text_of(error)) from None

    def _renamed(self, groups: GroupsOfFile, where: str) -> GroupsOfFile:
        """Return a file's columns under the keys that `rename` gives them.

        Raise a DataError if a column of `rename` is missing, or two columns get one key.
        """
        keys = {column: key for key, column in self.settings.rename}
        for column in keys.keys() - groups.types.keys():
            columns = ", ".join(f'"{name}"' for name in groups.types) or "none"
            raise unusable(where, f'a column "{column}", as `rename` says', columns, "Mend `rename`, or the file.")
        types = {keys.get(column, column): kind for column, kind in groups.types.items()}
        if len(types) < len(groups.types):
            given = ", ".join(f'{key} = "{column}"' for key, column in self.settings.rename)
            raise unusable(where, "one column for each key", f"two for one by rename = {{ {given} }}", "Mend `rename`.")
        features = {keys.get(column, column): feature for column, feature in groups.features.items()}
        return replace(groups, types=types, features=features)

    def _columns_of(self, keys: Sequence[str]) -> list[str]:
        """Return the columns that have these keys, as files call them."""
        named = dict(self.settings.rename)
        return [named.get(key, key) for key in keys]

    @property
    def _about(self) -> Mapping[str, Any]:
        """Return columns and groups as the index has them, or before there is one as surveyed.

        Before there is an index, raise what `_surveyed` raises, such as a DataError.
        """
        return self.indexed.about["rows_of"] if hasattr(self, "indexed") else self._surveyed

    @cached_property
    def _kinds(self) -> tuple[ColumnKind, ...]:
        """Return what each column holds; if there is no index yet, raise what `_surveyed` raises."""
        return tuple(map(ColumnKind.from_json, self._about["columns"]))

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """Return the first row of each group, and behind them the number of rows.

        If there is no index yet, raise what `_surveyed` raises.
        """
        return np.append(0, np.cumsum(np.array(self._about["rows"], np.int64)))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of numbers, lists of numbers, recordings and images; texts and bytes have none.

        Recordings have a time if there is an index and all have one rate. Before there is an index, raise what
        `_surveyed` raises: a DataError if a file cannot be used, a ReadError if a store cannot be asked, or a
        SettingsError or MachineError.
        """
        rates = self.indexed.about.get("rates", {}) if hasattr(self, "indexed") else {}
        columns = (column_in_batch(kind) for kind in self._kinds if kind.holds not in ("text", "bytes"))
        return fields_of_rows(columns, rates)

    @property
    def gathers(self) -> bool:
        """Return whether whole batches can be written at once: not if there are recordings or images to decode.

        If there is no index yet, raise what `_surveyed` raises.
        """
        return not any(kind.is_file for kind in self._kinds)

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that decode recordings and images, by name.

        Raise importlib's PackageNotFoundError if one was not installed as a package, and if there is no index yet what
        `_surveyed` raises.
        """
        return FileColumns.versions(self._kinds)


def _text_of(error: Exception) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split())
