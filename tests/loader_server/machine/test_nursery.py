"""The process that a machine's loaders are forked from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.loaders import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Owns a nursery whose children report what they find and then end as they are told. Takes a request a line.
OWNER = """
import json, os, signal, sys, threading
import numpy as np
from loader_server.machine.nursery import Nursery
from shared.errors import StokerError

def child(arguments):
    how, _, ready = arguments
    facts = {
        "session": os.getsid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
        "ready": int(ready),
        "parent": os.getppid(),
        "drawn": int(np.random.randint(2**31)),
        "interrupted_by_ctrl_c": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    }
    os.write(int(ready), json.dumps(facts).encode())
    exec(how)

nursery = Nursery(child)
print(json.dumps({"nursery": nursery.pid}), flush=True)
for line in sys.stdin:
    reading, writing = os.pipe()
    try:
        one = nursery.start([json.loads(line)], keep=writing)
    except StokerError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        continue
    os.close(writing)
    os.kill(nursery.pid, signal.SIGKILL) if "its nursery is killed" in line else None
    facts = json.loads(os.read(reading, 65536))
    ended = one.wait(0.3 if "pause" in line else None)
    one.send_signal(0) if ended is None else None
    print(json.dumps({"pid": one.pid, "ended": ended, **facts}), flush=True)
nursery.close()
"""


class Owner:
    """A process with a nursery; it has to be one without threads."""

    def __init__(self, before: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        self.nursery = psutil.Process(self._read()["nursery"])

    def ask(self, how: str) -> dict[str, Any]:
        """Have a child do this, and say what came of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(how) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


@contextmanager
def owner(before: str = "") -> Iterator[Owner]:
    """An owner for the length of a block, which does something else before."""
    made = Owner(before)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('a sentence')", 1),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 5)", -signal.SIGRTMIN - 5),
    ],
)
def test_how_a_child_ends_is_told(how: str, code: int, owned: Owner) -> None:
    """As of any process."""
    assert owned.ask(how)["ended"] == code


@pytest.fixture(scope="module")
def owned() -> Iterator[Owner]:
    """One owner for all tests that leave it as it was."""
    with owner() as made:
        yield made


def test_a_child_has_what_it_is_given_and_nothing_else(owned: Owner) -> None:
    """No socket of its owner, no pipe of another child; one to ask the nursery by.

    Ctrl-C at the terminal does not reach it.
    """
    facts = owned.ask("pass")
    assert facts["descriptors"] == [0, 1, 2, 3, 4]
    assert facts["ready"] == 3
    assert facts["stdin"] == os.devnull
    assert facts["session"]
    assert facts["interrupted_by_ctrl_c"]
    assert facts["parent"] == owned.nursery.pid
    assert owned.ask("sys.exit(os.get_inheritable(4))")["ended"] == 0


def test_children_draw_different_numbers(owned: Owner) -> None:
    """Code that uses numpy's own generator would augment all workers' samples alike."""
    assert len({owned.ask("pass")["drawn"] for _ in range(4)}) == 4


def test_what_threads_of_a_child_have_begun_is_finished(owned: Owner) -> None:
    """As in any process: it ends with its last thread."""
    how = "threading.Timer(0.05, lambda: os._exit(7)).start()"
    assert owned.ask(how)["ended"] == 7


#: What a child does to have a child of its own: `asker` and `ask`, which has it do something and returns it.
_ASKS = """
import fcntl, socket
from loader_server.machine.asking import Asker
from loader_server.machine.nursery import ASKING_FD
asker = Asker(socket.socket(fileno=ASKING_FD), os.getppid())
def ask(how, asker=asker):
    reading, writing = os.pipe()
    one = asker.start([how], keep=writing)
    os.close(writing)
    os.read(reading, 65536)
    return one
def full_pipe(fcntl=fcntl):
    reading, writing = os.pipe()
    os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)))
    return writing
def ask_without_end(asker=asker):
    try:
        while True:
            asker._socket.send(b"nonsense")
    except ConnectionError:
        pass
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_child_may_ask_for_children_of_its_own(owned: Owner, code: int) -> None:
    """Which are its siblings, to all but itself."""
    how = f"os.getppid() == {owned.nursery.pid} and sys.exit({code})"
    assert owned.ask(f"{_ASKS}\nsys.exit(10 + ask({how!r}).wait())")["ended"] == 10 + code


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("hides", ["pass", "os.close(ASKING_FD)", "os.fork() or os._exit(one.wait())"])
def test_they_end_with_it(owned: Owner, end: str, hides: str) -> None:
    """However it ends, and whoever has its socket."""
    siblings = set(owned.nursery.children())
    owned.ask(f"{_ASKS}\none = ask('signal.pause()')\n{hides}\n{end}")
    wait_until(lambda: set(owned.nursery.children()) <= siblings, "its children have ended")


@pytest.mark.parametrize(
    "garbage",
    [
        "[]",
        "asker._socket.send(b'nonsense')",
        "asker._socket.send(b'[1]')",
        "socket.send_fds(asker._socket, [b'{}'], [0, 1])",
        "socket.send_fds(asker._socket, [b'[]'], [0])",
        "asker._socket.send(b'')",
        "asker._socket.send(b'[' * 60_000)",
        "socket.send_fds(asker._socket, [b'[\"pass\"]'], [0, 0])",
        "socket.send_fds(asker._socket, [b'[\"pass\"]'], [0, full_pipe()])\nasker._socket.recv(9)\n"
        "for _ in range(3): ask('pass').wait()",
        "ask_without_end()",
        "os.close(ASKING_FD)",
    ],
)
def test_what_a_child_sends_instead_of_a_request_harms_nobody(owned: Owner, garbage: str) -> None:
    """Its own code is a user's."""
    before = owned.nursery.num_fds()
    assert owned.ask(f"{_ASKS}\n{garbage}\nsys.exit(5)")["ended"] == 5
    assert owned.ask("pass")["ended"] == 0
    wait_until(lambda: owned.nursery.num_fds() <= before, "all of it is closed")


def test_descriptors_above_1023_are_like_others() -> None:
    """Workers raise their limit."""
    many = "import os, shared.commands\nshared.commands.allow_many_files()\nmany = [os.dup(0) for _ in range(1100)]\n"
    with owner(many) as made:
        assert made.ask("sys.exit(3)")["ended"] == 3
        assert made.ask(f"{_ASKS}\n{many}\nsys.exit(10 + ask('sys.exit(3)').wait())")["ended"] == 13


def test_a_nursery_without_room_for_descriptors_says_so() -> None:
    """And goes on once it has some."""
    with owner() as made:
        made.ask("pass")
        soft, hard = made.nursery.rlimit(psutil.RLIMIT_NOFILE)
        made.nursery.rlimit(psutil.RLIMIT_NOFILE, (3, hard))
        assert "got Too many open files" in made.ask("pass")["error"]
        made.nursery.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
        assert made.ask("sys.exit(3)")["ended"] == 3


def test_an_answer_that_comes_too_late_is_about_nobody() -> None:
    """The child is ended, and the next one is not mistaken for it."""
    with owner("from loader_server.machine import asking\nasking._PATIENCE_S = 0.2\n") as made:
        made.nursery.suspend()
        assert "got no answer in 0.2 s" in made.ask("signal.pause()")["error"]
        assert "got no answer in 0.2 s" in made.ask("signal.pause()")["error"]
        made.nursery.resume()
        wait_until(lambda: made.ask("sys.exit(3)").get("ended") == 3, "it answers again")
        wait_until(lambda: not made.nursery.children(), "nobody lives on")


def test_one_that_hangs_up_and_lives_on_keeps_the_nursery_not_busy() -> None:
    """Its socket stays readable."""
    with owner() as made:
        child = psutil.Process(made.ask(f"{_ASKS}\nos.close(ASKING_FD)\nsignal.pause()")["pid"])
        try:
            wait_until(lambda: child.num_fds() == 4, "it has hung up")
            wait_until(lambda: made.nursery.status() == psutil.STATUS_SLEEPING, "the nursery waits")
        finally:
            child.kill()


def test_signals_that_reach_the_whole_group_end_no_nursery() -> None:
    """Ctrl-C and a service manager's SIGTERM go to all processes: the owner decides in which order they end."""
    with owner() as made:
        made.nursery.send_signal(signal.SIGINT)
        made.nursery.send_signal(signal.SIGTERM)
        assert made.ask("sys.exit(3)")["ended"] == 3


def test_a_child_heeds_sigterm_from_its_first_instant_on() -> None:
    """Whoever asked for it knows it before it has run anything of its own."""
    code = (
        "import os, signal, time\n"
        "from loader_server.machine.nursery import Nursery\n"
        "os.register_at_fork(after_in_child=lambda: time.sleep(0.3))\n"
        "nursery = Nursery(lambda _: time.sleep(60))\n"
        "one = nursery.start(['child'], keep=os.open(os.devnull, os.O_WRONLY))\n"
        "one.send_signal(signal.SIGTERM)\n"
        "raise SystemExit(one.wait(30) != -signal.SIGTERM)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_it_ends_with_its_owner() -> None:
    """Even if that is killed."""
    with owner() as made:
        made.process.kill()
        wait_until(lambda: _has_ended(made.nursery), "the nursery has ended")


def _has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_without_it_there_is_an_error() -> None:
    """Somebody killed it: the children that it had are gone, and no others can be started."""
    with owner() as made:
        made.nursery.kill()
        assert "got: the end of the process that forks" in made.ask("pass")["error"].replace("got ", "got: ")


def test_children_of_a_killed_nursery_have_ended() -> None:
    """Their owner learns of it as of any end, and kills those that do not end with their parent."""
    with owner() as made:  # which waits for the end of what does not say "pause" however long that takes
        told = made.ask("threading.Event().wait()  # its nursery is killed")
        assert told["ended"] == -signal.SIGKILL
        wait_until(lambda: not psutil.pid_exists(told["pid"]) or _has_ended(psutil.Process(told["pid"])), "it is gone")


_THREADED = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


def test_a_process_with_threads_refuses() -> None:
    """A fork of it may hang."""
    said = subprocess.run(
        [sys.executable, "-c", _THREADED + OWNER], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "AssertionError" in said.stderr
