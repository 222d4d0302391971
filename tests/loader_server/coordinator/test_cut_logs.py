"""A journal's log that is cut while SQLite writes it: behind our last look it goes on where the log ended."""

from __future__ import annotations

import itertools
import os
import sqlite3

import pytest

from loader_server.coordinator.events import Advanced, CulpritFound
from loader_server.coordinator.journal import Journal, JournalLostError, WriteError


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    for number in range(3):
        journal.write([Advanced("train", 0, number)])
    yield journal
    journal.close()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "journal.sqlite-wal"


@pytest.mark.fault(56)
@pytest.mark.parametrize("by", [1, 4096, 4120, 8000])
def test_between_the_look_and_the_write(monkeypatch, journal, log, by):
    look, looks = journal.refuse_lost, itertools.count()

    def look_and_cut():
        look()
        if next(looks) == 0:
            os.truncate(log, log.stat().st_size - by)

    monkeypatch.setattr(journal, "refuse_lost", look_and_cut)
    with pytest.raises(JournalLostError, match=r"journal\.sqlite-wal was shortened"):
        journal.write([Advanced("train", 0, number) for number in range(3, 9)])


@pytest.mark.fault(56)
@pytest.mark.parametrize("by", [1, 4096, 4120])
def test_between_the_write_and_the_look(journal, log, by):
    database = journal._database

    class Cutting:
        def __getattr__(self, name):
            return getattr(database, name)

        def execute(self, statement, *values):
            done = database.execute(statement, *values)
            if statement == "COMMIT":
                os.truncate(log, log.stat().st_size - by)
            return done

    journal._database = Cutting()
    with pytest.raises(JournalLostError, match=r"journal\.sqlite-wal was shortened"):
        journal.write([Advanced("dev", 0, 1)])


def test_a_log_that_begins_anew_is_not_cut(journal):
    for number in range(3):
        journal._database.execute("PRAGMA wal_checkpoint").fetchall()
        for more in range(number + 2):
            journal.write([Advanced("train", 0, 10 * number + more)])
    journal.refuse_lost()


def test_what_a_write_that_was_given_up_left_is_not_taken_for_the_end(journal):
    journal._database.execute("PRAGMA cache_size = 1")  # frames are written before the transaction ends

    def failing():
        yield from (CulpritFound("train", f"{number}.wav 8 1", "x" * 5000) for number in range(20))
        raise sqlite3.OperationalError

    with pytest.raises(WriteError):
        journal.write(failing())
    for number in range(5):
        journal.write([Advanced("train", 0, number)])
    journal.refuse_lost()


@pytest.mark.fault(56)
def test_a_log_that_sqlite_cannot_read_any_more_is_lost_and_no_full_disk(journal, log):
    journal._database.execute("PRAGMA shrink_memory")  # what SQLite needs, it has to read
    os.truncate(log, log.stat().st_size // 2)
    with pytest.raises(JournalLostError, match=r"journal\.sqlite-wal was shortened"):
        journal.write([Advanced("train", 0, 9)])


@pytest.mark.parametrize("page", [512, 65536])
def test_pages_of_any_size_are_followed(tmp_path, page):
    path = tmp_path / "journal.sqlite"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA page_size = {page}")
    database.execute("CREATE TABLE anything (key TEXT)")
    database.close()
    journal = Journal(path)
    for number in range(5):
        journal.write([CulpritFound("train", f"{number}.wav 8 1", "x" * 2000)])
    os.truncate(path.with_name("journal.sqlite-wal"), path.with_name("journal.sqlite-wal").stat().st_size - 1)
    with pytest.raises(JournalLostError, match="shortened"):
        journal.write([Advanced("train", 0, 9)])
    journal.close()
