"""The shelf of built batches: what is found is what was put, whatever others do to it meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.sharing import shelf as module
from loader_server.sharing.shelf import KEY_BYTES, Shelf, make_shelf
from shared.hashing import digest64
from shared.stores.locks import lock_byte, unlock_byte
from tests.support.loaders import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RING = 4096


@pytest.fixture
def handle() -> Iterator[int]:
    made = make_shelf(RING)
    yield made
    os.close(made)


@pytest.fixture
def opened(handle: int) -> Iterator[Callable[[], Shelf]]:
    """Shelfs as workers have them, each with an opening of its own."""
    made: list[Shelf] = []

    def make() -> Shelf:
        made.append(Shelf(f"/proc/self/fd/{handle}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def key(number: int) -> bytes:
    return bytes(KEY_BYTES - 4) + number.to_bytes(4, "little")


def payload(number: int, nbytes: int = 900) -> np.ndarray:
    return np.full(nbytes, number % 251, np.uint8)


def put(shelf: Shelf, number: int, nbytes: int = 900) -> bool:
    made = payload(number, nbytes)
    return shelf.put(key(number), b"facts of %03d" % number, made, digest64(made.data))


def got(shelf: Shelf, number: int, nbytes: int = 900) -> bool:
    """Whether the batch is there; if it is, it has to be the right one."""
    kept = shelf.find(key(number))
    into = np.full(nbytes, 255, np.uint8)
    if kept is None or not shelf.copy(kept, into):
        return False
    assert kept.facts == b"facts of %03d" % number
    assert np.array_equal(into, payload(number, nbytes))
    return True


def test_what_one_puts_all_find_and_nothing_else(opened: Callable[[], Shelf]) -> None:
    one, other = opened(), opened()
    assert not got(other, 1)
    assert put(one, 1)
    assert got(other, 1)
    assert got(one, 1)
    assert not got(other, 2)
    assert got(opened(), 1), "and those who come later"


def test_a_key_with_the_place_of_another_is_not_taken_for_it(opened: Callable[[], Shelf]) -> None:
    shelf = opened()
    put(shelf, 1)
    twin = b"\1" + key(1)[1:]
    assert shelf.find(twin) is None
    made = payload(9)
    assert shelf.put(twin, b"", made, digest64(made.data))
    assert shelf.find(key(1)) is None, "the newest has the place"
    assert shelf.find(twin) is not None


def test_the_oldest_make_room_and_all_that_fit_stay(opened: Callable[[], Shelf]) -> None:
    shelf = opened()
    for number in range(40):
        assert put(shelf, number)
        assert [one for one in range(number + 1) if got(shelf, one)] == list(range(max(0, number - 3), number + 1))


def test_of_batches_of_any_size_those_that_are_found_are_whole(opened: Callable[[], Shelf]) -> None:
    one, other = opened(), opened()
    sizes = np.random.default_rng(3).integers(0, RING // 4 - 20, 300).tolist()
    for number, nbytes in enumerate(sizes):
        assert put(one if number % 2 else other, number, nbytes)
        assert got(other, number, nbytes)
        for before in range(max(0, number - 20), number):
            got(one, before, sizes[before])


def test_a_batch_of_more_than_a_quarter_is_not_kept(opened: Callable[[], Shelf]) -> None:
    shelf = opened()
    assert put(shelf, 0, RING // 4 - len(b"facts of 000"))
    assert not put(shelf, 1, RING // 4 - len(b"facts of 001") + 1)
    assert shelf.find(key(1)) is None


@pytest.mark.parametrize("where", ["facts", "payload", "entry"])
def test_damage_is_not_found(opened: Callable[[], Shelf], handle: int, where: str) -> None:
    shelf = opened()
    put(shelf, 5)
    kept = shelf.find(key(5))
    assert kept is not None
    entry = module._entry_at(key(5))
    at = {"facts": kept.payload_at - 1, "payload": kept.payload_at + 450, "entry": entry + KEY_BYTES}[where]
    before = os.pread(handle, 1, at)
    os.pwrite(handle, bytes([before[0] ^ 1]), at)
    assert not got(shelf, 5)
    os.pwrite(handle, before, at)
    assert got(shelf, 5)


def test_another_size_is_not_copied(opened: Callable[[], Shelf]) -> None:
    shelf = opened()
    put(shelf, 1)
    kept = shelf.find(key(1))
    assert kept is not None
    assert not shelf.copy(kept, np.zeros(899, np.uint8))


def test_what_is_overwritten_while_it_is_read_is_noticed(opened: Callable[[], Shelf]) -> None:
    shelf = opened()
    put(shelf, 1)
    kept = shelf.find(key(1))
    assert kept is not None
    for number in range(2, 8):
        put(shelf, number)
    assert not shelf.copy(kept, np.zeros(900, np.uint8))


def test_one_at_a_time_claims_a_batch(opened: Callable[[], Shelf]) -> None:
    one, other = opened(), opened()
    first, second = (bytes([number]) * KEY_BYTES for number in (1, 2))
    assert one.claim(first)
    assert not other.claim(first)
    assert other.claim(second), "others are free"
    one.release()
    one.release()
    assert not one.claim(second)
    other.release()
    assert one.claim(second)


def test_keys_that_differ_at_all_are_claimed_apart(opened: Callable[[], Shelf]) -> None:
    one, other = opened(), opened()
    assert one.claim(b"\0" * KEY_BYTES)
    assert other.claim(b"\1" + b"\0" * (KEY_BYTES - 1))
    other.release()
    assert other.claim(b"\0" * 6 + b"\1" + b"\0" * 9)


#: Claims a batch, leaves a child behind, and is killed at the n-th write of putting the batch.
_KILLED = """
import os, signal, sys
import numpy as np
from loader_server.sharing.shelf import KEY_BYTES, Shelf
from shared.hashing import digest64

own, step = Shelf(sys.argv[1]), int(sys.argv[2])
key = bytes([7]) * KEY_BYTES
assert own.claim(key)
if not os.fork():
    print(os.getpid(), flush=True)
    signal.pause()
calls = 0

def counted(call):
    def do(*arguments):
        global calls
        calls += 1
        return call(*arguments) if calls <= step else os.kill(os.getpid(), signal.SIGKILL)
    return do

os.pwrite, os.pwritev = counted(os.pwrite), counted(os.pwritev)
payload = np.full(900, 7, np.uint8)
own.put(key, b"facts", payload, digest64(payload.data))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("step", range(4))
def test_a_killed_worker_has_no_claim_and_what_it_had_begun_is_not_found(
    opened: Callable[[], Shelf], handle: int, step: int
) -> None:
    """Nor does a child that it left behind hold anything."""
    shelf = opened()
    put(shelf, 1)
    path = f"/proc/{os.getpid()}/fd/{handle}"
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, path, str(step)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        try:
            assert process.wait(60) == -signal.SIGKILL
            same = bytes([7]) * KEY_BYTES
            assert shelf.claim(same)
            assert (shelf.find(same) is not None) == (step == 3)
            assert got(shelf, 1)
            assert put(shelf, 2)
            assert got(shelf, 2)
        finally:
            os.kill(left, signal.SIGKILL)


def test_nobody_waits_for_who_is_stopped_while_it_takes_room(
    opened: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = opened(), opened()
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    assert lock_byte(one._handle, module._ROOM_BYTE)
    assert not put(other, 1)
    assert other.find(key(1)) is None
    unlock_byte(one._handle, module._ROOM_BYTE)
    assert put(other, 1)


def test_without_memory_nothing_more_is_kept(opened: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = opened()
    put(shelf, 1)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", refuse)
    assert not put(shelf, 2)
    assert shelf.is_full
    monkeypatch.undo()
    assert not put(shelf, 3)
    assert got(shelf, 1)


def test_what_is_no_shelf_is_not_opened(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"short")
    with pytest.raises(OSError, match="is no shelf of built batches"):
        Shelf(str(other))
    with pytest.raises(FileNotFoundError):
        Shelf("")


def test_the_file_has_no_name_and_takes_only_the_memory_that_it_needs(handle: int) -> None:
    assert os.fstat(handle).st_nlink == 0
    assert os.fstat(handle).st_blocks * 512 < 10 * 4096
