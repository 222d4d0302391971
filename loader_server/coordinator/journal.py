"""The coordinator's memory on disk: facts that survive a crash, the newest of each kind.

Rules: SQLite with a write-ahead log, synced before any message that depends on it; one process at a time holds the lock
(`JournalLock`). Each row carries a checksum. A row that does not match its own is dropped with a warning, because the
fact can be found again; so is a row that only another release understands. Leases could not be found again by anybody,
so a damaged row about leases is refused, with the way out.

The files are checked before and after each write (`journal_files`). If they were deleted, moved, replaced or cut, the
write has failed, whatever SQLite says of it, and the coordinator goes on as with a full disk.

A full disk damages nothing: a write happens completely or not at all. `JournalWriter` keeps what could not be written,
the newest fact of each key, and tries again. Meanwhile no lease is promised and none is taken back (see service). No
promise to trainers in lockstep rests on the journal, so nothing is withheld from them: cursors are in their
checkpoints, a group travels with the cursor, and a sample that kills decoders would be found again. If the coordinator
is also restarted in that time, a stream that had just started takes its group from the next attach, and a trainer that
was superseded in between may come back until its successor does. Only the answer to a request to forget a conviction
states that this is not permanent yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import sqlite3
from typing import TYPE_CHECKING, Any

from loader_server.coordinator.events import (
    Advanced,
    CulpritFound,
    Fact,
    Forgot,
    GroupFixed,
    RankTaken,
    ResultsKept,
    ResultsLeft,
    ResultsPart,
    ResultsPartLeft,
    WorldNamed,
)
from loader_server.coordinator.journal_files import JournalFiles
from loader_server.leases.lease_book import (
    BookAdvanced,
    EpochClosed,
    EpochOpened,
    NumberDone,
    NumberOut,
    StatesForgotten,
    StatesSummed,
    TableForgotten,
    TableRewound,
)
from shared.errors import DataError
from shared.hashing import digest64
from shared.logs import Log
from shared.stores.own_files import CLOSED_REMEDY, open_own, replacing, why_closed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["HeldError", "Journal", "JournalLock", "JournalLostError", "JournalWriter", "LockedError", "WriteError"]

#: Facts about leases (who has which batch, and which are done), which nobody could find out again.
_OF_LEASES = (EpochOpened, NumberOut, TableRewound, StatesSummed, BookAdvanced)

_KINDS: dict[str, type[Fact]] = {
    kind.__name__: kind
    for kind in (GroupFixed, Advanced, RankTaken, CulpritFound, ResultsKept, ResultsPart, WorldNamed, *_OF_LEASES)
}

#: Each of these removes the fact that it undoes, which has the same key.
_UNDOES: dict[type[Fact], type[Fact]] = {
    Forgot: CulpritFound,
    EpochClosed: EpochOpened,
    NumberDone: NumberOut,
    ResultsLeft: ResultsKept,
    ResultsPartLeft: ResultsPart,
    TableForgotten: TableRewound,
    StatesForgotten: StatesSummed,
}

#: The fields that tell facts of one kind apart, where these are others than the stream.
_KEY_FIELDS: dict[type[Fact], tuple[str, ...]] = {
    BookAdvanced: (),
    RankTaken: ("stream", "rank"),
    CulpritFound: ("stream", "identity"),
    ResultsPart: ("stream", "incarnation"),
    TableRewound: ("stream", "work"),
    StatesSummed: ("stream", "work"),
    EpochOpened: ("stream", "work", "epoch"),
    NumberOut: ("stream", "work", "epoch", "number"),
}

#: Fields that rows have under the name that an earlier release gave them, so that any release can read them.
_NAMES_IN_ROWS = {"reports": "told"}

#: SQLite's message about a damaged table quotes from it, and the quotation may not be UTF-8.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)

#: Errors of file systems that cannot lock a folder.
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EISDIR, errno.EACCES)

_LONGEST_ENDPOINT = 4096


class HeldError(DataError):
    """Another process holds the journal; `endpoint` is where it serves, empty if it is not known yet."""

    endpoint = ""


class WriteError(DataError):
    """The journal cannot be written now; what it holds is intact."""


class JournalLostError(WriteError):
    """The journal's files are gone or cut, so its content would not survive a restart."""


class Journal:
    """The journal's files, locked and open; `write` returns when the facts are on disk.

    Making it raises HeldError if another process holds the journal, WriteError if it cannot be locked, made or opened,
    DataError if it is damaged, and MachineError if a link or the like is in the lock file's place.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = Log("journal")
        self._files = JournalFiles(path)
        self._lock = self._hold()
        try:
            self._database = self._open()
            self._files.note()
        except BaseException:  # the lock would stay with a journal that nobody has
            self._files.close()
            self._lock.close()
            raise

    def _hold(self) -> JournalLock:
        try:
            return JournalLock(self._path)
        except LockedError as error:
            held = HeldError(
                expected="to be the only coordinator of this job",
                got=f"another one{f' at {error.endpoint}' if error.endpoint else ''} that holds the journal",
                where=str(self._path),
                remedy="Stop the other one (`loader-server status` finds it), or name another state folder.",
            )
            held.endpoint = error.endpoint
            raise held from None
        except OSError as error:
            raise self._no_room(error) from None

    def _open(self) -> sqlite3.Connection:
        database: sqlite3.Connection | None = None
        try:
            database = sqlite3.connect(self._path, isolation_level=None)
            # A flipped bit may leave invalid UTF-8: the row's checksum has to notice it, not the decoder.
            database.text_factory = lambda raw: raw.decode(errors="replace")
            # Nobody else uses the database, so it needs no shared-memory file: a full disk then prevents writing, not
            # opening.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            # A checkpoint syncs twice more while everybody waits, so there is one every 32 MB instead of SQLite's
            # default of 4.
            database.execute("PRAGMA wal_autocheckpoint = 8000")
            database.execute(
                "CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL)"
            )
            with contextlib.suppress(sqlite3.OperationalError):  # no room on the disk: the log simply goes on
                # A log that starts empty has a known end, from which `journal_files` follows it.
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except _DAMAGE as error:
            if database is not None:
                database.close()
            raise (self._no_room(error) if _is_for_want_of_room(error) else self._damaged(error)) from None
        return database

    def say_where(self, endpoint: str) -> None:
        """Write down where this coordinator serves, for processes that find the journal locked.

        A disk that cannot be written is ignored.
        """
        self._lock.say_where(endpoint)

    def read_facts(self) -> Iterator[Fact]:
        """Yield all facts in the order of their rows; skip, with a warning, those that are damaged or unknown here.

        Convictions by number of earlier releases are skipped and deleted, with a warning. Raises DataError if the table
        is damaged, or a row about leases is damaged or of an unknown kind or fields.
        """
        try:
            rows = self._database.execute("SELECT key, body, digest FROM facts ORDER BY rowid").fetchall()
        except _DAMAGE as error:
            raise self._damaged(error) from None
        for key, body, digest in rows:
            fact = _fact_of(body) if digest == _digest(key, body) else None
            if fact is not None:
                yield fact
            elif _names_a_number(body):
                # Of an earlier release. Applied to another sample it would mask that one for good.
                self._log.warning("conviction by number is dropped: samples may have other numbers now", key=key)
                with contextlib.suppress(sqlite3.Error):  # if not, it is dropped at each start
                    self._database.execute("DELETE FROM facts WHERE key = ?", (key,))
            # Without it a number that is out would count as done, or be leased a second time.
            elif key.startswith(tuple(kind.__name__ for kind in _OF_LEASES)):
                raise DataError(
                    expected="all facts about leased batches to be whole",
                    got=f"a damaged one, {key}",
                    where=str(self._path),
                    remedy="Move the file away and start again, then restore the trainers' checkpoint: it says which "
                    "batches are done.",
                )
            else:
                self._log.warning("damaged fact is dropped", path=str(self._path), key=key)

    def write(self, facts: Iterable[Fact]) -> None:
        """Write all facts in one transaction, or none; each replaces the older one of its key, or deletes it.

        Raises WriteError if the disk does not take them, or JournalLostError if the files are no longer ours, even
        after the commit. An OSError of looking at the files passes through.
        """
        changes = self._database.total_changes
        try:
            self._database.execute("BEGIN IMMEDIATE")
            for fact in facts:
                self._write(fact)
            self.refuse_lost()  # as late as possible, because writes into files that are gone succeed
            self._database.execute("COMMIT")
        except (sqlite3.Error, JournalLostError) as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._files.note_given_up()
            self.refuse_lost()  # SQLite fails to read a file that was cut, without a reason in its error
            raise (error if isinstance(error, JournalLostError) else self._no_room(error)) from error
        # Looked at once more: files that vanish between the look above and the commit take the facts with them.
        self._files.note(wrote=self._database.total_changes > changes)
        self.refuse_lost()

    def refuse_lost(self) -> None:
        """Raise JournalLostError if the files were unlinked, moved, replaced or cut: their content would be lost.

        An OSError of reading the log passes through.
        """
        problem = self._files.problem()
        if problem:
            raise JournalLostError(
                expected="the journal's files to be as the coordinator left them",
                got=problem,
                where=str(self._path.parent),
                remedy="If they were moved, move them back. Otherwise end the trainers of streams in queue mode and "
                "the loaders, and start them again: training resumes at the last checkpoint. Training in lockstep goes "
                "on.",
            )

    def _write(self, fact: Fact) -> None:
        key = _key(fact)
        if type(fact) in _UNDOES:
            self._database.execute("DELETE FROM facts WHERE key = ?", (key,))
        else:
            fields = {_NAMES_IN_ROWS.get(name, name): value for name, value in dataclasses.asdict(fact).items()}
            body = json.dumps([type(fact).__name__, fields])
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", (key, body, _digest(key, body)))

    def _no_room(self, error: Exception) -> WriteError:
        closed = why_closed(self._path.parent) or why_closed(self._path)
        return WriteError(
            expected="to write the journal" + (f" as user {os.geteuid()}" if closed else ""),
            got=closed or str(error),
            where=str(self._path),
            remedy=CLOSED_REMEDY if closed else "Make room on its disk, and let this user write there.",
        )

    def _damaged(self, error: Exception) -> DataError:
        return DataError(
            expected="a whole journal",
            got=str(error),
            where=str(self._path),
            remedy="Move the file away and start again: trainers bring their cursors from their checkpoints; only a "
            "group other than the world's size has to be set again in [job].",
        )

    def close(self) -> None:
        """Close the database, remove the address that `say_where` wrote down, and release the lock."""
        self._files.close()
        self._database.close()
        self._lock.close()


class JournalWriter:
    """Buffer of facts that are not on disk yet, the newest of each key; every `write` tries them again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._log = Log("journal")
        #: By key, so that what waits for a full disk is bounded by what the journal would hold.
        self._waiting: dict[str, Fact] = {}
        #: Number of failed writes.
        self.errors = 0
        #: The problem with the journal's files; empty if they are in place and whole.
        self.lost = ""

    @property
    def waiting(self) -> int:
        """Return how many facts would not survive a crash now."""
        return len(self._waiting)

    def write(self, facts: Iterable[Fact]) -> bool:
        """Write these facts and all that still wait; return whether all are on disk, in files that are in place.

        If not, the facts wait for the next call. Without any fact to write, only the files are checked. An OSError of
        looking at the files passes through.
        """
        had_waited = self.waiting
        self._waiting.update({_key(fact): fact for fact in facts})
        error = self._try()
        self._log_change(error, had_waited)
        if error is None:
            self._waiting.clear()
        self.errors += bool(self._waiting)
        return error is None

    def _try(self) -> WriteError | None:
        try:
            if self._waiting:
                self._journal.write(self._waiting.values())
            # With nothing to write SQLite would not notice that its files are gone, nor would a promise that rests on
            # facts written earlier.
            else:
                self._journal.refuse_lost()
        except WriteError as error:
            return error
        return None

    def _log_change(self, error: WriteError | None, had_waited: int) -> None:
        """Update `lost`; log once when the journal becomes unwritable or lost, and once when it is written again."""
        was_lost, self.lost = self.lost, error.got if isinstance(error, JournalLostError) else ""
        if self.lost and not was_lost:
            self._log.error("journal is lost: nothing is leased until its files are back", error=str(error))
        elif error is not None and not (self.lost or had_waited):
            self._log.error("journal cannot be written: what it lacks is tried again", error=str(error))
        elif error is None and (had_waited or was_lost):
            self._log.warning("journal is written again: nothing is lacking", facts=had_waited)


def _is_for_want_of_room(error: Exception) -> bool:
    """Return whether the disk is at fault (full, unreadable, read-only), not the database.

    Judged by SQLite's message, because Python 3.10 passes on nothing else.
    """
    return any(words in str(error) for words in ("is full", "disk I/O error", "unable to open", "readonly"))


def _key(fact: Fact) -> str:
    """Return the key of a fact: the newest fact of a key replaces the others, and one that undoes it removes it."""
    kind = _UNDOES.get(type(fact), type(fact))
    key = "/".join([kind.__name__, *(str(getattr(fact, name)) for name in _KEY_FIELDS.get(kind, ("stream",)))])
    if not isinstance(fact, ResultsKept | ResultsLeft):
        return key
    return key + ("/aside" if fact.aside else "") + (f"/of {fact.evaluation}" if fact.evaluation else "")


def _fact_of(body: str) -> Fact | None:
    """Return the fact; None if the text is damaged, or another release wrote it, with an unknown kind or fields."""
    try:
        kind, fields = json.loads(body)
        names = {in_row: name for name, in_row in _NAMES_IN_ROWS.items()}
        values: dict[str, Any] = {names.get(name, name): _plain(value) for name, value in fields.items()}
        return _KINDS[kind](**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(value: object) -> object:
    """Turn the lists of JSON, nested ones too, back into the tuples that facts hold; return others unchanged."""
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def _names_a_number(body: str) -> bool:
    """Return whether it is a conviction by the sample's number, as earlier releases wrote it; False if unreadable."""
    try:
        kind, fields = json.loads(body)
        return bool(kind == CulpritFound.__name__ and "sample" in fields)
    except (ValueError, TypeError):
        return False


def _digest(key: str, body: str) -> str:
    return f"{digest64(f'{key} {body}'.encode()):016x}"


class LockedError(Exception):
    """Another process holds the lock; `endpoint` is where it serves, empty if that is not known."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        super().__init__(endpoint)


class JournalLock:
    """The lock that only one process holds on a journal, from construction until `close`, and where that one serves.

    It is on the state folder itself, so it survives whatever happens to the files in it: nobody who tidies up can let a
    second coordinator start beside the first. Where a folder cannot be locked (NFS), a lock file takes its place.
    Raises LockedError if another process holds it, OSError if the folder cannot be made or opened or its file system
    has no locks, and MachineError if a link or the like is in the lock file's place.
    """

    def __init__(self, journal: Path) -> None:
        self._where = journal.with_suffix(".endpoint")
        journal.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The folder first: a lock on a file in it would be lost to anybody who deletes that file.
            self._descriptor = _lock(os.open(journal.parent, os.O_RDONLY | os.O_DIRECTORY))
            if self._descriptor is None:
                self._descriptor = _lock(open_own(journal.with_suffix(".lock"), os.O_RDWR | os.O_CREAT))
        except BlockingIOError:
            raise LockedError(self._read_endpoint()) from None
        if self._descriptor is None:
            raise OSError(errno.ENOLCK, "its file system has no locks")
        # A killed holder leaves its address behind, where nobody serves any more.
        self._forget_endpoint()

    def say_where(self, endpoint: str) -> None:
        """Write down where this process serves; ignore a disk that cannot be written."""
        # A full disk must not stop the coordinator: others then have to find its address in another way.
        with contextlib.suppress(OSError), replacing(self._where) as file:
            file.write(endpoint.encode())

    def _read_endpoint(self) -> str:
        try:
            with self._where.open(errors="replace") as file:
                return file.read(_LONGEST_ENDPOINT)
        except OSError:
            return ""

    def _forget_endpoint(self) -> None:
        with contextlib.suppress(OSError):
            self._where.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the address, if that can be done, and release the lock."""
        self._forget_endpoint()
        assert self._descriptor is not None
        os.close(self._descriptor)


def _lock(descriptor: int) -> int | None:
    """Lock an open file and return its descriptor.

    Return None, with the file closed, if the file system cannot lock it. Raise BlockingIOError if another process holds
    the lock, and pass on any other OSError, with the file closed as well.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_LOCKS:
            return None
        raise
    return descriptor
