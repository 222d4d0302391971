"""The cache's folder: bounded, shared by processes, right after a kill, and clear about a disk that is full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.remote.disk_cache import MAPPED, DiskCache
from shared.errors import MachineError, ReadError
from shared.stores import eviction
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def writes(content: bytes) -> Callable[[int], None]:
    def write(handle: int) -> None:
        os.pwrite(handle, content, 0)

    return write


def put(cache: DiskCache, key: str, nbytes: int) -> None:
    assert cache.make(key, nbytes, writes(key[-1:].encode() * nbytes))


def content(cache: DiskCache, key: str) -> bytes | None:
    handle = cache.find(key)
    if handle is None:
        return None
    try:
        return os.read(handle, 1000)
    finally:
        os.close(handle)


def used_at(cache: DiskCache, key: str, when: int) -> None:
    (path,) = cache.folder.rglob(key)
    os.utime(path, (when, when))


def on_disk(cache: DiskCache) -> int:
    return sum(path.stat().st_size for path in cache.folder.rglob("*") if path.is_file() and path.name != "ledger")


def test_what_was_made_once_is_found_by_everybody(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    assert (cache.find("aa1"), cache.hold("aa1"), cache.has("aa1")) == (None, None, False)
    put(cache, "aa1", 5)
    other = DiskCache(tmp_path, 1000)
    assert other.make("aa1", 5, lambda _: pytest.fail("it is there")) is True
    assert (content(other, "aa1"), other.has("aa1")) == (b"11111", True)
    assert list((tmp_path / "underway").iterdir()) == []


def test_what_was_used_longest_ago_makes_room_with_some_to_spare(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    for n in range(9):
        put(cache, f"aa{n}", 100)
        used_at(cache, f"aa{n}", n)
    assert content(cache, "aa1") is not None  # which counts as used now
    put(cache, "bbx", 200)
    assert [n for n in range(9) if cache.has(f"aa{n}")] == [1, 3, 4, 5, 6, 7, 8]
    assert on_disk(cache) == 900
    put(cache, "bby", 100)
    assert on_disk(cache) == 1000, "there was some to spare"


def test_what_just_fits_takes_no_room_from_others_whatever_the_books_said(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    for n in range(9):
        put(cache, f"aa{n}", 100)
    (tmp_path / "ledger").unlink()
    put(cache, "bbx", 100)
    assert on_disk(cache) == 1000


def test_an_evicted_entry_gives_its_bytes_back_though_it_is_open(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    put(cache, "aa1", 80)
    handle = cache.find("aa1")
    assert handle is not None
    put(cache, "aa2", 80)
    assert os.fstat(handle).st_size == 0
    os.close(handle)


def test_an_evicted_entry_that_may_be_mapped_keeps_its_bytes_meanwhile(tmp_path: Path) -> None:
    cache, key = DiskCache(tmp_path, 100), f"aa1{MAPPED}"
    assert cache.make(key, 80, writes(b"1" * 80))
    handle = cache.find(key)
    assert handle is not None
    put(cache, "aa2", 80)
    assert (cache.has(key), os.read(handle, 99)) == (False, b"1" * 80)
    os.close(handle)


def test_what_is_held_stays_and_what_has_no_room_beside_it_is_refused(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)
    put(cache, "aa1", 80)
    held = cache.hold("aa1")
    assert held is not None
    with pytest.raises(
        ReadError, match=r"expected a cache of at least 160 bytes.*got remote_cache_bytes = 100 B\. Raise"
    ):
        put(cache, "aa2", 80)
    assert held[1].read_bytes() == b"1" * 80
    os.close(held[0])
    put(cache, "aa2", 80)
    assert not cache.has("aa1")
    with pytest.raises(ReadError, match="at least 101 bytes"):
        put(cache, "aa3", 101)
    assert cache.has("aa2")


def test_nothing_stays_of_what_failed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100)

    def fail(handle: int) -> None:
        os.pwrite(handle, b"half", 0)
        raise ReadError(expected="a", got="b", where="c", remedy="d")

    for _ in range(5):
        with pytest.raises(ReadError, match="c: expected a"):
            cache.make("aa1", 60, fail)
    assert (on_disk(cache), cache.has("aa1")) == (0, False)
    put(cache, "aa1", 60)
    assert content(cache, "aa1") == b"1" * 60


def test_one_fetches_and_the_others_wait_for_it(tmp_path: Path) -> None:
    begun, go_on, fetched = threading.Event(), threading.Event(), []

    def slowly(handle: int) -> None:
        fetched.append(os.pwrite(handle, b"x" * 50, 0))
        begun.set()
        assert go_on.wait(60)

    def get(_: int) -> bytes | None:
        cache = DiskCache(tmp_path, 1000)
        assert cache.make("aax", 50, slowly)
        return content(cache, "aax")

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(get, range(4))
        assert begun.wait(60)
        assert DiskCache(tmp_path, 1000).make("aax", 50, slowly, wait=False) is False
        go_on.set()
        assert list(answers) == [b"x" * 50] * 4
    assert fetched == [50]


KILLED = """
import os, pathlib, sys
from loader_server.sources.remote.disk_cache import DiskCache
def fill(handle):
    os.pwrite(handle, b"half", 0)
    print("underway", flush=True)
    sys.stdin.read()
DiskCache(pathlib.Path(sys.argv[1]), 1000).make("aa1", 600, fill)
"""


def test_a_killed_process_leaves_nothing_behind_and_holds_nobody_up(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    put(cache, "aa0", 100)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"underway\n"
        DiskCache(tmp_path, 1000)._prepare()
        assert on_disk(cache) == 700, "what somebody is at is left alone"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(cache.make, "aa1", 600, writes(b"w" * 600))
            process.send_signal(signal.SIGKILL)
            assert waiting.result(60) is True
    assert content(cache, "aa1") == b"w" * 600
    # Its reservation is still in the books; whoever needs the room counts again.
    put(cache, "aa2", 300)
    assert (cache.has("aa0"), cache.has("aa1"), on_disk(cache)) == (True, True, 1000)


def test_what_nobody_is_at_is_swept_away_by_the_next_process(tmp_path: Path) -> None:
    put(DiskCache(tmp_path, 1000), "aa0", 10)
    (tmp_path / "underway" / "aa7").write_bytes(b"half")
    put(DiskCache(tmp_path, 1000), "aa1", 10)
    assert on_disk(DiskCache(tmp_path, 1000)) == 20


def test_what_is_finished_while_it_is_swept_keeps_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking it, it was finished, and another process began to make it anew."""
    cache = DiskCache(tmp_path, 1000)
    put(cache, "aa0", 1)
    half, entry = tmp_path / "underway" / "aa7", tmp_path / "entries" / "aa" / "aa7"
    half.write_bytes(b"whole")

    def lock(handle: int, *, wait: bool) -> bool:
        if not entry.exists():
            half.rename(entry)
            half.touch()
        return not wait

    monkeypatch.setattr(eviction, "lock", lock)
    cache._sweep()
    assert content(cache, "aa7") == b"whole"


def test_one_leads_until_it_ends(tmp_path: Path) -> None:
    first, second = DiskCache(tmp_path, 100), DiskCache(tmp_path, 100)
    handle, other = first.lead("a"), second.lead("b")
    assert handle is not None
    assert other is not None
    assert second.lead("a") is None
    DiskCache(tmp_path, 100)._prepare()
    assert second.lead("a") is None, "sweeping leaves it alone"
    os.close(handle)
    os.close(other)
    again = second.lead("a")
    assert again is not None
    os.close(again)


def test_books_that_are_lost_are_made_again(tmp_path: Path) -> None:
    put(DiskCache(tmp_path, 100), "aa1", 60)
    (tmp_path / "ledger").unlink()
    put(DiskCache(tmp_path, 100), "aa2", 60)
    assert on_disk(DiskCache(tmp_path, 100)) == 60


def test_a_full_disk_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        cache = DiskCache(disk.folder, 10**9)
        with pytest.raises(
            ReadError,
            match=r"disk: expected a folder that remote files can be kept in, got No space left.*remote_cache",
        ):
            cache.make("aa1", 2**21, lambda _: pytest.fail("there is no room"))
        assert list(cache.folder.rglob("aa1")) == []
        put(cache, "aa2", 1000)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReadError, match=r"file/cache: expected a folder that remote.*got Not a directory\. Make room"):
        put(DiskCache(tmp_path / "file" / "cache", 100), "aa1", 1)


@pytest.mark.parametrize("place", ["entries/k1/k1", "underway/k1", "underway/other", "ledger"])
def test_a_link_that_somebody_planted_leads_nowhere(place: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"of somebody else's" * 500)
    (tmp_path / "cache" / place).parent.mkdir(parents=True)
    (tmp_path / "cache" / place).symlink_to(victim)
    cache = DiskCache(tmp_path / "cache", 1000)
    with contextlib.suppress(MachineError):
        put(cache, "k1", 600)
        put(cache, "k2", 600)  # for which the first makes room
    assert victim.read_bytes() == b"of somebody else's" * 500


@pytest.mark.fault(66)
def test_what_another_user_keeps_is_read_and_nothing_is_added() -> None:
    with folder_for_all() as folder:
        put(DiskCache(folder, 1000), "aa1", 5)
        with as_another_user():
            cache = DiskCache(folder, 1000)
            assert content(cache, "aa1") == b"1" * 5
            refusal = (
                rf"{folder}: expected a folder that remote .*, got {folder}.* of user 0 with mode 755\. .*let this user"
            )
            with pytest.raises(ReadError, match=refusal):
                cache.make("aa2", 5, writes(b"22222"))
