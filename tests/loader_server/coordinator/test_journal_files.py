"""What is noticed of files that others delete, move, replace or cut while we have them open."""

from __future__ import annotations

import os

import pytest

from loader_server.coordinator.journal_files import JournalFiles
from tests.support.descriptors import open_descriptors


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"x" * 100)
    path.with_name("journal.sqlite-wal").write_bytes(b"y" * 50)
    return path


@pytest.fixture
def files(path):
    files = JournalFiles(path)
    files.note()
    yield files
    files.close()


LOG = pytest.mark.parametrize("suffix", ["", "-wal"])


@pytest.mark.fault(56)
@LOG
class TestNoticed:
    @pytest.fixture
    def file(self, path, suffix):
        return path.with_name(path.name + suffix)

    def test_nothing_is_wrong_with_files_that_are_left_alone(self, files, file):
        with file.open("ab") as more:
            more.write(b"z")
        os.link(file, file.with_name("a second name"))
        file.chmod(0o600)
        assert files.problem() == ""

    def test_unlinked(self, files, file):
        file.unlink()
        assert files.problem() == f"{file.name} was unlinked"

    def test_moved_away_and_back(self, files, file):
        elsewhere = file.rename(file.with_name("elsewhere"))
        assert files.problem() == f"{file.name} was moved away"
        elsewhere.rename(file)
        assert files.problem() == ""

    def test_replaced_by_a_file_of_the_same_bytes(self, files, file):
        copy = file.with_name("copy")
        copy.write_bytes(file.read_bytes())
        copy.rename(file)
        assert files.problem() == f"{file.name} was replaced by another file"

    def test_shortened_and_that_filling_it_up_again_does_not_help(self, files, file):
        size = file.stat().st_size
        os.truncate(file, size - 1)
        problem = f"{file.name} was shortened from {size} to {size - 1} bytes"
        assert files.problem() == problem
        os.truncate(file, 2 * size)
        assert files.problem() == problem

    def test_shortened_to_less_than_it_was_at_its_longest(self, files, file):
        os.truncate(file, 1000)
        files.note()
        os.truncate(file, 999)
        files.note()
        assert files.problem() == f"{file.name} was shortened from 1000 to 999 bytes"

    def test_its_folder_is_gone(self, files, file):
        file.parent.rename(file.parent.with_name("gone"))
        assert files.problem() == "journal.sqlite was moved away"
        file.parent.with_name("gone").rename(file.parent)

    def test_a_path_that_cannot_be_looked_at(self, files, file):
        file.unlink()
        file.symlink_to(file.name)
        assert "cannot be looked at: Too many levels of symbolic links" in files.problem()


def test_a_log_that_is_made_later_is_watched_from_then_on(path):
    log = path.with_name("journal.sqlite-wal")
    log.unlink()
    files = JournalFiles(path)
    files.note()
    assert files.problem() == ""
    log.write_bytes(b"y")
    files.note()
    log.unlink()
    assert files.problem() == "journal.sqlite-wal was unlinked"
    files.close()


def test_no_descriptor_is_left(path):
    before = open_descriptors()
    files = JournalFiles(path)
    for _ in range(3):
        files.note()
    assert len(open_descriptors() - before) == 3
    files.close()
    assert not open_descriptors() - before
