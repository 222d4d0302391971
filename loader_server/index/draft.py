"""An index in the making: columns and bad rows that grow piece by piece, a journal of the progress, and the commit.

Rules: one indexer at a time (`locked`). The journal is replaced whole, after the disk has what it counts, so what a
killed indexer leaves is valid as far as its journal says, and anything behind that is cut off. A draft is resumed by an
indexer of the same things in pieces of the same size (`made_from`, `piece_rows`), and ends up with the same bytes as an
index made in one go. Columns are written under a name that nothing refers to; `meta.json` names them, and replacing
that one file is the commit. Folders that nothing names are removed. Must not know formats, nor how pieces are probed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.index.column_files import (
    BAD_ROWS,
    BadRowsWriter,
    ColumnWriter,
    StringsWriter,
    bytes_with_header,
    file_of,
    mapped,
    open_strings,
)
from loader_server.index.folder import fields_in, meta_json, read_meta
from loader_server.index.probe import refuse_other_fields
from shared.errors import DataError, StokerError
from shared.stores.locks import has_name, lock
from shared.stores.own_files import open_own, replacing, sync_folder
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.index.folder import Meta
    from loader_server.index.probe import Probed
    from shared.wire.batch_layout import Field

__all__ = ["Draft", "DraftJournal", "locked", "open_draft"]

#: The prefix of the names of folders with columns.
_COLUMNS = "columns-"
#: The bad rows for which the data were refused, kept until the next index is made.
_REFUSED = "refused_rows.jsonl"
_JOURNAL = "journal.json"
_NEW_JOURNAL = "journal.json.new"
#: A limit on columns: each is one or two files that stay open while an index is made.
_MOST_COLUMNS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftJournal:
    """The progress of a draft: the whole pieces that it has, from the first one on, and what it is made from.

    `ends` are the bytes of columns of strings, `bad_bytes` those of the file with bad rows.
    """

    #: Fingerprint of the data and of all that shapes the index; empty if changes of the data would go unnoticed.
    made_from: str
    piece_rows: int
    pieces: int = 0
    rows: int = 0
    samples: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)
    bad_bytes: int = 0
    #: Names of the source's columns of numbers.
    numbers: tuple[str, ...] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()

    @property
    def measured(self) -> list[str]:
        """Return the keys whose lengths were measured, in the order of the fields; empty if no field is padded."""
        return [key for field_ in self.fields for key in field_.length_keys]


class Draft:
    """The columns of an index while they are written, from where the journal ends."""

    def __init__(self, folder: Path, journal: DraftJournal) -> None:
        self.folder = folder
        #: The state after the last whole piece; replaced as one, so that an interrupt finds it consistent.
        self.journal = journal
        self._closed = False
        self._bad = BadRowsWriter(folder / BAD_ROWS, journal.bad_bytes)
        #: The columns, once the first piece with rows has shown which there are.
        self._numbers: dict[str, ColumnWriter] = {}
        self._strings: dict[str, StringsWriter] = {}
        self._measured: dict[str, ColumnWriter] = {}
        if journal.samples:
            self._open_columns()

    def write(self, part: Probed) -> None:
        """Append the rows of the next piece, good and bad, and count them in the journal in memory.

        Raise a DataError, counting nothing, if its fields differ from those before, or there are too many columns, and
        an OSError if the disk is full, or fails. Other errors of the columns' `append` pass through.
        """
        found, before = part.found, self.journal
        if len(found.rows):
            self._append(part)
        self._bad.append(found.bad.values())
        # `_append` may have replaced the journal as well, with the columns of the first piece.
        self.journal = replace(
            self.journal,
            pieces=before.pieces + 1,
            rows=before.rows + len(found.rows) + len(found.bad),
            samples=before.samples + len(found.rows),
            bad=dict(sorted((Counter(before.bad) + Counter(row.reason for row in found.bad.values())).items())),
            bad_bytes=self._bad.size,
            ends={name: strings.end for name, strings in self._strings.items()},
        )

    def _append(self, part: Probed) -> None:
        """Append a piece that has rows; raise a DataError if its fields differ, or if there are too many columns.

        Raise an OSError if the disk is full, or fails. Other errors of the columns' `append` pass through.
        """
        found = part.found
        if not self.journal.samples:
            self._begin_columns(part)
        # `write` counts a piece only after all of it is appended, so an error here leaves the journal as it was.
        refuse_other_fields(self.journal.fields, part.fields, part.where)
        for name, column in self._numbers.items():
            column.append(found.numbers[name])
        for name, strings in self._strings.items():
            strings.append(found.strings[name])
        for key, lengths in self._measured.items():
            lengths.append(part.measured[key])

    def _begin_columns(self, part: Probed) -> None:
        """Open the columns of the first piece with rows; every later piece has the same.

        Raise a DataError if there are too many, and an OSError if their files cannot be made.
        """
        numbers, ends = tuple(part.found.numbers), dict.fromkeys(part.found.strings, 0)
        self.journal = replace(self.journal, numbers=numbers, ends=ends, fields=part.fields)
        columns = len(self.journal.numbers) + len(self.journal.ends) + len(self.journal.measured)
        if columns > _MOST_COLUMNS:
            raise DataError(
                expected=f"samples of which an index keeps at most {_MOST_COLUMNS} facts each",
                got=f"{columns}, or as many keys",
                where=part.where,
                remedy="Say which keys samples have (`keys`), or leave out what no transform needs.",
            )
        self._open_columns()

    def _open_columns(self) -> None:
        folder, samples = self.folder, self.journal.samples
        for name in self.journal.numbers:  # one by one: if the disk is full, `close` finds those opened before
            self._numbers[name] = ColumnWriter(folder / file_of(name), "int64", samples)
        for name, end in self.journal.ends.items():
            self._strings[name] = StringsWriter(folder, name, samples, end)
        for place, key in enumerate(self.journal.measured):
            self._measured[key] = ColumnWriter(folder / f"measured_{place}.npy", "int64", samples)

    @property
    def _writers(self) -> tuple[BadRowsWriter | ColumnWriter | StringsWriter, ...]:
        if self._closed:
            return ()
        return (self._bad, *self._numbers.values(), *self._strings.values(), *self._measured.values())

    def keep(self) -> None:
        """Make all whole pieces survive a crash: sync the files, then replace the journal.

        Raise an OSError if the disk is full, or fails; the journal then stays as it was.
        """
        # This order: a journal must never count bytes that the disk may not have.
        for writer in self._writers:
            writer.sync()
        draft = self.folder / _NEW_JOURNAL
        draft.unlink(missing_ok=True)  # a killed indexer may have left it
        with replacing(self.folder / _JOURNAL, draft) as file:
            file.write(json.dumps(asdict(self.journal)).encode())

    def close(self) -> None:
        """Finish and close all files, even if one fails, whose OSError is raised; closing again does nothing."""
        # Marked first: if a writer fails, a second close must not write into files that are closed.
        writers, self._closed = self._writers, True
        with contextlib.ExitStack() as stack:
            for writer in reversed(writers):
                stack.callback(writer.close)

    def commit(self, meta: Meta) -> None:
        """Make the columns the index, replacing the present one: sync their names, and replace `meta.json` by this one.

        The files have to be closed before. Raise an OSError if the disk is full, or fails; TypeError of `meta_json`
        passes through.
        """
        draft, index = self.folder / "meta.json", self.folder.parent
        # With a journal in its folder the index would look like a draft: the next indexer would resume it, and write
        # into columns that workers have mapped. A killed indexer may have left the other two.
        for path in (self.folder / _JOURNAL, self.folder / _NEW_JOURNAL, draft):
            path.unlink(missing_ok=True)
        # The columns' names are on disk before `meta.json` points to them, and the rename is on disk before we return.
        sync_folder(self.folder)
        with replacing(index / "meta.json", draft) as file:
            file.write(meta_json(meta).encode())
        sync_folder(index)

    def keep_bad_rows(self) -> Path:
        """Keep the list of bad rows beside the index, for people who mend refused data; return its path.

        Raise an OSError if there is no list, or it cannot be moved.
        """
        return (self.folder / BAD_ROWS).replace(self.folder.parent / _REFUSED)

    # --- what is in the files, once they are closed ---

    def numbers(self) -> dict[str, NDArray[np.int64]]:
        """Return the source's own columns of numbers, by name, mapped from their files; maybe none.

        Raise an OSError or ValueError as `mapped` does.
        """
        return {name: mapped(self.folder / file_of(name)).view(np.int64) for name in self.journal.numbers}

    def strings(self) -> dict[str, Any]:
        """Return the source's columns of strings, by name, over their mapped files; maybe none.

        Raise an OSError or ValueError as `mapped` does.
        """
        return {name: open_strings(self.folder, name) for name in self.journal.ends}

    def measured(self, key: str) -> NDArray[np.int64]:
        """Return the measured lengths of one key, one a sample, mapped from their file.

        Raise a ValueError if they were not measured; errors of `mapped` pass through, such as an OSError.
        """
        return mapped(self.folder / f"measured_{self.journal.measured.index(key)}.npy").view(np.int64)


@contextlib.contextmanager
def open_draft(folder: Path, made_from: str, piece_rows: int) -> Iterator[Draft]:
    """Open the draft that a killed indexer of the same things left, or a new one, while the block lasts.

    It is removed if the data are refused (a StokerError) or the block does not commit it, and kept for the next try if
    the work is interrupted after a whole piece and `made_from` is known. Errors of the block are raised again,
    and an OSError if the draft cannot be made, finished or kept.
    """
    kept = None
    draft = (_resumed(folder, made_from, piece_rows) if made_from else None) or _new(folder, made_from, piece_rows)
    try:
        _sweep(folder, keep=draft.folder)
        (folder / _REFUSED).unlink(missing_ok=True)
        yield draft
    except StokerError:
        raise
    except BaseException:  # Ctrl-C or a full disk, for instance: finished work is kept
        # Without `made_from` a later indexer could not tell whether the draft is of the same data.
        if made_from and draft.journal.pieces:
            draft.keep()
            kept = draft.folder
        raise
    finally:
        draft.close()
        _sweep(folder, keep=kept)


def _new(folder: Path, made_from: str, piece_rows: int) -> Draft:
    columns = folder / f"{_COLUMNS}{secrets.token_hex(4)}"
    columns.mkdir()  # not `mkdtemp`, whose folders are closed to others: workers may be another user
    return Draft(columns, DraftJournal(made_from=made_from, piece_rows=piece_rows))


def _resumed(folder: Path, made_from: str, piece_rows: int) -> Draft | None:
    """Return the draft that an earlier indexer of the same things left; None if there is none, or a damaged one."""
    for path in sorted(folder.glob(f"{_COLUMNS}*/{_JOURNAL}")):
        # Whatever another version or a bad disk wrote there: then all is made anew, which is always right.
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            journal = _journal_in(path)
            if (journal.made_from, journal.piece_rows) == (made_from, piece_rows) and _is_there(path.parent, journal):
                return Draft(path.parent, journal)
    return None


def _journal_in(path: Path) -> DraftJournal:
    facts = json.loads(path.read_text("utf-8"))
    facts["fields"] = fields_in(facts["fields"])
    facts["numbers"] = tuple(facts["numbers"])
    return DraftJournal(**facts)


def _is_there(folder: Path, journal: DraftJournal) -> bool:
    """Return whether the files are at least as long as the journal says; raise an OSError if one is missing."""
    columns = [*journal.numbers, *(f"measured_{n}" for n in range(len(journal.measured)))]
    least = {file_of(name): 8 * journal.samples for name in columns}
    least |= {file_of(name, ".text.npy"): end for name, end in journal.ends.items()}
    least |= {file_of(name, ".starts.npy"): 8 * (journal.samples + 1) for name in journal.ends}
    sizes = {name: bytes_with_header(nbytes) for name, nbytes in least.items()} if journal.samples else {}
    sizes |= {BAD_ROWS: journal.bad_bytes} if journal.bad_bytes else {}
    # Longer is fine: opening the columns cuts what was written after the journal.
    return all((folder / name).stat().st_size >= size for name, size in sizes.items())


def _sweep(folder: Path, keep: Path | None) -> None:
    """Remove folders of columns that are neither the index's nor `keep`: older ones, and drafts that nobody resumes."""
    named = ""
    with contextlib.suppress(DataError):  # no index yet, or a damaged one
        named = read_meta(folder).folder
    for columns in folder.glob(f"{_COLUMNS}*"):
        if columns.name != named and columns != keep:
            shutil.rmtree(columns, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder's only indexer while the block lasts; a new folder that stays empty is removed.

    Raise a DataError if another indexer has the lock, a MachineError if a link or the like is in its file's place, and
    an OSError if the folder cannot be made or written, or has no locks.
    """
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder / "lock")
    try:
        yield
    finally:
        # Unlinked while it is still locked: once it is closed, another indexer may have locked a file of this name.
        (folder / "lock").unlink()
        os.close(handle)
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _lock(path: Path) -> int:
    """Return a descriptor with an exclusive lock; its owner unlinks the file before closing it.

    Raise a DataError if another indexer has the lock, a MachineError if a link or the like is in the file's place, and
    an OSError if it cannot be opened, or has no locks.
    """
    while True:
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        is_ours = lock(handle, wait=False)
        if is_ours and has_name(handle, path):
            return handle
        os.close(handle)
        if not is_ours:
            raise DataError(
                expected="to be the only one that makes this index",
                got="another loader-server index at work",
                where=str(path.parent),
                remedy="Wait for it, or end it.",
            )
        # The last owner unlinked the file between our opening and locking it: a lock on a file without a name would
        # keep nobody out. Open the path anew.
