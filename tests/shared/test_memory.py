"""Slots in shared memory: who gets in, who is proved alive, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shared import messages as m
from shared.codec import decode, encode
from shared.memory import Attachment, SlotMemory, boot_id

CHILD = """
import sys
from shared.codec import decode
from shared.memory import Attachment
attachment = Attachment(decode(bytes.fromhex(sys.argv[1])).shared)
attachment.slot(1, 5)[:] = 7
print("attached", flush=True)
sys.stdin.readline()
attachment.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def memory():
    memory = SlotMemory(3, 5000)
    yield memory
    memory.close()


@pytest.fixture
def child(memory):
    """Another process that writes into slot 1 and holds lock byte 16."""
    hello = m.Hello(job="", stream="", incarnation=0, shared=memory.offer(16), verify=False, seal=None)
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, encode(hello).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with process:
        assert process.stdout.readline() == "attached\n"
        yield process
        process.kill()


def test_slots_are_aligned_apart_and_zero(memory):
    assert memory.slot_bytes == 8192
    for slot in range(3):
        view = memory.slot(slot)
        assert view.nbytes == 8192
        assert view.ctypes.data % 64 == 0
        assert not view.any()
        view[:] = slot + 1
    assert [int(memory.slot(slot)[0]) for slot in range(3)] == [1, 2, 3]


def test_attach_in_the_same_process(memory):
    attachment = Attachment(memory.offer(16))
    attachment.slot(2, 8192)[:] = 9
    assert (memory.slot(2) == 9).all()
    assert not memory.slot(1).any()
    assert memory.is_locked(16)
    assert not memory.is_locked(17)
    attachment.close()
    attachment.close()
    assert not memory.is_locked(16)


@pytest.mark.parametrize(("slot", "nbytes"), [(-1, 1), (3, 1), (0, 8193)])
def test_nothing_is_written_outside_the_slots(memory, slot, nbytes):
    attachment = Attachment(memory.offer(16))
    with pytest.raises(ValueError, match=f"slot {slot} with {nbytes} bytes is outside 3 slots of 8192"):
        attachment.slot(slot, nbytes)
    attachment.close()


def test_two_workers_have_two_locks_and_no_lock_twice(memory):
    one, other = Attachment(memory.offer(16)), Attachment(memory.offer(17))
    with pytest.raises(OSError, match="lock byte 16 is held: the worker before this one still lives"):
        Attachment(memory.offer(16))
    one.close()
    assert not memory.is_locked(16)
    assert memory.is_locked(17)
    other.close()


def test_a_view_that_is_alive_keeps_the_lock(memory):
    """It could still be written through, so the slot must not be taken for free."""
    attachment = Attachment(memory.offer(16))
    view = attachment.slot(0, 10)
    attachment.close()
    assert memory.is_locked(16)
    view[:] = 4
    del view
    assert not memory.is_locked(16)
    assert memory.slot(0)[0] == 4


# --- another process ---


@pytest.mark.fault(2)
def test_the_lock_goes_with_a_process_that_is_killed(memory, child):
    assert (memory.slot(1)[:5] == 7).all()
    assert memory.is_locked(16)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(child.pid, 0)  # a zombie: its process id still answers
    assert not memory.is_locked(16)


@pytest.mark.fault(4)
def test_the_lock_stays_with_a_process_that_is_stopped(memory, child):
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert memory.is_locked(16)
    os.kill(child.pid, signal.SIGCONT)
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "closed\n"
    assert not memory.is_locked(16)


@pytest.mark.fault(32)
def test_a_trainer_that_dies_leaves_nothing_behind():
    """The file has no name, and its number is gone with its process; a worker may write on into what nobody reads."""
    trainer = (
        "import sys; from shared.memory import SlotMemory\n"
        "from shared.messages import Hello; from shared.codec import encode\n"
        "memory = SlotMemory(2, 100)\n"
        "offer = memory.offer(16)\n"
        "hello = Hello(job='', stream='', incarnation=0, shared=offer, verify=False, seal=None)\n"
        "print(encode(hello).hex(), flush=True)\n"
        "sys.stdin.readline()"
    )
    named = set(Path("/dev/shm").iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", trainer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        offer = decode(bytes.fromhex(process.stdout.readline())).shared
        attachment = Attachment(offer)
        process.kill()
        process.wait()
    attachment.slot(1, 100)[:] = 1
    attachment.close()
    with pytest.raises(FileNotFoundError):
        Attachment(offer)
    assert set(Path("/dev/shm").iterdir()) <= named


# --- who is not let in ---


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"boot_id": "another"}, "the trainer runs on another host"),
        ({"boot_id": ""}, "the trainer runs on another host"),
        ({"uid": 12345678}, "the trainer runs as user 12345678, this worker as "),
        ({"nonce": bytes(16)}, "carries another nonce: another process stands behind that number here"),
        ({"nonce": b""}, "carries another nonce"),
        ({"slots": 4}, "another size than its slots"),
        ({"slot_bytes": 4096}, "another size than its slots"),
        ({"slots": 2**16, "slot_bytes": 2**40}, "another size than its slots"),
        ({"fd": 2**20}, "No such file"),
        ({"pid": 2**31}, "No such file"),
    ],
)
def test_what_is_not_the_trainers_file_is_refused(memory, wrong, reason):
    before = open_files()
    with pytest.raises(OSError, match=reason):
        Attachment(dataclasses.replace(memory.offer(16), **wrong))
    assert not memory.is_locked(16)
    assert open_files() == before


def test_a_file_that_could_shrink_is_refused(memory, tmp_path):
    """Who truncates a mapped file kills its writers by SIGBUS."""
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    on_disk = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    reading, writing = os.pipe()
    for fd in (loose, on_disk):
        os.ftruncate(fd, 4096 + 3 * 8192)
        os.pwrite(fd, memory.offer(16).nonce, 0)
    for fd in (loose, on_disk, reading):
        with pytest.raises(OSError, match="no sealed memfd: whoever shrinks it would kill this worker"):
            Attachment(dataclasses.replace(memory.offer(16), fd=fd))
    for fd in (loose, on_disk, reading, writing):
        os.close(fd)


def test_the_trainers_file_is_sealed(memory):
    fd = memory.offer(16).fd
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 2**20)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_no_offer_crosses_a_boot():
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# --- nothing leaks ---


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def mappings():
    return Path("/proc/self/maps").read_text().count("stoker-slots")


def test_a_hundred_attaches_leak_nothing(memory):
    files, maps = open_files(), mappings()
    for count in range(100):
        attachment = Attachment(memory.offer(16 + count % 3))
        attachment.slot(0, 10)[:] = 1
        attachment.close()
        with contextlib.suppress(OSError):
            Attachment(dataclasses.replace(memory.offer(16), nonce=bytes(16)))
    assert (open_files(), mappings()) == (files, maps)


def test_a_hundred_memories_leak_nothing():
    files, maps = open_files(), mappings()
    for _ in range(100):
        memory = SlotMemory(2, 100)
        memory.slot(0)[:] = 1
        memory.close()
        memory.close()
    assert (open_files(), mappings()) == (files, maps)


def test_what_a_consumer_looks_at_outlives_the_memory():
    maps = mappings()
    memory = SlotMemory(1, 100)
    view = memory.slot(0)
    view[:] = 5
    memory.close()
    assert (view == 5).all()
    del view, memory
    assert mappings() == maps


def test_an_offer_crosses_the_wire(memory):
    offer = memory.offer(16)
    hello = m.Hello(job="j", stream="s", incarnation=1, shared=offer, verify=False, seal=None)
    assert decode(encode(hello)).shared == offer
    assert json.dumps(offer.boot_id)
    assert offer.slot_bytes % 4096 == 0
    assert np.gcd(offer.slot_bytes, 64) == 64
