"""What is on disk after a crash, a flipped bit, a full disk, a second coordinator."""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader_server.coordinator import journal as journal_module
from loader_server.coordinator.events import Advanced, CulpritFound, Forgot, GroupFixed, RankTaken
from loader_server.coordinator.journal import HeldError, Journal, JournalLostError, JournalWriter, WriteError
from shared.errors import DataError
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.descriptors import open_descriptors
from tests.support.disk import small_disk

ROOT = Path(__file__).parents[3]


def facts(path: Path) -> list[object]:
    journal = Journal(path)
    try:
        return list(journal.read_facts())
    finally:
        journal.close()


def written(path: Path, *some) -> Path:
    journal = Journal(path)
    for one in some:
        journal.write([one])
    journal.close()
    return path


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class TestKeeping:
    def test_the_newest_fact_of_each_kind_and_stream_is_kept(self, tmp_path):
        path = written(
            tmp_path / "journal.sqlite",
            GroupFixed("train", 4),
            Advanced("train", 0, 1),
            Advanced("dev", 0, 9),
            CulpritFound("train", "7.wav 8 1", "SIGSEGV, SIGSEGV"),
            CulpritFound("train", "8.wav 8 1", "SIGSEGV, SIGSEGV"),
            Advanced("train", 1, 2),
            RankTaken("train", 0, (5, 2**64 - 1), 2**40),
            RankTaken("train", 1, (), 7),
        )
        assert set(facts(path)) == {
            GroupFixed("train", 4),
            Advanced("train", 1, 2),
            Advanced("dev", 0, 9),
            CulpritFound("train", "7.wav 8 1", "SIGSEGV, SIGSEGV"),
            CulpritFound("train", "8.wav 8 1", "SIGSEGV, SIGSEGV"),
            RankTaken("train", 0, (5, 2**64 - 1), 2**40),
            RankTaken("train", 1, (), 7),
        }

    @pytest.mark.fault(36)
    def test_what_is_forgotten_is_gone_and_may_be_found_again(self, tmp_path):
        found = [CulpritFound("train", identity, "SIGSEGV, SIGSEGV") for identity in "ab"]
        path = written(tmp_path / "journal.sqlite", *found, Forgot("train", "a"), Forgot("dev", "b"))
        assert facts(path) == [found[1]]
        assert set(facts(written(path, found[0]))) == set(found)

    def test_the_folder_is_made(self, tmp_path):
        assert facts(tmp_path / "new" / "state" / "journal.sqlite") == []

    def test_facts_of_one_write_come_whole_or_not_at_all(self, tmp_path):
        path = written(tmp_path / "journal.sqlite", Advanced("train", 0, 1))
        journal = Journal(path)
        journal._database.executescript(
            "CREATE TRIGGER no BEFORE INSERT ON facts WHEN NEW.key LIKE 'Culprit%' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END;"
        )
        with pytest.raises(WriteError, match=r"expected to write the journal, got no. Make room on its disk"):
            journal.write([Advanced("train", 0, 2), CulpritFound("train", "1.wav 8 1", "SIGSEGV, SIGSEGV")])
        journal.write([GroupFixed("train", 2)])
        journal.close()
        assert set(facts(path)) == {Advanced("train", 0, 1), GroupFixed("train", 2)}


WRITER = """
import sys
from pathlib import Path
from loader_server.coordinator.journal import Journal
from loader_server.coordinator.events import Advanced, CulpritFound
journal = Journal(Path(sys.argv[1]))
for number in range(10**9):
    journal.write([Advanced("train", 0, number), CulpritFound("train", f"{number % 50}.wav", "SIGSEGV, SIGSEGV")])
    print(number, flush=True)
"""


@pytest.mark.fault(13)
@pytest.mark.fault(11)
def test_a_busy_journal_is_seldom_taken_into_its_database(tmp_path):
    """Each time costs two more synchronisations, for which all trainers wait."""
    path = tmp_path / "journal.sqlite"
    with contextlib.closing(Journal(path)) as journal:
        before = path.stat().st_size
        journal.write([CulpritFound("train", "x" * 3000 + str(number), "SIGSEGV") for number in range(1500)])
        assert path.stat().st_size == before


def test_kill_9_in_the_midst_of_writing_loses_nothing_acknowledged(tmp_path):
    path = tmp_path / "journal.sqlite"
    reached = -1
    for lines in (1, 40, 300):
        process = child(WRITER, str(path))
        for _ in range(lines):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read()  # `communicate` would leave out what `readline` has read ahead
        process.communicate()
        last = int(said.split()[-1]) if said.split() else lines - 1
        (advanced,) = [one for one in facts(path) if isinstance(one, Advanced)]
        assert advanced.number in (last, last + 1), "the one being written may or may not have come through"
        reached = max(reached, advanced.number)
    assert reached >= 299


@pytest.mark.fault(13)
class TestDamage:
    @pytest.fixture
    def path(self, tmp_path):
        return written(tmp_path / "journal.sqlite", GroupFixed("train", 4), Advanced("train", 3, 1234567))

    @pytest.mark.parametrize("bit", [0, 3, 7])
    def test_a_flipped_bit_in_a_row_drops_that_row_with_a_warning(self, path, caplog, bit):
        data = bytearray(path.read_bytes())
        data[data.index(b"1234567")] ^= 1 << bit
        path.write_bytes(data)
        with caplog.at_level(logging.WARNING, "stoker.journal"):
            assert facts(path) == [GroupFixed("train", 4)]
        (record,) = caplog.records
        assert record.event == "damaged fact is dropped"
        assert record.fields == {"path": str(path), "key": "Advanced/train"}

    def test_a_fact_that_only_another_release_understands_is_dropped_with_a_warning(self, path, caplog):
        body = '["Foreseen", {"stream": "train"}]'
        database = sqlite3.connect(path)
        database.execute(
            "INSERT INTO facts VALUES ('Foreseen/train', ?, ?)", (body, journal_module._digest("Foreseen/train", body))
        )
        database.commit()
        database.close()
        assert len(facts(path)) == 2
        assert "damaged fact is dropped" in caplog.text

    @pytest.mark.fault(36)
    def test_convictions_by_number_are_dropped_once_saying_so(self, path, caplog):
        key, body = "CulpritFound/train/17", '["CulpritFound", {"stream": "train", "sample": 17}]'
        database = sqlite3.connect(path)
        database.execute("INSERT INTO facts VALUES (?, ?, ?)", (key, body, journal_module._digest(key, body)))
        database.commit()
        database.close()
        for _ in range(2):
            assert len(facts(path)) == 2
        (record,) = caplog.records
        assert record.event == "conviction by number is dropped: samples may have other numbers now"
        assert record.fields == {"key": key}

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(where=st.floats(0, 0.9999), bit=st.integers(0, 7))
    def test_any_flipped_bit_leaves_true_facts_or_a_refusal(self, path, where, bit):
        whole = path.read_bytes()
        data = bytearray(whole)
        data[int(where * len(data))] ^= 1 << bit
        path.write_bytes(data)
        found: set[object] = set()
        with contextlib.suppress(DataError):
            found = set(facts(path))
        path.write_bytes(whole)
        for other in path.parent.glob("journal.sqlite-*"):
            other.unlink()
        assert found <= {GroupFixed("train", 4), Advanced("train", 3, 1234567)}

    @pytest.mark.parametrize("place", [0, 4, 20, 38])
    def test_a_damaged_table_is_refused_though_its_account_may_be_no_utf_8(self, path, place):
        data = bytearray(path.read_bytes())
        data[data.index(b"CREATE TABLE") + place] ^= 0x80
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"expected a whole journal, got .* Move the file away and start again"):
            facts(path)

    def test_a_torn_write_ahead_log_is_read_up_to_the_tear(self, tmp_path):
        path = tmp_path / "torn.sqlite"
        process = child(WRITER, str(path))
        for _ in range(20):
            process.stdout.readline()
        process.kill()
        process.communicate()
        log = path.with_name("torn.sqlite-wal")
        log.write_bytes(log.read_bytes()[:-2000])
        (advanced,) = [one for one in facts(path) if isinstance(one, Advanced)]
        assert advanced.number >= 0

    @pytest.mark.parametrize("garbage", [b"this is no database at all" * 400, b"SQLite format 3\0" + b"\xff" * 9000])
    def test_a_garbage_file_is_refused_with_a_remedy(self, tmp_path, garbage):
        path = tmp_path / "journal.sqlite"
        path.write_bytes(garbage)
        for _ in range(2):  # the refusal leaves no lock behind
            with pytest.raises(DataError) as caught:
                facts(path)
            assert caught.value.expected == "a whole journal"
            assert caught.value.where == str(path)
            assert "Move the file away" in caught.value.remedy
        path.unlink()
        assert facts(path) == []


@pytest.mark.fault(15)
def test_a_second_coordinator_on_one_journal_is_refused(tmp_path):
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    with pytest.raises(HeldError) as caught:
        Journal(path)
    assert caught.value.expected == "to be the only coordinator of this job"
    assert caught.value.got == "another one that holds the journal"
    assert caught.value.where == str(path)
    assert "Stop the other" in caught.value.remedy
    assert caught.value.endpoint == ""
    first.say_where("tcp://127.0.0.1:7400")
    before = open_descriptors()
    with pytest.raises(HeldError, match=r"got another one at tcp://127.0.0.1:7400 that holds the journal") as caught:
        Journal(path)
    assert not open_descriptors() - before
    assert caught.value.endpoint == "tcp://127.0.0.1:7400"
    first.write([GroupFixed("train", 4)])
    first.close()
    assert facts(path) == [GroupFixed("train", 4)]
    second = Journal(path)
    with pytest.raises(HeldError) as caught:
        Journal(path)
    second.close()
    assert caught.value.endpoint == "", "where an earlier one was is not told"


@pytest.mark.fault(15)
def test_the_lock_goes_with_a_killed_coordinator(tmp_path):
    path = tmp_path / "journal.sqlite"
    process = child(WRITER, str(path))
    process.stdout.readline()
    with pytest.raises(DataError):
        Journal(path)
    process.kill()
    process.communicate()
    assert facts(path)


FILLER = """
import resource, signal, sys
from pathlib import Path
from loader_server.coordinator.journal import Journal, WriteError
from loader_server.coordinator.events import Advanced, CulpritFound
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for number in range(100_000):
    try:
        journal.write([CulpritFound("train", str(number), "SIGSEGV, SIGSEGV")])
    except WriteError as error:
        break
    print(number, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.write([Advanced("train", 0, 77)])
"""


@pytest.mark.fault(14)
def test_a_full_disk_is_said_and_what_was_kept_stays_whole(tmp_path):
    path = tmp_path / "journal.sqlite"
    process = child(FILLER, str(path))
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    numbers = said.split()
    assert len(numbers) > 5
    kept = facts(path)
    assert {one.identity for one in kept if isinstance(one, CulpritFound)} == set(numbers)
    assert Advanced("train", 0, 77) in kept, "it goes on once there is room"


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.mark.fault(14)
def test_a_full_file_system_loses_nothing_and_facts_wait_for_room(disk, caplog):
    path = disk.folder / "state" / "journal.sqlite"
    journal = Journal(path)
    writer = JournalWriter(journal)
    assert writer.write([GroupFixed("train", 4), Advanced("train", 0, 1)])
    make_room = disk.fill()
    for number in range(2, 40):
        found = CulpritFound("train", "x" * 3000 + str(number), "SIGSEGV")
        writer.write([Advanced("train", 0, number), found])
    assert not writer.write([Advanced("train", 0, 40)])
    assert writer.errors > 2
    make_room()
    assert writer.write([])
    assert writer.waiting == 0
    journal.close()
    kept = facts(path)
    assert {GroupFixed("train", 4), Advanced("train", 0, 40)} < set(kept)
    assert len(kept) == 2 + 38
    assert [record.event for record in caplog.records] == [
        "journal cannot be written: what it lacks is tried again",
        "journal is written again: nothing is lacking",
    ]


@pytest.mark.fault(14)
@pytest.mark.parametrize("killed", [True, False])
def test_a_coordinator_comes_back_on_a_full_file_system(disk, killed):
    """After kill -9 the log is still there; after an end in good order it would have to be made anew."""
    path = written(disk.folder / "journal.sqlite", GroupFixed("train", 4))
    if killed:
        process = child(WRITER, str(path))
        process.stdout.readline()
        process.kill()
        process.communicate()
    disk.fill()
    journal = Journal(path)
    assert GroupFixed("train", 4) in set(journal.read_facts())
    with pytest.raises(WriteError):
        journal.write([CulpritFound("train", str(number) + "x" * 4000, "SIGSEGV") for number in range(300)])
    journal.close()


@pytest.mark.fault(14)
def test_no_room_for_a_first_journal_is_an_error_with_the_remedy(disk):
    disk.fill()
    for _ in range(2):  # the refusal leaves no lock behind
        with pytest.raises(WriteError, match=r"expected to write the journal, got .* Make room on its disk"):
            Journal(disk.folder / "journal.sqlite")


@pytest.mark.fault(66)
@pytest.mark.parametrize(("mode", "closed"), [(0o755, ""), (0o777, "/journal.sqlite")])
def test_a_journal_that_this_user_may_not_write_names_place_and_user(mode, closed):
    with folder_for_all() as folder:
        path = written(folder / "journal.sqlite", GroupFixed("train", 4))
        folder.chmod(mode)
        refusal = (
            rf"expected to write the journal as user [1-9]\d*, got {folder}{closed} of user 0 with mode \d+\. Let this"
        )
        with as_another_user(), pytest.raises(WriteError, match=refusal):
            Journal(path)
        assert facts(path) == [GroupFixed("train", 4)]


class FullJournal:
    """A journal that can be written or not, as one says."""

    def __init__(self) -> None:
        self.is_full = True
        self.is_lost = False
        self.written: list[object] = []

    def refuse_lost(self) -> None:
        if self.is_lost:
            raise JournalLostError(expected="the files", got="it was unlinked", where="here", remedy="Begin anew.")

    def write(self, facts) -> None:
        self.refuse_lost()
        if self.is_full:
            raise WriteError(expected="to write", got="full", where="here", remedy="Make room.")
        self.written += facts


@pytest.mark.fault(14)
class TestWriting:
    def test_the_newest_of_each_key_is_tried_again(self):
        journal = FullJournal()
        writer = JournalWriter(journal)
        found = CulpritFound("train", "a", "SIGSEGV")
        again, elsewhere = Advanced("train", 0, 2), Advanced("dev", 0, 3)
        for fact in (Advanced("train", 0, 1), found, again, Forgot("train", "a"), elsewhere):
            assert not writer.write([fact])
        assert (writer.waiting, writer.errors) == (3, 5)
        assert not writer.write([])
        journal.is_full = False
        assert writer.write([])
        assert journal.written == [again, Forgot("train", "a"), elsewhere]
        assert writer.write([])
        assert (writer.waiting, writer.errors, len(journal.written)) == (0, 6, 3)

    def test_what_is_said_of_it_is_said_once(self, caplog):
        journal = FullJournal()
        writer = JournalWriter(journal)
        for number in range(3):
            writer.write([Advanced("train", 0, number)])
        journal.is_full = False
        for number in range(3):
            assert writer.write([Advanced("train", 1, number)])
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]

    @pytest.mark.fault(56)
    def test_a_lost_journal_is_noticed_though_there_is_nothing_to_write(self, caplog):
        journal = FullJournal()
        journal.is_full, journal.is_lost = False, True
        writer = JournalWriter(journal)
        for _ in range(3):
            assert not writer.write([])
        assert (writer.lost, writer.errors, writer.waiting) == ("it was unlinked", 0, 0)
        assert not writer.write([Advanced("train", 0, 1)])
        assert (writer.errors, writer.waiting) == (1, 1)
        journal.is_lost = False
        assert writer.write([])
        assert (writer.lost, journal.written) == ("", [Advanced("train", 0, 1)])
        assert [record.event for record in caplog.records] == [
            "journal is lost: nothing is leased until its files are back",
            "journal is written again: nothing is lacking",
        ]


@pytest.mark.fault(56)
class TestLostFiles:
    """Whatever happens to the files of a journal that is open, nothing is taken for written that would not be found."""

    @pytest.fixture
    def journal(self, tmp_path):
        journal = Journal(tmp_path / "journal.sqlite")
        journal.write([GroupFixed("train", 4)])
        with contextlib.closing(journal):
            yield journal

    def refusal(self, journal, *facts) -> JournalLostError:
        with pytest.raises(JournalLostError) as caught:
            journal.write(facts)
        return caught.value

    def test_facts_are_not_written_into_files_that_were_unlinked(self, journal, tmp_path):
        for file in tmp_path.glob("journal.sqlite*"):
            file.unlink()
        error = self.refusal(journal, Advanced("train", 0, 1))
        assert (error.got, error.where) == ("journal.sqlite was unlinked", str(tmp_path))
        assert "at the last checkpoint" in error.remedy
        with pytest.raises(JournalLostError):
            journal.refuse_lost()

    def test_what_was_moved_away_and_back_goes_on(self, journal, tmp_path):
        log = tmp_path / "journal.sqlite-wal"
        log.rename(tmp_path / "elsewhere")
        assert self.refusal(journal, Advanced("train", 0, 1)).got == "journal.sqlite-wal was moved away"
        (tmp_path / "elsewhere").rename(log)
        journal.write([Advanced("train", 0, 2)])
        assert list(journal.read_facts()) == [GroupFixed("train", 4), Advanced("train", 0, 2)]

    def test_files_that_vanish_during_a_write_make_it_fail(self, journal, tmp_path, monkeypatch):
        """SQLite says that it has written: the look behind it says otherwise."""
        refuse_lost, looks = journal.refuse_lost, []

        def look() -> None:
            refuse_lost()
            if not looks:
                looks.append((tmp_path / "journal.sqlite-wal").unlink())

        monkeypatch.setattr(journal, "refuse_lost", look)
        assert self.refusal(journal, Advanced("train", 0, 1)).got == "journal.sqlite-wal was unlinked"

    def test_a_journal_that_is_refused_leaves_no_descriptor(self, tmp_path):
        before = open_descriptors()
        with contextlib.closing(Journal(tmp_path / "journal.sqlite")):
            pass
        (tmp_path / "journal.sqlite").write_bytes(b"no database" * 100)
        with pytest.raises(DataError):
            Journal(tmp_path / "journal.sqlite")
        assert not open_descriptors() - before

    def test_a_second_coordinator_is_refused_though_all_files_are_gone(self, journal, tmp_path):
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(HeldError):
            Journal(tmp_path / "journal.sqlite")
