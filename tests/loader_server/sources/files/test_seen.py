"""A machine remembers which content files had; it forgets rather than be wrong, and never fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files import seen
from loader_server.sources.files.seen import SeenFiles, is_settled, seen_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were written just now count as old."""
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**18))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(b"one")
    return tmp_path / "a"


@pytest.mark.usefixtures("settled")
def test_a_status_is_known_with_the_digest_that_it_was_seen_with(file: Path, tmp_path: Path) -> None:
    memory = SeenFiles(tmp_path / "seen_files")
    assert not memory.has(file.stat(), "d1")
    memory.keep(file.stat(), "d1")
    assert memory.has(file.stat(), "d1")
    assert not memory.has(file.stat(), "d2")
    memory.keep(file.stat(), "d1")
    assert SeenFiles(tmp_path / "seen_files").has(file.stat(), "d1"), "another process knows it too"


@pytest.mark.usefixtures("settled")
def test_whatever_changes_the_status_is_a_reason_to_look(file: Path) -> None:
    memory = SeenFiles()
    memory.keep(file.stat(), "d")
    times = file.stat()
    (file.parent / "copy").write_bytes(file.read_bytes())
    os.utime(file.parent / "copy", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not memory.has((file.parent / "copy").stat(), "d"), "another inode"
    facts, in_ns = list(times), {"st_mtime_ns": times.st_mtime_ns, "st_ctime_ns": times.st_ctime_ns}
    assert memory.has(os.stat_result(facts, in_ns), "d")
    for place in (1, 2, 6):  # inode, device, size
        other = [*facts[:place], facts[place] + 1, *facts[place + 1 :]]
        assert not memory.has(os.stat_result(other, in_ns), "d")
    assert memory.has(file.stat(), "d")
    file.chmod(0o600)
    assert not memory.has(file.stat(), "d"), "another time of status change"


@pytest.mark.usefixtures("settled")
def test_another_uptime_of_the_machine_knows_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SeenFiles(tmp_path / "seen_files").keep(file.stat(), "d")
    monkeypatch.setattr(seen, "boot_id", lambda: "another")
    assert not SeenFiles(tmp_path / "seen_files").has(file.stat(), "d")
    monkeypatch.setattr(seen, "boot_id", lambda: "")
    nameless = SeenFiles(tmp_path / "seen_files")
    assert not nameless.has(file.stat(), "d")
    nameless.keep(file.stat(), "d")
    assert nameless.has(file.stat(), "d")


def test_a_file_that_was_written_just_now_is_not_remembered(file: Path) -> None:
    """Another write within the same tick would leave it the same status."""
    memory = SeenFiles()
    assert not is_settled(file.stat())
    memory.keep(file.stat(), "d")
    assert not memory.has(file.stat(), "d")
    assert is_settled(os.stat_result([0] * 10, {"st_ctime_ns": 1}))


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("how", ["no folder", "read-only", "a link", "a folder"])
def test_where_nothing_can_be_written_a_process_remembers_for_itself(file: Path, tmp_path: Path, how: str) -> None:
    place = tmp_path / "state" / "seen_files"
    (tmp_path / "elsewhere").write_bytes(b"mine")
    if how != "no folder":
        place.parent.mkdir()
    if how == "a link":
        place.symlink_to(tmp_path / "elsewhere")
    if how == "a folder":
        place.mkdir()
    if how == "read-only":
        place.symlink_to("/proc/version")
    memory = SeenFiles(place)
    memory.keep(file.stat(), "d")
    assert memory.has(file.stat(), "d")
    assert (tmp_path / "elsewhere").read_bytes() == b"mine", "what a planted link names is left alone"


@pytest.mark.usefixtures("settled")
def test_a_full_disk_costs_what_was_remembered_and_nothing_else(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, pwrite = SeenFiles(tmp_path / "seen_files"), os.pwrite

    def full(*_how: object) -> int:
        monkeypatch.setattr(os, "pwrite", pwrite)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    memory.keep(file.stat(), "d")
    assert not memory.has(file.stat(), "d")
    memory.keep(file.stat(), "d")
    assert memory.has(file.stat(), "d")


@pytest.mark.usefixtures("settled")
def test_what_was_cut_short_or_filled_with_anything_is_forgotten(file: Path, tmp_path: Path) -> None:
    memory = SeenFiles(tmp_path / "seen_files")
    memory.keep(file.stat(), "d")
    (tmp_path / "seen_files").write_bytes(b"\xff" * 100)
    assert not memory.has(file.stat(), "d")
    memory.keep(file.stat(), "d")
    assert memory.has(file.stat(), "d")


@pytest.mark.usefixtures("settled")
def test_many_files_are_remembered_and_the_memory_has_a_fixed_size(file: Path, tmp_path: Path) -> None:
    memory, status = SeenFiles(tmp_path / "seen_files"), file.stat()
    for number in range(3000):
        memory.keep(status, f"{number}")
    assert all(memory.has(status, f"{number}") for number in range(3000))
    assert (tmp_path / "seen_files").stat().st_size == 2**23


@pytest.mark.usefixtures("settled")
def test_a_full_row_makes_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_ROWS_IN_MEMORY", 1)
    memory, status = SeenFiles(), file.stat()
    for number in range(100):
        memory.keep(status, f"{number}")
        assert memory.has(status, f"{number}")
    assert 0 < sum(memory.has(status, f"{number}") for number in range(100)) <= 8


def test_all_of_a_process_share_one_for_each_state_folder(tmp_path: Path) -> None:
    assert seen_files(tmp_path) is seen_files(tmp_path)
    assert seen_files(None) is seen_files(None)
    assert seen_files(None) is not seen_files(tmp_path)


def test_a_memory_that_nobody_holds_gives_its_descriptor_back() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their number alone
    for _ in range(20):
        SeenFiles()
    assert len(os.listdir("/proc/self/fd")) < before + 20  # noqa: PTH208
