"""The parquet and arrow sources: row groups of Parquet files, and record batches of Arrow files and streams.

Rules: of a Parquet file only the columns that are named are read, of one row group in one go; for a remote file this
means one range of bytes for each column. Arrow files are mapped into memory; one begins with a magic word, and what
follows is a stream. Of a folder that `save_to_disk` wrote, its `state.json` says which files count. The library
`datasets` is not needed.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from loader_server.sources.arrays.arrow_types import features_of, pa, parquet
from loader_server.sources.arrays.columnar import ColumnarSource
from loader_server.sources.arrays.columnar_files import GroupsOfFile
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ArrowSource", "ParquetSource"]

_MAGIC = b"ARROW1"
#: Bytes of the magic word with its padding.
_MAGIC_BYTES = 8
#: End mark in place of the next message; in old files it is four zeros.
_END = b"\xff\xff\xff\xff\0\0\0\0"


class ParquetSource(ColumnarSource):
    """Rows of Parquet files; the place of a row group is its number."""

    def _paths(self) -> list[str]:
        """Return all files of `paths`, in order; raise a DataError if there is none, or if one is named twice.

        Raise a ReadError if a store cannot be asked, and a SettingsError for braces that stand for too many names or a
        store's missing library.
        """
        return self.files.found(self.settings.paths, ".parquet", ".pq")

    def _look_at(self, path: str) -> GroupsOfFile:
        """Return the columns and row groups of a file, reading only its footer.

        Raise an error of `BROKEN` (columnar_files) if the file is damaged, a DataError if it cannot be opened, and a
        ReadError if a remote one cannot be fetched. Other errors of `Files.open` and of reading a remote file pass.
        """
        with self.files.open(path) as stream, parquet.ParquetFile(stream) as file:
            schema, groups = file.schema_arrow, range(file.metadata.num_row_groups)
            rows = [file.metadata.row_group(group).num_rows for group in groups]
        types = dict(zip(schema.names, schema.types, strict=True))
        return GroupsOfFile(types=types, features=features_of(schema.metadata), rows=rows, places=list(groups))

    def _read_group(self, path: str, place: int, columns: Sequence[str]) -> list[Any]:
        """Return these columns of a row group, each as one Arrow array; no other column is read.

        Raise an error of `BROKEN` (columnar_files) if the group is damaged or lacks a column, a DataError if the file
        cannot be opened, and a ReadError if a remote one cannot be fetched. Other errors of `Files.open` and of reading
        it pass.
        """
        with self.files.open(path) as stream, parquet.ParquetFile(stream) as file:
            # Without threads of the library: a worker has one core, and reads several groups at a time anyway.
            table = file.read_row_group(place, columns=list(columns), use_threads=False)
        return [table.column(name).combine_chunks() for name in columns]


class ArrowSource(ColumnarSource):
    """Rows of Arrow record batches; the place of a batch is the byte where its message begins."""

    def _paths(self) -> list[str]:
        """Return all files of `paths`, in order; whether files that are named are there is not looked at.

        Raise a DataError if a file is named twice, or a pattern or folder has none; a ReadError if a store cannot be
        asked, or a SettingsError for braces that stand for too many names or a store's missing library. Raise besides
        what `_meant` does, such as a DataError for a folder of several splits.
        """
        paths = [path for named in self.settings.paths for path in self._meant(named)]
        self.files.refuse_twice(paths)
        return paths

    def _meant(self, named: str) -> list[str]:
        """Return the files that a path stands for; for a saved data set those of its state, in their order.

        Raise a DataError for a folder of several splits, for a state file that cannot be read, and for a pattern or
        folder without files; a KeyError or TypeError for a state whose entries name no file. What `Files.found` raises
        passes too, such as a ReadError if a store cannot be asked.
        """
        folder = self.base / named
        splits = _list_in(folder / "dataset_dict.json", "splits")
        if splits:
            raise DataError(
                expected="one data set",
                got=f"a folder of several ({', '.join(splits)})",
                where=str(folder),
                remedy=f'Name one of them: paths = ["{posixpath.join(named, splits[0])}"].',
            )
        # The folder may also hold files of an earlier save, or caches of `map`: only those in the state count.
        if saved := _list_in(folder / "state.json", "_data_files"):
            return [posixpath.join(named, file["filename"]) for file in saved]
        return self.files.found([named], ".arrow", ".feather", ".ipc")

    def _look_at(self, path: str) -> GroupsOfFile:
        """Return the columns of a file, and rows and place of each record batch.

        Raise an error of `BROKEN` (columnar_files) if the file is missing, damaged, was cut short or has dictionaries,
        and a ReadError if a remote one cannot be fetched. Other errors of `Files.local` pass.
        """
        with self.files.local(path) as local, pa.memory_map(str(local)) as mapped:
            schema = self._schema(mapped)
            _refuse_dictionaries(schema)
            types = dict(zip(schema.names, schema.types, strict=True))
            groups = GroupsOfFile(types=types, features=features_of(schema.metadata))
            reader = pa.ipc.MessageReader.open_stream(mapped)
            # A file's footer lists its record batches, but a stream has none: messages are read one after another.
            while True:
                place = mapped.tell()
                try:
                    message = reader.read_next_message()
                except StopIteration:
                    _refuse_no_end(mapped, place)
                    return groups
                groups.rows.append(pa.ipc.read_record_batch(message, schema).num_rows)
                groups.places.append(place)

    @staticmethod
    def _schema(mapped: Any) -> Any:
        """Read and return the schema of a file or stream; raise an ArrowInvalid if it has none, an OSError if damaged.

        The record batches follow it.
        """
        mapped.seek(_MAGIC_BYTES if mapped.read(len(_MAGIC)) == _MAGIC else 0)
        return pa.ipc.read_schema(mapped)

    def _read_group(self, path: str, place: int, columns: Sequence[str]) -> list[Any]:
        """Return these columns of the record batch whose message begins at `place`.

        Raise an error of `BROKEN` (columnar_files) if the file is missing, or the batch is damaged or lacks a column,
        and a ReadError if a remote file cannot be fetched. Other errors of `Files.local` pass.
        """
        with self.files.local(path) as local, pa.memory_map(str(local)) as mapped:
            schema = self._schema(mapped)
            mapped.seek(place)
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(mapped), schema)
            arrays = [batch.column(name) for name in columns]
            for array in arrays:
                _refuse_wrong_offsets(array)
        return arrays

    def _reads_rows_quickly(self, path: str, place: int) -> bool:
        """Return whether the record batch at `place` lies in a local file as it is, so that a row is a slice of a map.

        That is so unless it is compressed. Raise an error of `BROKEN` if the file is missing or the batch is damaged.
        """
        if self.files.are_remote:
            return False
        with self.files.local(path) as local, pa.memory_map(str(local)) as mapped:
            schema = self._schema(mapped)
            mapped.seek(place)
            message = pa.ipc.read_message(mapped)
            # Buffers that lie in the message are not larger than it; unpacked ones are new.
            return bool(pa.ipc.read_record_batch(message, schema).get_total_buffer_size() <= message.body.size)


def _refuse_no_end(mapped: Any, place: int) -> None:
    """Raise a ValueError if the mark of a file's end, or four zeros, is not at `place`, where record batches end.

    Without the mark the file was cut between two batches, or is still being written.
    """
    mapped.seek(place)
    end = mapped.read(len(_END))
    if end != _END and end[:4] != bytes(4):
        raise ValueError(f"no mark of its end after {place} bytes: it was cut short, or is still being written")


def _refuse_wrong_offsets(array: Any) -> None:
    """Raise an ArrowInvalid if offsets fall or lead beyond the values.

    Arrow does not check this when it reads a batch. Whether texts are UTF-8 is not checked here but for each row.
    """
    array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    # Viewed as bytes: full validation of texts would check UTF-8, too, and refuse the batch for a single bad row.
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(array.type)
    (array if as_bytes is None else array.view(as_bytes)).validate(full=True)


def _list_in(path: Path, key: str) -> list[Any]:
    """Return the list under `key` in a JSON file that `save_to_disk` writes; empty without such a file.

    Raise a DataError if the file cannot be read or lacks the key.
    """
    try:
        return list(json.loads(path.read_text("utf-8"))[key]) if path.is_file() else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            expected=f'a file with "{key}", as save_to_disk writes it',
            got=f"{type(error).__name__}: {error}",
            where=str(path),
            remedy="Save the data set anew, or name its .arrow files in `paths`.",
        ) from None


def _refuse_dictionaries(schema: Any) -> None:
    """Raise a ValueError if a column is encoded by a dictionary."""
    for field in schema:
        if pa.types.is_dictionary(field.type):
            raise ValueError(f'"{field.name}" is encoded by a dictionary, which record batches alone do not hold')
