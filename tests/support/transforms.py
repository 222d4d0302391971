"""Transforms that tests name in job files."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_server.transforms.declare import transform

if TYPE_CHECKING:
    import numpy as np


#: Open unless a test closes it.
GATE = threading.Event()
GATE.set()

#: Somebody came to the gate since this was cleared.
AT_GATE = threading.Event()

#: Raised for the next samples.
RAISED: list[BaseException] = []


@transform()
def gate(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Waits until the gate is open, and raises what a test put there: for workers in the test's own process."""
    AT_GATE.set()
    assert GATE.wait(60)
    if RAISED:
        raise RAISED.pop()


@transform()
def slow(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """As long as a real sample takes: some milliseconds."""
    time.sleep(0.004)


@transform()
def noise(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Augmentation: values change, lengths do not."""
    sample["audio"] += 0.01 * rng.standard_normal(len(sample["audio"]), dtype="float32")


@transform()
def aborts(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Kills the process on the sample whose text is in the file that STOKER_TEST_CULPRIT names."""
    if sample["text"] == _named("STOKER_TEST_CULPRIT"):
        os.abort()


@transform()
def raises(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Fails on texts that begin with "three"."""
    if sample["text"].startswith("three"):
        raise ValueError("three is too many")


class Panic(BaseException):
    """What extensions in other languages raise: no Exception, so nobody catches it."""


_NOT_EXCEPTIONS = {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "panic": Panic("at the disco")}


@transform()
def raises_no_exception(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Raises what is no Exception on the texts that name it."""
    if sample["text"] in _NOT_EXCEPTIONS:
        raise _NOT_EXCEPTIONS[sample["text"]]


@transform()
def raises_os_errors(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """On "content" what decoders raise for bytes that they do not like, on "disk" what a disk raises."""
    if sample["text"] == "content":
        raise OSError("cannot identify image file")
    if sample["text"] == "disk":
        raise OSError(errno.EIO, os.strerror(errno.EIO), "lexicon.txt")


@transform()
def aborts_on_silence(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Kills the process on a file that holds nothing but zeros: what kills is in the file."""
    if not sample["audio"].any():
        os.abort()


@transform()
def held_and_killed(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """The first worker that comes here notes its number in the file that STOKER_TEST_HELD names, and waits for its end.

    Of the processes that try samples the first one kills itself, and notes that in the file of STOKER_TEST_KILLED.
    """
    if b"crash-trial" in Path("/proc/self/cmdline").read_bytes():
        if _is_first("STOKER_TEST_KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)
    elif _is_first("STOKER_TEST_HELD"):
        threading.Event().wait()


def _is_first(variable: str) -> bool:
    """Whether this process is the first to note its number in the file that the variable names, if it is set."""
    if variable not in os.environ:
        return False
    try:
        opened = os.open(os.environ[variable], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.write(opened, str(os.getpid()).encode())
    os.close(opened)
    return True


def _leaves_a_child() -> None:
    """Which holds all that its parent had open."""
    if not os.fork():
        signal.pause()
    os.abort()


def _closes_all_files() -> None:
    """Nobody hears of it any more, and it takes its time to end."""
    os.closerange(3, 256)
    time.sleep(0.6)


_ORDERS = {
    "abort": os.abort,
    "segv": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: threading.Event().wait(),
    "close": _closes_all_files,
    "leave": _leaves_a_child,
    "quit": lambda: sys.exit(3),
    "print": lambda: print("passed", flush=True),
}


@transform()
def obeys(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Does what the text says."""
    runs_out(sample, rng)
    _ORDERS.get(sample["text"], bool)()


@transform()
def never_ends(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Sleeps for ever on "sleeps"; on "holds" it never leaves C code that holds the interpreter."""
    if sample["text"] == "sleeps":
        threading.Event().wait()
    while sample["text"] == "holds":
        ctypes.PyDLL(None).pause()


@transform()
def holds_the_gil(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Sleeps in C without letting go of the interpreter, once in each process, in turn."""
    turn = Path(os.environ["STOKER_TEST_TURNS"]) / str(os.getpid())
    if not turn.exists():
        turn.touch()
        ctypes.PyDLL(None).usleep(int(1e6 * float(os.environ["STOKER_TEST_HOLD_S"])))


@transform()
def leaves_a_child(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Forks a child that lives on, once in each process: who forked whom stands in the folder STOKER_TEST_CHILDREN."""
    mark = Path(os.environ["STOKER_TEST_CHILDREN"]) / str(os.getpid())
    if mark.exists():
        return
    child = os.fork() if os.environ["STOKER_TEST_FORK"] == "python" else ctypes.CDLL(None).fork()
    while not child:
        signal.pause()
    mark.write_text(str(child))


def _named(variable: str) -> str:
    return Path(os.environ[variable]).read_text()


@transform()
def slow_in_named_worker(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Some hundred times slower in the process whose number is in the file that STOKER_TEST_SLOW_WORKER names."""
    marker = Path(os.environ["STOKER_TEST_SLOW_WORKER"])
    slow_here = marker.exists() and marker.read_text() == str(os.getpid())
    time.sleep(0.06 if slow_here else 0.0003)


@transform()
def always_raises(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Fails on every sample."""
    raise ValueError("nothing is good enough")


def undeclared(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Says nothing of itself: lengths are measured while indexing."""
    sample["audio"] = -sample["audio"]


@transform()
def kills_workers(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Ends the worker on every sample, as the system does where memory is short; children that try them pass."""
    if b"crash-trial" not in Path("/proc/self/cmdline").read_bytes():
        os.kill(os.getpid(), signal.SIGKILL)


@transform()
def waits(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Takes its time but no processor, so that more workers make it faster on any machine."""
    time.sleep(0.05)


_RUNS_OUT: dict[str, BaseException] = {
    "memory": MemoryError("Unable to allocate 256. GiB"),
    **{
        name: OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
        for name in ("EMFILE", "ENFILE", "ENOMEM")
    },
}


@transform()
def runs_out(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Raises on the texts that name it what a process raises that has no memory or descriptors left."""
    if sample["text"] in _RUNS_OUT:
        raise _RUNS_OUT[sample["text"]]


@transform()
def runs_out_in_workers(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """The same, but not in processes that try samples."""
    if b"crash-trial" not in Path("/proc/self/cmdline").read_bytes():
        runs_out(sample, rng)


@transform()
def hoards(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """On "hoard" takes memory without end that is not its own, but of a file that it has: it never looks large."""
    if sample["text"] == "hoard":
        hoard = os.memfd_create("hoard")
        while True:
            os.write(hoard, bytes(2**20))


@transform()
def notes_its_score(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """On "victim" the first worker ends, and a process that tries samples notes what the OOM killer thinks of it."""
    if sample["text"] != "victim":
        return
    if b"crash-trial" in Path("/proc/self/cmdline").read_bytes():
        Path(os.environ["STOKER_TEST_SCORE"]).write_text(Path("/proc/self/oom_score_adj").read_text())
    elif _is_first("STOKER_TEST_KILLED"):
        os.kill(os.getpid(), signal.SIGKILL)


@transform()
def spoils(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Makes one value of the audio NaN or infinite on the texts that name it."""
    if sample["text"] in ("nan", "inf", "-inf"):
        sample["audio"][len(sample["audio"]) // 2] = float(sample["text"])
