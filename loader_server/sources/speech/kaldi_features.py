"""Features in Kaldi's archives: found by their headers while indexing, then read from their places.

Rules: only the sample's matrix is read of an archive, and all of it even if the sample is a range of its rows; lengths
are those of the headers, and a matrix that its archive cuts short is a bad row. An archive that has changed since
indexing is a ReadError.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.files.opening import FileFacts, changed
from loader_server.sources.files.presence import IndexedFiles, look_at_some
from loader_server.sources.files.same_files import digest_of_number, has_content, noted_content, number_of_digest
from loader_server.sources.files.seen import is_settled, status_of
from loader_server.sources.remote.urls import is_url
from loader_server.sources.source import BadRow
from loader_server.sources.speech.kaldi_ark import HEADER_BYTES, KINDS, ArkHeader, ark_header, ark_values
from loader_server.sources.speech.kaldi_entries import ALL_ROWS
from shared.errors import DataError, ReadError
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files

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
        self._known: dict[str, tuple[FileFacts, int]] = {}

    def find(self, path: str, offset: int, rows: tuple[int, int], where: tuple[str, int]) -> ArchivePlace | BadRow:
        """Return the place of a row's features, or a BadRow at `where`, its table and line.

        The row is bad if the archive is missing, if no matrix of floats begins at `offset` or it is cut short or empty,
        or if `rows` begin outside of it or overrun it by more than three, which are cut off. Raise a ReadError if a
        remote archive's bytes cannot be fetched, `offset` is beyond its end, or a local one became shorter, and an
        OSError if that cannot be read. SettingsError and MachineError of `read` pass through.
        """
        try:
            archive, content = self._known.get(path) or self._known.setdefault(path, self._look_at(path))
        except ReadError:  # the store cannot be reached: that says nothing about the row
            raise
        except DataError as error:
            return BadRow(*where, "missing_file", f"expected {error.expected}, got {error.got}: {path}")
        raw = self._files.read(path, offset, max(0, min(HEADER_BYTES, archive.bytes - offset)))
        header = ark_header(raw)
        if header is None:
            expected = f"expected binary floats ({', '.join(KINDS)}) from byte {offset} of {path} on"
            return BadRow(*where, "no_matrix", f"{expected}, got {raw[:6]!r}")
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

    def _look_at(self, path: str) -> tuple[FileFacts, int]:
        """Return an archive's size and version, and the number of its digest (0 if it is remote).

        Raise a DataError if it is missing, a ReadError if its store cannot be asked, or an OSError if a local one
        cannot be read. SettingsError of `facts` passes through.
        """
        facts = self._files.facts(path)
        if is_url(path):
            return facts, 0
        return facts, number_of_digest(noted_content(self._files.where(path), self._files.seen))


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


class ArchivedFeatures:
    """Features of an index's samples.

    `numbers` has the columns of `feature_columns`, `path_of` returns a sample's archive, and `columns` is the width of
    all features.
    """

    def __init__(
        self, files: Files, numbers: Mapping[str, NDArray[np.int64]], path_of: Callable[[int], str], columns: int
    ) -> None:
        self._files = files
        self._numbers = numbers
        self._path_of = path_of
        self._columns = columns
        #: Where each archive is on this machine.
        self._places: dict[str, str] = {}
        #: Status of each archive when it was last seen to have the indexed content: an archive holds thousands of
        #: samples, and its digest is not computed again for each of them.
        self._same: dict[tuple[str, int], tuple[int, ...]] = {}

    def read(self, sample: int) -> bytes:
        """Return the bytes of the sample's whole matrix or vector.

        Raise a ReadError if its archive is no longer the indexed one, or a remote one cannot be read; a DataError if a
        local one is gone; an OSError if the disk fails. SettingsError and MachineError of `part` pass through.
        """
        path, place = self._path_of(sample), self._place(sample)
        if is_url(path):
            return self._files.part(path, self._facts(sample), *place)  # refuses a changed archive itself
        try:
            raw = self._files.read(path, *place)
        except (OSError, ReadError):
            self._refuse_other(path, sample)  # an archive that became shorter or is gone is the reason to give
            raise
        # After reading: a write changes the status before the bytes, so an unchanged status vouches for what was read.
        # Asking for it before as well would take a tenth of a worker's time.
        self._refuse_other(path, sample)
        return raw

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the samples' matrices that are remote; errors of `expect_parts` pass through."""
        self._files.expect_parts(
            (self._path_of(sample), self._facts(sample), *self._place(sample)) for sample in samples
        )

    def indexed_files(self) -> IndexedFiles:
        """Return the archives, each at least once; remote ones have an empty path."""
        firsts = self._firsts()

        def file_at(number: int) -> tuple[str, int]:
            path, facts = self._path_of(int(firsts[number])), self._facts(int(firsts[number]))
            return "" if is_url(path) else self._files.where(path), facts.bytes

        return IndexedFiles(len(firsts), file_at)

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for a local archive that changed since indexing, or a DataError for one that is gone.

        Each is looked at once, and as many as fit into `time_s` seconds. Raise an OSError if one cannot be read.
        """
        done: set[tuple[str, int]] = set()

        def look(sample: int) -> None:
            path, content = self._path_of(sample), int(self._numbers["content"][sample])
            if not is_url(path) and (path, content) not in done:
                self._refuse_other(path, sample)
                done.add((path, content))

        firsts = self._firsts()
        look_at_some(len(firsts), lambda number: look(int(firsts[number])), time_s)

    def _firsts(self) -> NDArray[np.int64]:
        """Return few samples that have at least one of each archive among them.

        A sample begins a new archive where size or version change, or where offsets stop rising. So archives count more
        than once if samples are not in their order.
        """
        size, version, offset = (self._numbers[name] for name in ("bytes", "mtime_ns", "offset"))
        return np.concatenate(
            [[0], np.flatnonzero((np.diff(size) != 0) | (np.diff(version) != 0) | (np.diff(offset) <= 0)) + 1]
        )[: len(size)]

    def _place(self, sample: int) -> tuple[int, int]:
        """Return offset and number of bytes of the sample's matrix."""
        return int(self._numbers["offset"][sample]), int(self._numbers["nbytes"][sample])

    def _facts(self, sample: int) -> FileFacts:
        """Return the size and version of the sample's archive as indexed."""
        return FileFacts(bytes=int(self._numbers["bytes"][sample]), version=int(self._numbers["mtime_ns"][sample]))

    def _refuse_other(self, path: str, sample: int) -> None:
        """Raise a ReadError if the archive differs from the indexed one in size or content.

        The content is looked at only if its status has not been seen with it. Raise a DataError if the archive is gone,
        or an OSError if it cannot be read. SettingsError of `facts` passes through.
        """
        place = self._places.get(path) or self._places.setdefault(path, self._files.where(path))
        known, content = self._facts(sample), int(self._numbers["content"][sample])
        try:
            status = os.stat(place)  # takes a fifth of the time of Path.stat
        except OSError:
            self._files.facts(path)  # raises a DataError that says what is wrong
            raise
        if self._same.get((path, content)) == status_of(status):
            return
        expected = f"the archive that was indexed ({known.bytes} bytes)"
        if status.st_size != known.bytes:
            raise changed(expected, f"one of {status.st_size} bytes", place)
        if not has_content(place, status, digest_of_number(content), self._files.seen):
            raise changed(expected, "one of the same size with other bytes", place)
        # A recent status is not kept: another write within the same tick of the file system's clock would leave it
        # equal.
        if is_settled(status):
            self._same[path, content] = status_of(status)

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
        """Return what tells the sample's bytes from others, without the path.

        That is the archive's size, time of change and digest, the matrix's place in it, and the range of rows.
        """
        numbers = self._numbers
        archive = f"{numbers['bytes'][sample]} bytes, changed at {numbers['mtime_ns'][sample]} ns"
        digest = digest_of_number(int(numbers["content"][sample]))
        matrix = f"{archive}, digest {digest}, {numbers['nbytes'][sample]} bytes from {numbers['offset'][sample]}"
        if "first" not in numbers:
            return matrix
        return f"{matrix}, {numbers['length_features'][sample]} rows from {numbers['first'][sample]}"
