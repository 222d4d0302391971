"""Features in Kaldi's archives: found by their headers while indexing, then read from their places.

Rules: only the sample's matrix is read of an archive, and all of it even if the sample is a range of its rows; lengths
are those of the headers, and a matrix that its archive cuts short is a bad row. An archive that has changed since
indexing is a ReadError.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from loader_server.sources.files.archived_parts import ArchivedParts, ArchiveFacts
from loader_server.sources.files.file_facts import changed
from loader_server.sources.source import BadRow
from loader_server.sources.speech.kaldi_ark import (
    HEADER_BYTES,
    KINDS,
    TEXT_ENDS,
    ArkHeader,
    ark_header,
    ark_values,
    is_text,
)
from loader_server.sources.speech.kaldi_entries import ALL_ROWS
from shared.errors import DataError, ReadError
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.files.opening import FileFacts, Files

__all__ = ["ArchiveHeaders", "ArchivePlace", "ArchivedFeatures", "feature_columns", "features_field"]


#: Columns of the index, and where an ArchivePlace has their values.
_COLUMNS = {
    "bytes": "archive.bytes",
    "mtime_ns": "archive.version",
    "content": "content",
    "offset": "offset",
    "kind": "header.kind_number",
    "nbytes": "header.nbytes",
    "length_features": "rows",
    "first": "first",
}
#: How much of a matrix in text form is read at a time, as nothing says how long it is.
_TEXT_BYTES = 2**16
#: Most bytes of a matrix in text form: without its end, all of an archive would be read into memory.
_MOST_TEXT_BYTES = 2**28
#: How many rows a range may overrun its matrix by, as in Kaldi; it is cut at the matrix's end.
_OVERSHOOT_ROWS = 3


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """Place of a sample's matrix or vector, its header, and the sample's first row and number of rows."""

    archive: FileFacts
    #: Digest of a local archive's content; 0 for a remote one.
    content: int
    offset: int
    header: ArkHeader
    first: int
    rows: int


class ArchiveHeaders:
    """Headers of matrices in archives; each archive's size and content are noted once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._archives = ArchiveFacts(files)

    def find(self, path: str, offset: int, rows: tuple[int, int], where: tuple[str, int]) -> ArchivePlace | BadRow:
        """Return the place of a row's features, or a BadRow at `where`, its table and line.

        The row is bad if the archive is missing, if no matrix of floats begins at `offset` or it is cut short or empty,
        or if `rows` begin outside of it or overrun it by more than three, which are cut off. Raise a ReadError if a
        remote archive's bytes cannot be fetched, `offset` is beyond its end, or a local one became shorter, and an
        OSError if that cannot be read. SettingsError and MachineError of `read` pass through.
        """
        try:
            archive, content = self._archives.of(path)
        except ReadError:  # the store cannot be reached: that says nothing about the row
            raise
        except DataError as error:
            return BadRow(*where, "missing_file", f"expected {error.expected}, got {error.got}: {path}")
        header = self._header_at(path, offset, archive.bytes)
        if isinstance(header, str):
            return BadRow(*where, *header.split(" ", 1))
        if offset + header.nbytes > archive.bytes:
            detail = f"expected {header.nbytes} bytes from byte {offset} of {path} on, got {archive.bytes - offset}"
            return BadRow(*where, "truncated", detail)
        if not header.rows:
            return BadRow(*where, "empty_matrix", f"expected numbers from byte {offset} of {path} on, got none")
        first, last = rows if rows != ALL_ROWS else (0, header.rows - 1)
        if first >= header.rows or last >= header.rows + _OVERSHOOT_ROWS:
            detail = f"expected rows of the {header.rows} from byte {offset} of {path} on, got [{first}:{last}]"
            return BadRow(*where, "outside_matrix", detail)
        return ArchivePlace(archive, content, offset, header, first, min(last + 1, header.rows) - first)

    def _header_at(self, path: str, offset: int, size: int) -> ArkHeader | str:
        """Return the header of the matrix at a place of an archive, or why there is none: the reason, and in full.

        Raise what `read` raises.
        """
        raw = self._files.read(path, offset, max(0, min(HEADER_BYTES, size - offset)))
        if is_text(raw):
            raw = self._text_at(path, offset, size)
            if not raw.endswith(TEXT_ENDS):
                return f"truncated expected a ] after the numbers from byte {offset} of {path} on, got none"
        header = ark_header(raw)
        if header is None or not _is_readable(raw, header):
            expected = f"expected floats ({', '.join(KINDS)}) from byte {offset} of {path} on"
            return f"no_matrix {expected}, got {raw[:6]!r}"
        return header

    def _text_at(self, path: str, offset: int, size: int) -> bytes:
        """Return the bytes of a matrix in text form, up to its end, that of the archive, or 256 MiB.

        Raise what `read` raises.
        """
        parts, size = list[bytes](), min(size, offset + _MOST_TEXT_BYTES)
        while offset < size and not (parts and TEXT_ENDS in parts[-1]):
            parts.append(self._files.read(path, offset, min(_TEXT_BYTES, size - offset)))
            offset += len(parts[-1])
        raw = b"".join(parts)
        return raw[: raw.find(TEXT_ENDS) + 1] or raw


def _is_readable(raw: bytes, header: ArkHeader) -> bool:
    """Return whether all words of a matrix in text form are numbers; True for binary ones, which are not looked at."""
    if not is_text(raw):
        return True
    try:
        ark_values(raw, header)
    except ValueError:
        return False
    return True


def features_field(columns: int) -> Field:
    """Return the field of matrices of this width; of vectors if it is 0."""
    return Field(key="features", dtype="float32", shape=(None, columns) if columns else (None,))


def feature_columns(places: Sequence[ArchivePlace], *, ranged: bool) -> dict[str, list[int]]:
    """Return the index's columns of these places; `ranged` adds the first rows.

    Without `ranged` all samples are whole matrices.
    """
    columns = {name: list(map(attrgetter(fact), places)) for name, fact in _COLUMNS.items()}
    if not ranged:
        del columns["first"]
    return columns


class ArchivedFeatures(ArchivedParts):
    """Features of an index's samples.

    `numbers` has the columns of `feature_columns`, `path_of` returns a sample's archive, and `columns` is the width of
    all features.
    """

    def __init__(
        self, files: Files, numbers: Mapping[str, NDArray[np.int64]], path_of: Callable[[int], str], columns: int
    ) -> None:
        super().__init__(files, numbers, path_of)
        self._columns = columns

    def decode(self, sample: int, raw: bytes) -> NDArray[np.float32]:
        """Return the sample's rows as numbers; raise a ReadError if another matrix is there.

        Raise a ValueError if the bytes are not all of the matrix.
        """
        header = ark_header(raw)
        numbers = self._numbers
        known = KINDS[numbers["kind"][sample]], self._columns, numbers["nbytes"][sample]
        if header is None or (header.kind, header.columns, header.nbytes) != known:
            raise changed("the matrix that was indexed", "another one", self._files.where(self._path_of(sample)))
        first = int(numbers["first"][sample]) if "first" in numbers else 0
        rows = int(numbers["length_features"][sample])
        return ark_values(raw, header)[first : first + rows]

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others, without the path: its place, and the range of rows."""
        place, numbers = super().identity(sample), self._numbers
        if "first" not in numbers:
            return place
        return f"{place}, {numbers['length_features'][sample]} rows from {numbers['first'][sample]}"
