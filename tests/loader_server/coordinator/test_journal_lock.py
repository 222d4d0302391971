"""The lock on a job's state folder, and the endpoint that is told whoever finds it locked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from pathlib import Path

import pytest

from loader_server.coordinator.journal import JournalLock, LockedError
from tests.support.descriptors import open_descriptors


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "journal.sqlite"


def refused(path) -> str:
    """Where the holder says that it serves."""
    with pytest.raises(LockedError) as caught:
        JournalLock(path)
    return caught.value.endpoint


@pytest.fixture(params=["folder", "file"])
def kind(request, monkeypatch):
    """A file system that can lock folders, and one that cannot."""
    if request.param == "file":
        flock = fcntl.flock

        def lock_files_only(descriptor: int, operation: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").is_dir():
                raise OSError(errno.EBADF, "Bad file descriptor")
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", lock_files_only)
    return request.param


@pytest.mark.fault(15)
@pytest.mark.usefixtures("kind")
class TestLock:
    def test_the_second_is_refused_and_told_where_the_first_serves(self, path):
        with contextlib.closing(JournalLock(path)) as lock:
            assert refused(path) == ""
            lock.say_where("tcp://127.0.0.1:7400")
            before = open_descriptors()
            assert refused(path) == "tcp://127.0.0.1:7400"
            assert not open_descriptors() - before

    def test_it_is_free_again_and_where_the_first_served_is_forgotten(self, path):
        with contextlib.closing(JournalLock(path)) as lock:
            lock.say_where("tcp://127.0.0.1:7400")
        with contextlib.closing(JournalLock(path)):
            assert refused(path) == ""

    def test_where_a_killed_one_served_is_forgotten_as_well(self, path):
        path.parent.mkdir()
        path.with_suffix(".endpoint").write_text("tcp://127.0.0.1:7400")
        with contextlib.closing(JournalLock(path)):
            assert refused(path) == ""


@pytest.mark.fault(56)
def test_a_lock_on_the_folder_survives_all_files_in_it(path):
    with contextlib.closing(JournalLock(path)) as lock:
        lock.say_where("tcp://127.0.0.1:7400")
        for file in path.parent.iterdir():
            file.unlink()
        assert refused(path) == "", "where it serves is not known any more"
        assert list(path.parent.iterdir()) == [], "a lock leaves nothing in the folder"


def test_a_link_that_is_planted_for_the_endpoint_is_replaced(path, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("of somebody else's")
    with contextlib.closing(JournalLock(path)) as lock:
        path.with_suffix(".endpoint").symlink_to(victim)
        lock.say_where("tcp://127.0.0.1:7400")
        assert refused(path) == "tcp://127.0.0.1:7400"
    assert victim.read_text() == "of somebody else's"


def test_there_is_no_lock_where_nothing_can_be_locked(path, monkeypatch):
    def lock_nothing(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", lock_nothing)
    before = open_descriptors()
    with pytest.raises(OSError, match="its file system has no locks"):
        JournalLock(path)
    assert not open_descriptors() - before
