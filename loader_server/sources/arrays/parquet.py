"""The parquet source: rows of Parquet files, a row group at a time.

Rules: only the columns that are named are read, of one row group in one go; for a remote file this means one range of
bytes for each column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.sources.arrays.arrow_columns import parquet
from loader_server.sources.arrays.columnar import ColumnarSource, GroupsOfFile

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ParquetSource"]


class ParquetSource(ColumnarSource):
    """Rows of Parquet files; the place of a row group is its number."""

    def _paths(self) -> list[str]:
        """Return all files of `paths`, in order."""
        return self.files.found(self.settings.paths, ".parquet", ".pq")

    def _look_at(self, path: str) -> GroupsOfFile:
        """Return the columns and row groups of a file, reading only its footer."""
        with self.files.open(path) as stream, parquet.ParquetFile(stream) as file:
            schema, groups = file.schema_arrow, range(file.metadata.num_row_groups)
            rows = [file.metadata.row_group(group).num_rows for group in groups]
        return GroupsOfFile(types=dict(zip(schema.names, schema.types, strict=True)), rows=rows, places=list(groups))

    def _read_group(self, path: str, place: int, columns: Sequence[str]) -> list[Any]:
        """Return these columns of a row group; no other column is read."""
        with self.files.open(path) as stream, parquet.ParquetFile(stream) as file:
            # Without threads of the library: a worker has one core, and reads several groups at a time anyway.
            table = file.read_row_group(place, columns=list(columns), use_threads=False)
        return [table.column(name).combine_chunks() for name in columns]
