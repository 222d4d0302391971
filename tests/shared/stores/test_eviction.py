"""What goes when a store is full, and what stays because somebody holds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shared.stores import eviction
from shared.stores.eviction import evict, last_use_ns, remove_unlocked, stored_files
from shared.stores.locks import lock

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [(30, 5, "c"), (10, 4, "a"), (20, 3, "b")]


@pytest.mark.parametrize(
    ("excess", "held", "gone", "freed"),
    [
        (-1, "", "", 0),
        (0, "", "", 0),
        (1, "", "a", 4),
        (4, "", "a", 4),
        (5, "", "ab", 7),
        (4, "a", "bc", 8),
        (99, "b", "ac", 9),
    ],
)
def test_the_least_recently_used_go_until_enough_is_free(excess: int, held: str, gone: str, freed: int) -> None:
    removed = []

    def remove(path: str) -> bool:
        if path in held:
            return False
        removed.append(path)
        return True

    assert evict(iter(ENTRIES), excess, remove) == freed
    assert "".join(removed) == gone


def test_the_use_of_a_file_is_its_mtime_and_of_a_vanished_one_before_all(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", ns=(5, 7))
    assert last_use_ns(tmp_path / "a") == 7
    assert last_use_ns(tmp_path / "none") == 0


def test_the_files_of_a_folder_are_told_with_their_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    os.utime(tmp_path / "a", ns=(5, 7))
    assert list(stored_files(tmp_path)) == [(7, 3, str(tmp_path / "a"))]


def test_a_file_that_vanishes_meanwhile_is_skipped(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    files = stored_files(tmp_path)
    _, _, first = next(files)
    for path in tmp_path.iterdir():
        path.unlink()
    assert list(files) == []
    assert not os.path.exists(first)  # noqa: PTH110 - it is a string


@pytest.mark.parametrize("truncate", [True, False])
def test_a_removed_file_gives_its_bytes_back_at_once_if_it_may(tmp_path: Path, truncate: bool) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with (tmp_path / "a").open("rb") as reader:
        assert remove_unlocked(str(tmp_path / "a"), truncate=truncate)
        assert not (tmp_path / "a").exists()
        assert reader.read() == (b"" if truncate else b"abc")


def test_a_locked_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with (tmp_path / "a").open("rb") as holder:
        lock(holder.fileno(), wait=False, shared=True)
        assert not remove_unlocked(str(tmp_path / "a"), truncate=True)
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert remove_unlocked(str(tmp_path / "a"), truncate=True)


def test_what_is_gone_already_is_gone(tmp_path: Path) -> None:
    assert remove_unlocked(str(tmp_path / "none"), truncate=True)


def test_of_a_planted_link_only_the_link_is_removed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"of somebody else")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    assert remove_unlocked(str(tmp_path / "link"), truncate=True)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert (tmp_path / "other").read_bytes() == b"of somebody else"


def test_a_file_that_was_finished_before_it_was_locked_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker renames it in between, and the next maker has begun under the old name."""
    draft, entry = tmp_path / "draft", tmp_path / "entry"
    draft.write_bytes(b"whole")

    def lock_late(handle: int, *, wait: bool) -> bool:
        draft.rename(entry)
        draft.touch()
        return lock(handle, wait=wait)

    monkeypatch.setattr(eviction, "lock", lock_late)
    assert remove_unlocked(str(draft), truncate=True)
    assert (entry.read_bytes(), draft.exists()) == (b"whole", True)


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for number in range(3):
        path = tmp_path / str(number)
        path.touch()
        remove_unlocked(str(path), truncate=True)
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
