"""Blobs on disk: what is found, what is not, and how much there is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.feature_cache.store import SampleStore
from shared.errors import MachineError
from tests.support.loaders import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = 100
#: A sixty-fourth of it is a segment.
ROOM = 64 * 4096


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., closing[SampleStore]]:
    def store(key: str = "key", most_bytes: int = ROOM) -> closing[SampleStore]:
        return closing(SampleStore(tmp_path / "root", key, SAMPLES, most_bytes))

    return store


def blob(sample: int, nbytes: int = 1000) -> bytes:
    return np.random.default_rng(sample).bytes(nbytes)


def used(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_got_by_all(store) -> None:
    with store() as one, store() as other:
        for sample in range(20):
            (one if sample % 2 else other).put(sample, f"id {sample}", blob(sample))
        for sample in range(20):
            assert one.get(sample, f"id {sample}") == other.get(sample, f"id {sample}") == blob(sample)
        assert one.get(20, "id 20") is None
    with store() as later:
        assert [later.get(sample, f"id {sample}") for sample in range(20)] == [blob(sample) for sample in range(20)]


def test_what_seems_to_be_there_is_told_without_reading_it(store) -> None:
    with store() as one, store() as other:
        one.put(7, "id", blob(7))
        one.put(99, "id", blob(99))
        assert other.seem_kept(np.array([99, 8, 7, 0])).tolist() == [True, False, True, False]


def test_a_sample_that_became_another_is_not_found(store) -> None:
    """Its file was mended: what it is known by has changed."""
    with store() as one:
        one.put(3, "a.wav, 100 bytes", blob(3))
        assert one.get(3, "a.wav, 101 bytes") is None
        one.put(3, "a.wav, 101 bytes", blob(4))
        assert one.get(3, "a.wav, 101 bytes") == blob(4)


def test_closing_again_closes_no_descriptor_of_others(store) -> None:
    with store() as one:
        one.put(1, "id", blob(1))
        one.close()
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    for other in others:
        os.close(other)


def test_another_key_finds_nothing(store) -> None:
    with store("one") as one, store("other") as other:
        one.put(1, "id", blob(1))
        assert other.get(1, "id") is None


@pytest.mark.parametrize("file", ["table", "segment-1"])
def test_a_flipped_bit_is_not_found_or_makes_no_difference(store, tmp_path, file) -> None:
    with store() as one:
        one.put(0, "id", blob(0, 40))
        path = tmp_path / "root" / "key" / file
        for bit in range(8 * (24 if file == "table" else 40)):
            whole = path.read_bytes()
            with path.open("r+b") as opened:
                opened.seek(bit // 8)
                opened.write(bytes([whole[bit // 8] ^ 1 << bit % 8]))
                opened.flush()
                assert one.get(0, "id") is None
                opened.seek(bit // 8)
                opened.write(whole[bit // 8 : bit // 8 + 1])
        assert one.get(0, "id") == blob(0, 40)


def test_it_takes_no_more_than_it_may_and_keeps_what_it_has(store, tmp_path, caplog) -> None:
    with store() as one:
        for sample in range(SAMPLES):
            one.put(sample, "id", blob(sample, 4000))
        kept = [sample for sample in range(SAMPLES) if one.get(sample, "id") == blob(sample, 4000)]
        assert kept == list(range(len(kept)))
        assert 55 < len(kept) < 64
        assert used(tmp_path / "root") <= ROOM
    assert [line.message.split("  ")[0] for line in caplog.records] == [
        "feature cache is full: further samples are made anew"
    ]


def test_stores_that_nobody_has_open_make_room_the_oldest_first(store, tmp_path) -> None:
    for age, key in enumerate(["old", "older"]):
        with store(key) as one:
            for sample in range(25):
                one.put(sample, "id", blob(sample, 4000))
        os.utime(tmp_path / "root" / key / "table", (1000 - age, 1000 - age))
    (tmp_path / "root" / "half made").mkdir()
    with store("new") as new:
        for sample in range(25):
            new.put(sample, "id", blob(sample, 4000))
        assert new.get(24, "id") == blob(24, 4000)
    assert sorted(path.name for path in (tmp_path / "root").iterdir() if path.is_dir()) == ["new", "old"]


def test_stores_that_are_open_stay(store) -> None:
    with store("one") as one:
        for sample in range(40):
            one.put(sample, "id", blob(sample, 4000))
        with store("other") as other:
            for sample in range(40):
                other.put(sample, "id", blob(sample, 4000))
            assert other.get(39, "id") is None
        assert one.get(39, "id") == blob(39, 4000)


def test_a_blob_that_is_longer_than_a_segment_is_not_kept(store) -> None:
    with store() as one:
        one.put(0, "id", blob(0, 4097))
        one.put(1, "id", blob(1, 4096))
        assert one.get(0, "id") is None
        assert one.get(1, "id") == blob(1, 4096)


def test_closing_gives_the_rest_of_the_segment_back(store, tmp_path) -> None:
    with store() as one:
        one.put(0, "id", blob(0, 10))
        (segment,) = (tmp_path / "root" / "key").glob("segment-*")
        assert segment.stat().st_size == 4096
    assert segment.stat().st_size == 10


_KILLED = """
import os, signal, sys
from pathlib import Path
from loader_server.feature_cache.store import SampleStore
store = SampleStore(Path(sys.argv[1]), "key", 100, 64 * 4096)
for sample in range(3):
    store.put(sample, "id", bytes([sample]) * 100)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_had_put_is_there_and_what_it_had_reserved_is_free(store, tmp_path) -> None:
    root = tmp_path / "root"
    subprocess.run([sys.executable, "-c", _KILLED, str(root)], cwd=ROOT, check=False)
    assert (root / "key" / "segment-1").stat().st_size == 4096
    with store() as later:
        assert (root / "key" / "segment-1").stat().st_size == 300
        assert [later.get(sample, "id") for sample in range(4)] == [b"\0" * 100, b"\1" * 100, b"\2" * 100, None]
        later.put(3, "id", b"next")
        assert later.get(3, "id") == b"next"
        assert later.get(2, "id") == b"\2" * 100


def test_a_disk_that_is_full_is_no_error(store, tmp_path, monkeypatch, caplog) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store() as one:
        one.put(0, "id", blob(0))
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        for sample in range(1, 9):
            one.put(sample, "id", blob(sample))
        assert one.get(0, "id") == blob(0)
        assert one.get(8, "id") is None
    assert len(caplog.records) == 1
    assert [path.name for path in (tmp_path / "root" / "key").glob("segment-*")] == ["segment-1"]


@pytest.mark.parametrize("room", [0, 70])
def test_a_copy_on_write_disk_that_is_full_is_no_error_although_the_segment_was_allocated(
    room: int, store, tmp_path, monkeypatch, caplog
) -> None:
    left = room

    def take_what_has_room(handle: int, content: bytes, offset: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(handle, content[:left], offset)
        left -= written
        return written

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store() as one:
        one.put(0, "id", blob(0))
        write = os.pwrite
        monkeypatch.setattr(os, "pwrite", take_what_has_room)
        monkeypatch.setattr(os, "ftruncate", refuse)
        for sample in range(1, 4):
            one.put(sample, "id", blob(sample))
        monkeypatch.undo()
        assert [one.get(sample, "id") for sample in range(4)] == [blob(0), None, None, None]
    assert len(caplog.records) == 1
    with store() as again:
        assert again.get(0, "id") == blob(0)
        assert (tmp_path / "root" / "key" / "segment-1").stat().st_size == len(blob(0)), "the rest is given back"


def test_what_a_disk_takes_in_parts_is_kept(store, monkeypatch) -> None:
    with store() as one:
        write = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda handle, content, offset: write(handle, content[:7], offset))
        one.put(0, "id", blob(0))
        assert one.get(0, "id") == blob(0)


@pytest.mark.parametrize("place", ["key/table", "key/segment-1", "ledger", "key"])
def test_a_link_that_somebody_planted_is_refused_and_leads_nowhere(place: str, tmp_path: Path, store) -> None:
    victim = tmp_path / "victim"
    victim.mkdir() if place == "key" else victim.write_text("of somebody else's" * 500)
    (tmp_path / "root" / place).parent.mkdir(parents=True)
    (tmp_path / "root" / place).symlink_to(victim)
    with pytest.raises(MachineError, match=rf"root/{place}: expected a file or folder that only Stoker makes"):
        store()
    assert list(victim.iterdir()) == [] if place == "key" else victim.read_text() == "of somebody else's" * 500


def test_a_segment_that_a_link_replaced_is_not_read(tmp_path: Path, store) -> None:
    with store() as one:
        one.put(7, "id", blob(7))
    segment = tmp_path / "root/key/segment-1"
    with store() as one:
        segment.rename(tmp_path / "moved")
        segment.symlink_to(tmp_path / "moved")
        assert one.get(7, "id") is None
