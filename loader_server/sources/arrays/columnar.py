"""Base class of Parquet and Arrow: files of one schema, whose rows come in groups that are decoded together.

Rules: segments are whole groups, so a window needs each group once; decoded groups are kept in memory of a fixed size.
Rows with a null are bad, and so are texts that are not UTF-8. Where no column is a list of varying length, the first
axis of each sample counts as its length. Recordings and images are kept as their files' bytes, and decoded sample by
sample.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.arrays.arrow_columns import ColumnValues, lengths_and_faults, value_of, values_of
from loader_server.sources.arrays.arrow_types import unusable
from loader_server.sources.arrays.columnar_files import BROKEN, ColumnarFiles
from loader_server.sources.arrays.file_columns import common_rates
from loader_server.sources.arrays.row_groups import RowGroups
from loader_server.sources.batch_columns import joined_parts, parted
from loader_server.sources.columns_at_once import MOST_AT_ONCE, joined_columns
from loader_server.sources.files.opening import changed
from loader_server.sources.files.same_files import FilesInUse, noted_origin, refuse_other_files
from loader_server.sources.source import SEGMENT_SAMPLES, BadRow, Found, Indexed, Inventory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.arrays.arrow_types import ColumnKind
    from loader_server.sources.batch_columns import Columns
__all__ = ["ColumnarSource"]

#: The most samples of a segment with recordings or images, unless a single group has more: theirs are large, and a
#: worker should be able to keep the groups of a window.
_FILES_IN_SEGMENT = 256
#: Rows of a piece with recordings or images, whose headers are looked at one by one.
_FILES_IN_PIECE = 64


class ColumnarSource(ColumnarFiles):
    """Rows of files.

    The index has each sample's row, counted over all files, and the lengths of lists, texts and bytes.
    """

    piece_rows = 2**16
    reads_ahead = True

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes when the files do (`Files.stamp`).

        Raise a DataError if there is none or one is named twice; a ReadError if a store cannot be asked, or a
        SettingsError for braces that stand for too many names or a store's missing library.
        """
        return self.files.stamp(self._paths())

    def survey(self) -> Inventory:
        """Count the rows of all files, group by group.

        Raise a DataError if there is no file, or one is missing, broken or named twice, has unusable columns, or has
        another schema than the first; a ReadError if a store cannot be asked, and an OSError if the disk fails.
        SettingsError and MachineError of `_surveyed` and `noted_origin` pass through.
        """
        return Inventory(
            total=int(self._firsts[-1]),
            pieces=self._pieces,
            origin=noted_origin(self.files, self._surveyed["paths"]),
            about={"rows_of": self._surveyed},
        )

    def _pieces(self, rows: int) -> Iterator[range]:
        """Yield ranges of rows in order.

        Ranges end where groups do and have at least `rows` rows, so that each group is decoded in one piece. If fewer
        rows than `piece_rows` are asked for, each range has exactly `rows`, wherever groups end. The last one has what
        is left. Errors of `_firsts` pass through.
        """
        whole = rows >= self.piece_rows
        rows = rows if self.gathers else min(rows, _FILES_IN_PIECE)
        start = 0
        for stop in self._firsts[1:].tolist():
            while stop - start >= rows and start < stop:
                yield range(start, end := stop if whole else start + rows)
                start = end
        if start < self._firsts[-1]:
            yield range(start, int(self._firsts[-1]))

    def probe(self, piece: range) -> Found:
        """Return the lengths of these rows, at least one, and which of them are bad; decode all of their groups.

        Raise a DataError if a group is damaged or its file cannot be opened, or a ReadError if a remote file cannot be
        read; an OSError of the disk passes, and before there is an index what `_surveyed` raises.
        """
        groups = range(self._group_of(piece.start), self._group_of(piece.stop - 1) + 1)
        parts = [self._probe_group(group, piece) for group in groups]
        bad = {row: fault for part in parts for row, fault in part.bad.items()}
        numbers = {
            name: np.concatenate([np.asarray(part.numbers[name]) for part in parts]) for name in parts[0].numbers
        }
        return Found(rows=[row for part in parts for row in part.rows], numbers=numbers, bad=bad)

    def _group_of(self, row: int) -> int:
        """Return the number of the group that holds a row; beyond the last row that is the number of groups.

        If there is no index yet, raise what `_surveyed` raises.
        """
        return int(np.searchsorted(self._firsts, row, side="right")) - 1

    def _probe_group(self, group: int, piece: range) -> Found:
        """Return the rows of a piece that lie in this group; raise a DataError if the group is damaged.

        Raise what `_arrays_of` raises, such as an OSError of the disk.
        """
        start = int(self._firsts[group])
        own = slice(max(piece.start - start, 0), min(piece.stop, int(self._firsts[group + 1])) - start)
        lengths, bad = self._measured_group(group)
        kept = np.array([row for row in range(own.start, own.stop) if row not in bad], np.int64)
        return Found(
            rows=(start + kept).tolist(),
            numbers={"row": start + kept} | {f"length_{key}": column[kept] for key, column in lengths.items()},
            bad={start + row: bad[row] for row in sorted(bad) if own.start <= row < own.stop},
        )

    #: The group that was measured last, its lengths and its bad rows, numbered within the group.
    _latest: tuple[int, dict[str, NDArray[np.int64]], dict[int, BadRow]] = (-1, {}, {})

    def _measured_group(self, group: int) -> tuple[dict[str, NDArray[np.int64]], dict[int, BadRow]]:
        """Return lengths and bad rows of a group, decoding it unless it is the latest one.

        Raise what `_arrays_of` raises, such as a DataError if it is damaged, or an OSError of the disk.
        """
        # Kept, because small pieces share a group, which would be decoded again for each of them.
        if self._latest[0] != group:
            path, arrays = self._arrays_of(group)
            padded = {field.key for field in self.fields if field.padded}
            lengths, faults = lengths_and_faults(arrays, self._kinds, padded)
            for kind, array in zip(self._kinds, arrays, strict=True):
                if kind.is_file:
                    found, unfit = self._file_columns.look(array, kind, faults)
                    lengths, faults = lengths | (found if kind.key in padded else {}), faults | unfit
            where, before = self.files.where(path), self._row_in_file(int(self._firsts[group]))
            bad = {row: BadRow(where, before + row, *fault) for row, fault in faults.items()}
            self._latest = group, lengths, bad
        return self._latest[1:]

    def _arrays_of(self, group: int, keys: Sequence[str] = ()) -> tuple[str, list[Any]]:
        """Return the path of a group's file, and its columns: those of these keys, or all.

        Raise a DataError if the file cannot be opened or the group is damaged, but once there is an index a ReadError
        if it is damaged; a ReadError also if a remote file cannot be fetched. An OSError of the disk and other errors
        of `Files` pass.
        """
        about = self._about
        path, place = about["paths"][about["file"][group]], about["place"][group]
        try:
            return path, self._read_group(path, place, self._columns_of(keys or [kind.key for kind in self._kinds]))
        except BROKEN as error:
            # The disk failed, not the format: the caller tries again (see Source.read).
            if isinstance(error, OSError) and error.errno is not None:
                raise
            rows = f"rows from {self._row_in_file(int(self._firsts[group]))} on that can be decoded"
            where, got = self.files.where(path), " ".join(str(error).split()).rstrip(".")
            if hasattr(self, "indexed"):
                raise changed(rows, got, where) from None
            raise unusable(where, rows, got) from None

    def conclude(self, numbers: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return the first sample of each group, and behind them the number of samples, as "first_samples".

        With columns of recordings also the rate that all of a column have, or 0 if they differ, as "rates". If there is
        no index yet, raise what `_surveyed` raises.
        """
        rates = common_rates(self._kinds, numbers)
        # Bad rows are left out, so groups begin at other numbers among samples than among rows.
        firsts = np.searchsorted(numbers["row"], self._firsts).tolist()
        return {"first_samples": firsts} | ({"rates": rates} if rates else {})

    # --- once there is an index ---

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a file is gone or has changed since it was made.

        Raise a ReadError if a store cannot be asked, and an OSError if a file cannot be read. Files are not compared
        again if the index opened before was made from the same ones. SettingsError of `refuse_other_files` passes
        through.
        """
        # Measuring lengths opens piece after piece of the same files, whose digests need not be compared each time.
        if not hasattr(self, "indexed") or self.indexed.origin != indexed.origin:
            refuse_other_files(self.files, indexed)
        self.indexed = indexed
        self._in_use = FilesInUse(self.files, indexed)
        self._rows = indexed.numbers["row"]

    @property
    def segments(self) -> NDArray[np.int64]:
        """Return where segments begin, and the number of samples; a segment is one or several groups."""
        starts = np.unique(self.indexed.about["first_samples"])
        # Whole groups, so that a window decodes each of its groups once, and no group is in two windows.
        # A group begins a segment if it begins in another block of samples than the group before. Large groups are
        # segments of their own, and small ones share one.
        block = SEGMENT_SAMPLES if self.gathers else _FILES_IN_SEGMENT
        firsts = starts[:-1][np.diff(starts[:-1] // block, prepend=-1) > 0]
        return np.append(firsts, self.samples)

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first sample of each file that has samples.

        The source has to be open; the tuple is empty without samples.
        """
        starts = np.array(self.indexed.about["first_samples"])
        # Groups with samples: all rows of a group may be bad.
        having = np.flatnonzero(np.diff(starts))
        files = np.array(self._about["file"])[having]
        return tuple(starts[having][np.diff(files, prepend=-1) > 0].tolist())

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the texts of a column, block by block, decoding nothing but this column.

        Return None if the key is no column of texts, or if files are remote. The iterator raises a ReadError if a group
        is damaged, a DataError if a file cannot be opened, or an OSError if the disk fails. Whether files have changed
        is not looked at.
        """
        kind = next((kind for kind in self._kinds if (kind.key, kind.holds) == (key, "text")), None)
        return self._texts_of(kind) if kind is not None and not self.files.are_remote else None

    def _texts_of(self, kind: ColumnKind) -> Iterator[Sequence[str]]:
        """Yield the texts of a column, block by block, decoding a group at a time.

        Raise a ReadError if one is damaged, a DataError if its file cannot be opened, or an OSError if the disk fails.
        """
        bounds = np.searchsorted(self._rows, self._firsts).tolist()
        for group, (start, stop) in enumerate(itertools.pairwise(bounds)):
            # A group without good rows may not even be decodable.
            if start == stop:
                continue
            _, (column,) = self._arrays_of(group, [kind.key])
            for first in range(start, stop, SEGMENT_SAMPLES):
                rows = self._rows[first : min(first + SEGMENT_SAMPLES, stop)] - self._firsts[group]
                yield column.take(rows).to_pylist()

    @cached_property
    def _kept(self) -> RowGroups:
        """Return the memory of decoded groups, made by the first call.

        If there is no index yet, raise what `_surveyed` raises.
        """
        return RowGroups(self._kinds, self._firsts, self.settings.cache, self._decode_group)

    def _decode_group(self, group: int) -> list[ColumnValues]:
        """Return the values of a group; raise a ReadError if it cannot be decoded, or its file has changed.

        Raise a DataError if its file cannot be opened. An OSError of the disk and other errors of `Files` pass.
        """
        path, arrays = self._arrays_of(group)
        values = [values_of(array, kind) for array, kind in zip(arrays, self._kinds, strict=True)]
        # After decoding: a file that was written over meanwhile must not get into memory.
        self._in_use.refuse_changed(path)
        return values

    def unread(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one sample of each group that is not in memory.

        The samples have to be in range, which is not checked.
        """
        # A sample for each group is enough: reading it decodes the whole group.
        return samples[self._kept.missing(self._rows[samples])]

    def read(self, samples: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of each sample's columns, bringing its group into memory.

        Raise a ReadError if the group cannot be decoded or its file has changed, a DataError if the group is larger
        than `cache` or its file cannot be opened, and an IndexError if a number is out of range. Other errors of
        `_decode_group` pass, such as an OSError of the disk.
        """
        values = self._values_of_row if self._reads_rows else self._kept.values
        for sample in samples:
            yield joined_parts(values(int(self._rows[self.checked(sample)])))

    @cached_property
    def _reads_rows(self) -> bool:
        """Return whether single rows are read from their files, with no group kept in memory.

        So it is if that is cheap for the format, and files of recordings or images are larger together than `cache`:
        samples of a window then need far more groups than are kept. Raise what `_arrays_of` raises.
        """
        if self.gathers or sum(facts["bytes"] for facts in self.indexed.origin) <= self.settings.cache:
            return False
        return self._reads_rows_quickly(self._about["paths"][self._about["file"][0]], self._about["place"][0])

    def _reads_rows_quickly(self, path: str, place: int) -> bool:
        """Return whether a row of a group is read without decoding all of the group; False by default."""
        return False

    def _values_of_row(self, row: int) -> list[bytes]:
        """Return the bytes of all columns of a row, from its file.

        Raise a ReadError if its group cannot be decoded or its file has changed, and besides what `_arrays_of` raises.
        """
        group = self._group_of(row)
        path, arrays = self._arrays_of(group)
        at = row - int(self._firsts[group])
        pairs = zip(arrays, self._kinds, strict=True)
        values = [values_of(array.slice(at, 1), kind).values.tobytes() for array, kind in pairs]
        # After copying: a file that was written over meanwhile must not get into a batch.
        self._in_use.refuse_changed(path)
        return values

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the values of all columns: new arrays, numbers as arrays without axes, texts and bytes.

        A recording has its rate beside it. Raise a SampleError if a recording or image cannot be decoded, an IndexError
        if there is no such sample, or a ValueError if the bytes are not those of such values, as of a text that is not
        UTF-8. Other errors of decoding recordings pass, such as a SettingsError for MP3.
        """
        return self.decode_picture(sample, raw, "")

    def decode_picture(self, sample: int, raw: bytes, key: str) -> dict[str, Any]:
        """Return what `decode` does, but a Picture under the key, if it holds an image; raise what `decode` raises."""
        self.checked(sample)
        values = dict[str, Any]()
        for kind, part in zip(self._kinds, parted(raw, len(self._kinds)), strict=True):
            if kind.is_file:
                frames = int(self.indexed.numbers[f"length_{kind.key}"][sample]) if kind.holds == "audio" else 0
                values |= self._file_columns.decode(bytes(part), kind, frames, self.name(sample), key)
            else:
                axes = self._axes_of(kind.key, sample) if kind.cells else ()
                values[kind.key] = value_of(part, kind, axes)
        return values

    def _axes_of(self, key: str, sample: int) -> tuple[int, ...]:
        """Return the lengths of a sample along the two axes of a column of any size."""
        return tuple(int(self.indexed.numbers[f"length_{name}"][sample]) for name in (key, f"{key}_width"))

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return the decoded samples as columns, so that transforms can take all at once.

        Return None if they are large together, or if a column has a fixed shape with axes. Raise what `decode` raises,
        for any of them.
        """
        sizes = self.decoded_bytes({name: column[samples] for name, column in self.indexed.numbers.items()})
        if not len(samples) or (sizes is not None and sizes.sum() > MOST_AT_ONCE):
            return None
        return joined_columns(list(map(self.decode, samples, raw)), self.fields)

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write all rows of a batch at once, padded, decoding the groups that are not in memory.

        Raise a ReadError if a group cannot be decoded or its file has changed, or a DataError if it is larger than
        `cache` or its file cannot be opened. Other errors of `_decode_group` pass, such as an OSError of the disk.
        """
        self._kept.gather(self._rows[samples], out)

    # --- for people ---

    def name(self, sample: int) -> str:
        """Return the file as the job file names it, and the row in it, from 0, as one text.

        Raise an IndexError if there is no such sample.
        """
        return "{}, row {}".format(*self._place_of(sample))

    def place(self, sample: int) -> tuple[str, int]:
        """Return the file, and the row in it, counted from 0; raise an IndexError if there is no such sample.

        The file is named as in messages (`Files.where`).
        """
        path, row = self._place_of(sample)
        return self.files.where(path), row

    def identity(self, sample: int) -> str:
        """Return path, size and digest of the file, and the row in it, as one text.

        Raise an IndexError if there is no such sample.
        """
        path, row = self._place_of(sample)
        # Not by the time of change: a copy of the file has another one, and its samples are the same.
        facts = next(file for file in self.indexed.origin if file["path"] == path)
        return f"{path}, {facts['bytes']} bytes, {facts['digest']}, row {row}"

    def _place_of(self, sample: int) -> tuple[str, int]:
        """Return the sample's file, as `paths` names it, and its row there, counted from 0.

        Raise an IndexError if there is no such sample.
        """
        row = int(self._rows[self.checked(sample)])
        return self._about["paths"][self._about["file"][self._group_of(row)]], self._row_in_file(row)

    @cached_property
    def _first_of_file(self) -> NDArray[np.int64]:
        """Return for each group the first row of its file.

        If there is no index yet, raise what `_surveyed` raises.
        """
        files = np.array(self._about["file"], np.int64)
        return self._firsts[:-1][np.searchsorted(files, files)]

    def _row_in_file(self, row: int) -> int:
        """Return the number, from 0, that a row has in its own file.

        If there is no index yet, raise what `_surveyed` raises.
        """
        return row - int(self._first_of_file[self._group_of(row)])

    def close(self) -> None:
        """Drop the decoded groups and close the files; both come back when rows are next read."""
        self.__dict__.pop("_kept", None)
        super().close()
