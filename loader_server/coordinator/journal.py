"""The coordinator's memory on disk: facts that survive a crash, the newest of each kind.

Rules: SQLite with a write-ahead log, synchronised before anything that depends on it is said; one coordinator at a
time holds the lock; each row carries a digest, and one that does not match is dropped with a warning, because every
fact can be found again; so is one that only another release understands.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import sqlite3
from typing import TYPE_CHECKING

from loader_server.coordinator.events import Advanced, CulpritFound, Fact, GroupFixed
from shared.errors import DataError
from shared.hashing import digest64
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Journal"]

_KINDS: dict[str, type[Fact]] = {kind.__name__: kind for kind in (GroupFixed, Advanced, CulpritFound)}

#: SQLite's account of a damaged table quotes it, and what it quotes may be no UTF-8.
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


class Journal:
    """One file; `write` returns when the facts are on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        self._database = sqlite3.connect(path, isolation_level=None)
        # A flipped bit may leave no UTF-8: the row's digest is what tells.
        self._database.text_factory = lambda raw: raw.decode(errors="replace")
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL)"
            )
        except _DAMAGE as error:
            self.close()
            raise self._damaged(error) from None

    def _locked(self) -> int:
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise DataError(
                expected="to be the only coordinator of this job",
                got="another one that holds the journal",
                where=str(self._path),
                remedy="Stop the other one (`loader-server status` finds it), or name another state folder.",
            ) from None
        return lock

    def facts(self) -> Iterator[Fact]:
        """All facts; a damaged row is left out, with a warning."""
        try:
            rows = self._database.execute("SELECT key, body, digest FROM facts ORDER BY rowid").fetchall()
        except _DAMAGE as error:
            raise self._damaged(error) from None
        for key, body, digest in rows:
            fact = _fact(body) if digest == _digest(key, body) else None
            if fact is None:
                Log("journal").warning("damaged fact is dropped", path=str(self._path), key=key)
            else:
                yield fact

    def write(self, facts: Iterable[Fact]) -> None:
        """Keep facts, all or none; an older one of the same key is replaced."""
        rows = [(key := _key(fact), body := _body(fact), _digest(key, body)) for fact in facts]
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _damaged(self, error: Exception) -> DataError:
        return DataError(
            expected="a whole journal",
            got=str(error),
            where=str(self._path),
            remedy="Move the file away and start again: trainers bring their cursors from their checkpoints; only a "
            "group other than the world's size has to be set again in [job].",
        )

    def close(self) -> None:
        """Close file and lock."""
        self._database.close()
        os.close(self._lock)


def _key(fact: Fact) -> str:
    name = type(fact).__name__
    return f"{name}/{fact.stream}/{fact.identity}" if isinstance(fact, CulpritFound) else f"{name}/{fact.stream}"


def _body(fact: Fact) -> str:
    return json.dumps([type(fact).__name__, dataclasses.asdict(fact)])


def _fact(body: str) -> Fact | None:
    """None if another release wrote it, of a kind or with fields that are not known here."""
    try:
        kind, fields = json.loads(body)
        return _KINDS[kind](**fields)
    except (ValueError, KeyError, TypeError):
        return None


def _digest(key: str, body: str) -> str:
    return f"{digest64(f'{key} {body}'.encode()):016x}"
