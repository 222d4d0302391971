"""Slots in shared memory: who gets in, who is proved alive, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from shared.memory import OpenedSlots, SlotMemory, boot_id
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.support.descriptors import open_descriptors

CHILD = """
import sys
from shared.wire.codec import decode
from shared.memory import OpenedSlots
opened = OpenedSlots(decode(bytes.fromhex(sys.argv[1])).shared)
opened.slot(1, 5)[:] = 7
print("attached", flush=True)
sys.stdin.readline()
opened.close()
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
    opened = OpenedSlots(memory.offer(16))
    opened.slot(2, 8192)[:] = 9
    assert (memory.slot(2) == 9).all()
    assert not memory.slot(1).any()
    assert memory.is_locked(16)
    assert not memory.is_locked(17)
    opened.close()
    opened.close()
    assert not memory.is_locked(16)


@pytest.mark.parametrize(("slot", "nbytes"), [(-1, 1), (3, 1), (0, 8193)])
def test_nothing_is_written_outside_the_slots(memory, slot, nbytes):
    opened = OpenedSlots(memory.offer(16))
    with pytest.raises(ValueError, match=f"slot {slot} with {nbytes} bytes is outside 3 slots of 8192"):
        opened.slot(slot, nbytes)
    opened.close()


def test_two_workers_have_two_locks_and_no_lock_twice(memory):
    one, other = OpenedSlots(memory.offer(16)), OpenedSlots(memory.offer(17))
    with pytest.raises(OSError, match="lock byte 16 is held: the worker before this one still lives"):
        OpenedSlots(memory.offer(16))
    one.close()
    assert not memory.is_locked(16)
    assert memory.is_locked(17)
    other.close()


def test_a_view_that_is_alive_keeps_the_lock(memory):
    """It could still be written through, so the slot must not be taken for free."""
    opened = OpenedSlots(memory.offer(16))
    view = opened.slot(0, 10)
    opened.close()
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


def maps_of(pid):
    """What it has mapped, a line each."""
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


@pytest.mark.fault(32)
def test_a_trainer_that_dies_leaves_nothing_behind():
    """The file has no name, and its number is gone with its process; a worker may write on into what nobody reads."""
    trainer = (
        "import sys; from shared.memory import SlotMemory\n"
        "from shared.wire.messages import Hello; from shared.wire.codec import encode\n"
        "memory = SlotMemory(2, 100)\n"
        "offer = memory.offer(16)\n"
        "hello = Hello(job='', stream='', incarnation=0, shared=offer, verify=False, seal=None)\n"
        "print(encode(hello).hex(), flush=True)\n"
        "sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", trainer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        offer = decode(bytes.fromhex(process.stdout.readline())).shared
        opened = OpenedSlots(offer)
        named = {Path(line.split(maxsplit=5)[5]) for line in maps_of(process.pid) if "/dev/shm/" in line}
        process.kill()
        process.wait()
    opened.slot(1, 100)[:] = 1
    opened.close()
    with pytest.raises(FileNotFoundError):
        OpenedSlots(offer)
    assert [path for path in named if path.exists()] == []


# --- children of a worker ---

PARENT = """
import ctypes, os, sys
from shared.wire.codec import decode
from shared.memory import OpenedSlots
opened = OpenedSlots(decode(bytes.fromhex(sys.argv[1])).shared)
forked = os.fork() if sys.argv[2] == "python" else ctypes.CDLL(None).fork()
if forked:
    print(forked, flush=True)
    os.read(0, 1)
else:  # outlives its parent; the pipe that it reads from is the test's
    os.read(int(sys.argv[3]), 1)
"""


@pytest.mark.fault(44)
@pytest.mark.parametrize("by", ["python", "c"])
def test_a_child_that_a_worker_left_behind_holds_no_lock(memory, by):
    """Forked by C code no hook of Python's is called: there must be nothing that it could inherit."""
    hello = m.Hello(job="", stream="", incarnation=0, shared=memory.offer(16), verify=False, seal=None)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, encode(hello).hex(), by, str(reading)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        pass_fds=[reading],
    ) as worker:
        child = int(worker.stdout.readline())
        assert memory.is_locked(16)
        assert "stoker-slots" not in Path(f"/proc/{child}/maps").read_text()
        assert not [one for one in Path(f"/proc/{child}/fd").iterdir() if "stoker-slots" in str(one.readlink())]
        worker.kill()
        worker.wait()
        assert Path(f"/proc/{child}/stat").read_text().split(")")[1].split()[0] not in "ZX"
        assert not memory.is_locked(16)
        OpenedSlots(memory.offer(16)).close()
        os.close(writing)
        os.close(reading)


def test_nobody_forks_while_a_locked_descriptor_is_open(memory, monkeypatch):
    """A child forked just then would inherit the lock."""
    during = threading.Event()
    forked = threading.Event()

    def fork():
        during.wait(60)
        child = os.fork()
        if not child:
            os._exit(0)
        forked.set()
        os.waitpid(child, 0)

    def slow(fd, operation, *rest):
        if operation == fcntl.F_OFD_SETLK:
            during.set()
            assert not forked.wait(0.1)
        return lock(fd, operation, *rest)

    lock = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", slow)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork of a process with threads
        forker = threading.Thread(target=fork)
        forker.start()
        opened = OpenedSlots(memory.offer(16))
        forker.join(60)
    assert forked.is_set()
    opened.close()


# --- without shared memory ---


def enosys(*_arguments):
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.fault(10)
@pytest.mark.parametrize("how", ["missing", "refused", "no descriptors", "no mapping"])
def test_a_trainer_without_memfd_has_slots_of_its_own(how, monkeypatch):
    if how == "missing":
        monkeypatch.delattr(os, "memfd_create")
    elif how == "refused":
        monkeypatch.setattr(os, "memfd_create", enosys)
    elif how == "no mapping":
        monkeypatch.setattr("shared.memory.map_file", enosys)
    before, limits = open_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    if how == "no descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        memory = SlotMemory(3, 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not memory.shareable
    why = {"missing": "memfd_create", "no descriptors": "Too many open files"}.get(how, "Function not implemented")
    assert re.fullmatch(f"no shared memory can be made: .*{why}.*", memory.why_not_shared)
    assert memory.offer(16) is None
    assert not memory.is_locked(16)
    for slot in range(3):
        memory.slot(slot)[:] = slot + 1
        memory.note_written(slot, 5000)
    assert [int(memory.slot(slot)[-1]) for slot in range(3)] == [1, 2, 3]
    assert memory.slot(2).ctypes.data % 64 == 0
    memory.close()
    assert not [leads_to for _, leads_to in open_descriptors() - before if "stoker-slots" in leads_to]


def test_slots_that_can_be_shared_say_so(memory):
    assert memory.shareable
    assert memory.why_not_shared == ""


# --- who is not let in ---


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"boot_id": "another"}, "the trainer runs on another host"),
        ({"boot_id": ""}, "the trainer runs on another host"),
        ({"uid": 12345678}, "the trainer runs as user 12345678, this worker as "),
        ({"nonce": b"\1" * 16}, "carries another nonce: another process stands behind that number here"),
        ({"nonce": bytes(16)}, "the offer has no nonce: the file could be anybody's"),
        ({"nonce": b""}, "the offer has no nonce"),
        ({"nonce": b"\1" * 15}, "the offer has no nonce"),
        ({"slots": 4}, "another size than its slots"),
        ({"slot_bytes": 4096}, "another size than its slots"),
        ({"slots": 2**16, "slot_bytes": 2**40}, "another size than its slots"),
        ({"fd": 2**20}, "No such file"),
        ({"pid": 2**31}, "No such file"),
    ],
)
def test_what_is_not_the_trainers_file_is_refused(memory, wrong, reason):
    before = open_descriptors()
    with pytest.raises(OSError, match=reason):
        OpenedSlots(dataclasses.replace(memory.offer(16), **wrong))
    assert not memory.is_locked(16)
    assert not open_descriptors() - before


def test_a_file_that_could_shrink_is_refused(memory):
    """Who truncates a mapped file kills its writers by SIGBUS."""
    loose = os.memfd_create("stoker-slots", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 4096 + 3 * 8192)
    os.pwrite(loose, memory.offer(16).nonce, 0)
    with pytest.raises(OSError, match="no sealed memfd: a process that shrinks it would kill this worker"):
        OpenedSlots(dataclasses.replace(memory.offer(16), fd=loose))
    os.close(loose)


def sealed_memfd(name):
    """Another program's: all zeros, as a fresh file is."""
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096 + 3 * 8192)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


@pytest.mark.parametrize("name", ["theirs", "stoker-slots"])
def test_another_programs_memfd_is_refused(memory, name):
    fd = sealed_memfd(name)
    offer = dataclasses.replace(memory.offer(16), fd=fd)
    with pytest.raises(OSError, match="no trainer's memory" if name == "theirs" else "another nonce"):
        OpenedSlots(offer)
    with pytest.raises(OSError, match="the offer has no nonce"):
        OpenedSlots(dataclasses.replace(offer, nonce=bytes(16)))
    os.close(fd)


def test_what_is_no_file_is_looked_at_and_not_opened(memory, tmp_path):
    """To open a pipe or a device may block, or do something: whoever reads this pipe would see us hang up."""
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    on_disk = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(on_disk, 4096 + 3 * 8192)
    os.pwrite(on_disk, memory.offer(16).nonce, 0)
    before = open_descriptors()
    for fd in (reading, on_disk):
        with pytest.raises(OSError, match="no trainer's memory: another process stands behind that number here"):
            OpenedSlots(dataclasses.replace(memory.offer(16), fd=fd))
    hung_up = select.poll()
    hung_up.register(reading, select.POLLHUP)
    assert not hung_up.poll(0)
    assert not open_descriptors() - before
    os.close(reading)
    os.close(on_disk)


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


def mappings():
    return Path("/proc/self/maps").read_text().count("stoker-slots")


def test_a_hundred_attaches_leak_nothing(memory):
    before, maps = open_descriptors(), mappings()
    for count in range(100):
        opened = OpenedSlots(memory.offer(16 + count % 3))
        opened.slot(0, 10)[:] = 1
        opened.close()
        with contextlib.suppress(OSError):
            OpenedSlots(dataclasses.replace(memory.offer(16), nonce=b"\1" * 16))
    assert not open_descriptors() - before
    assert mappings() <= maps


def test_a_hundred_memories_leak_nothing():
    before, maps = open_descriptors(), mappings()
    for _ in range(100):
        memory = SlotMemory(2, 100)
        memory.slot(0)[:] = 1
        memory.close()
        memory.close()
    assert not open_descriptors() - before
    assert mappings() <= maps


def test_what_a_consumer_looks_at_outlives_the_memory():
    maps = mappings()
    memory = SlotMemory(1, 100)
    view = memory.slot(0)
    view[:] = 5
    memory.close()
    assert (view == 5).all()
    del view, memory
    assert mappings() <= maps


def test_an_offer_crosses_the_wire(memory):
    offer = memory.offer(16)
    hello = m.Hello(job="j", stream="s", incarnation=1, shared=offer, verify=False, seal=None)
    assert decode(encode(hello)).shared == offer
    assert json.dumps(offer.boot_id)
    assert offer.slot_bytes % 4096 == 0
    assert np.gcd(offer.slot_bytes, 64) == 64


def resident(memory):
    """Return how many bytes of the slots have memory, whoever maps them."""
    return os.fstat(memory._fd).st_blocks * 512


def test_a_slot_has_memory_from_when_it_is_written_until_it_is_dropped():
    memory = SlotMemory(8, 4 * 2**20)
    before = resident(memory)
    for slot in (2, 3):
        memory.slot(slot)[:] = 7
        memory.note_written(slot, memory.slot_bytes)
    assert resident(memory) - before >= 2 * memory.slot_bytes
    assert memory.drop(2)
    assert resident(memory) - before <= memory.slot_bytes + 2**16, "but for pages at its ends"
    assert not memory.slot(2).any()
    assert (memory.slot(3) == 7).all()
    memory.slot(2)[:] = 9
    memory.note_written(2, memory.slot_bytes)
    assert (memory.slot(2) == 9).all()
    memory.close()


def test_a_worker_sees_a_dropped_slot_as_empty_and_writes_into_it_again(memory):
    opened = OpenedSlots(memory.offer(77))
    opened.slot(1, 100)[:] = 5
    assert memory.drop(1)
    assert not opened.slot(1, 100).any()
    opened.slot(1, 100)[:] = 6
    assert (memory.slot(1)[:100] == 6).all()
    opened.close()


def test_private_slots_are_dropped_as_well(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    memory = SlotMemory(2, 5000)
    assert not memory.shareable
    memory.slot(0)[:] = memory.slot(1)[:] = 3
    assert memory.drop(0)
    assert not memory.slot(0).any()
    assert (memory.slot(1) == 3).all()
