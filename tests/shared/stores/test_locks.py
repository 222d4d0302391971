"""Locks on files and bytes: one holder at a time, gone with the holder, and nobody misled by a file without a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from shared.errors import MachineError
from shared.stores.locks import has_name, is_byte_locked, lock, lock_byte, locked, unlock_byte
from tests.support.loaders import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two openings of one file."""
    with (tmp_path / "file").open("w+b") as one, (tmp_path / "file").open("r+b") as other:
        yield one.fileno(), other.fileno()


def test_a_second_opening_gets_no_lock_until_the_first_is_closed(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert lock(first, wait=False)
    assert not lock(second, wait=False)
    os.close(first)
    assert lock(second, wait=False)
    os.close(second)


def test_several_share_a_lock_and_keep_out_who_wants_it_alone(handles: tuple[int, int], tmp_path: Path) -> None:
    assert all(lock(handle, wait=False, shared=True) for handle in handles)
    with (tmp_path / "file").open("rb") as third:
        assert not lock(third.fileno(), wait=False)


def test_a_file_system_without_locks_is_an_error(monkeypatch: pytest.MonkeyPatch, handles: tuple[int, int]) -> None:
    def refuse(_handle: int, _operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="No locks"):
        lock(handles[0], wait=False)


def test_the_next_in_line_enters_when_the_first_leaves(tmp_path: Path) -> None:
    order = []

    def enter_second() -> None:
        with locked(tmp_path / "ledger"):
            order.append("second")

    second = threading.Thread(target=enter_second)
    with locked(tmp_path / "ledger") as handle:
        second.start()
        second.join(0.05)
        os.pwrite(handle, b"first", 0)
        order.append("first")
    second.join(60)
    assert order == ["first", "second"]
    assert (tmp_path / "ledger").read_bytes() == b"first"


def test_a_planted_link_is_not_locked_and_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "ledger").symlink_to(tmp_path / "other")
    with pytest.raises(MachineError, match="got a link"), locked(tmp_path / "ledger"):
        pass
    assert not (tmp_path / "other").exists()


def test_a_file_that_was_removed_or_renamed_has_its_name_no_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        assert has_name(file.fileno(), path)
        path.rename(tmp_path / "renamed")
        assert not has_name(file.fileno(), path)
        path.touch()
        assert not has_name(file.fileno(), path), "another file has the name now"
        assert has_name(file.fileno(), tmp_path / "renamed")


def test_each_byte_has_a_lock_of_its_own(handles: tuple[int, int]) -> None:
    one, other = handles
    assert lock_byte(one, 2**61)
    assert not lock_byte(other, 2**61)
    assert lock_byte(other, 2**61 + 1)
    assert is_byte_locked(other, 2**61)
    assert not is_byte_locked(one, 2**61), "a holder is not in its own way"
    unlock_byte(one, 2**61)
    unlock_byte(one, 5)
    assert not is_byte_locked(other, 2**61)
    assert lock_byte(other, 2**61)


def test_closing_another_opening_gives_up_no_byte(handles: tuple[int, int], tmp_path: Path) -> None:
    assert lock_byte(handles[0], 7)
    (tmp_path / "file").open("rb").close()
    assert is_byte_locked(handles[1], 7)


_HOLDER = """
import os, sys, time
from shared.stores.locks import lock, lock_byte
handle = os.open(sys.argv[1], os.O_RDWR)
lock(handle, wait=True)
lock_byte(handle, 7)
print("holds", flush=True)
time.sleep(600)
"""


def test_a_stopped_holder_keeps_its_locks_and_a_killed_one_has_none(handles: tuple[int, int], tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "file")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        with closing(holder.stdout):
            assert holder.stdout.readline() == "holds\n"
        holder.send_signal(signal.SIGSTOP)
        assert not lock(handles[0], wait=False)
        assert is_byte_locked(handles[0], 7)
        holder.kill()
    assert lock(handles[0], wait=False)
    assert not is_byte_locked(handles[0], 7)
