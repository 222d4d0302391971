"""What those who have children forked know of them, and of their nursery."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from loader_server.machine.asking import Asker, Nursling, OwnedNursery
from shared.errors import MachineError
from shared.sockets import Waker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends only if it is killed, and stands for a child of a nursery."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def nursling_of(process: subprocess.Popen[bytes]) -> tuple[Nursling, int]:
    """It as its owner sees it, and the nursery's end of the pipe."""
    reading, writing = os.pipe()
    return Nursling(process.pid, os.pidfd_open(process.pid), reading), writing


def test_a_child_whose_nursery_died_is_killed_and_its_end_waited_for(sleeper: subprocess.Popen[bytes]) -> None:
    """Its ports are free only then; a child that ignores SIGTERM, or is stopped, would live on for ever."""
    child, end = nursling_of(sleeper)
    sleeper.send_signal(signal.SIGSTOP)
    assert child.wait(0) is None
    assert not child.is_orphan
    os.close(end)
    assert child.wait(60) == -signal.SIGKILL
    assert child.is_orphan
    assert sleeper.wait(60) == -signal.SIGKILL


def test_an_orphan_is_polled_for_its_own_end(sleeper: subprocess.Popen[bytes]) -> None:
    """The pipe stays readable, and would keep the loop busy."""
    child, end = nursling_of(sleeper)
    before = child.fileno()
    os.close(end)
    child.kill = lambda: None  # type: ignore[method-assign] # a process that the kernel takes long to end
    assert child.wait(0) is None
    assert child.fileno() != before
    sleeper.kill()
    assert child.wait(60) == -signal.SIGKILL


def test_a_child_has_ended_though_its_nursery_does_not_tell(sleeper: subprocess.Popen[bytes]) -> None:
    child, end = nursling_of(sleeper)
    assert not child.wait_gone(0)
    sleeper.kill()
    assert child.wait_gone(60)
    os.close(end)


def test_a_child_that_the_nursery_told_of_is_no_orphan(sleeper: subprocess.Popen[bytes]) -> None:
    child, end = nursling_of(sleeper)
    os.write(end, b"3")
    os.close(end)
    assert child.wait(0) == 3
    assert not child.is_orphan


def test_who_is_told_to_end_waits_for_no_answer() -> None:
    """A nursery that is stopped would keep it for half a minute."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    waker = Waker()
    asker = Asker(ours, 0)
    asker.interrupt_fd = waker.fileno()
    waker.wake()
    with pytest.raises(MachineError, match="this process has to end"):
        asker.start(["worker"], keep=0)
    assert asker.is_late
    for opened in (ours, theirs, waker):
        opened.close()


def test_a_nursery_that_does_not_end_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    """It is stopped, or hangs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = OwnedNursery(ours, sleeper.pid)
    assert nursery.look() is None
    sleeper.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    nursery.close()
    assert time.monotonic() - began_s < 60
    assert nursery.look() == -signal.SIGKILL
    nursery.close()  # again, which does nothing
    theirs.close()
    sleeper.returncode = -signal.SIGKILL  # it is reaped
