"""Trials, with real children: what convicts a sample, and what is the machine's failure."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from loader_server.building.crash_trial import CrashTrial, judged
from loader_server.job_file import JobFile
from loader_server.machine.asking import Asker
from loader_server.stream import Stream
from shared.errors import MachineError
from tests.support.bad_samples import index, job_with_texts, write_texts
from tests.support.descriptors import open_descriptors
from tests.support.forked import TrialNursery
from tests.support.loaders import ROOT, wait_until, write_job
from tests.support.sources import raw_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS = ("abort", "segv", "exit", "hang", "close", "leave", "kill", "quit", "print")
NUMBER = {order: 1 + place for place, order in enumerate(ORDERS)}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    folder = tmp_path_factory.mktemp("job")
    texts = {number: order for order, number in NUMBER.items()}
    path = job_with_texts(folder, texts, transform="obeys", samples=12)
    index(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        stream = Stream(JobFile(path), "train")
        stream.path = path
        yield stream
        stream.close()


@pytest.fixture
def trial(stream: Stream) -> Iterator[CrashTrial]:
    trial = CrashTrial(TrialNursery(), stream.path, timeout_s=60.0)
    yield trial
    trial.close()


def convicted(trial: CrashTrial, stream: Stream, *samples: int) -> dict[int, str]:
    found = trial.try_samples(stream, 0, ((sample, raw_of(stream.source, sample)) for sample in samples))
    return {one.sample: one.ends for one in found}


def children(stream: Stream) -> set[psutil.Process]:
    """The processes that try samples of this stream, or were left behind by one."""
    found = set()
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(one.cmdline()).split()
            if {"crash-trial", str(stream.path), stream.name} <= set(words):
                found.add(one)
    return found


# --- verdicts ---


def test_samples_that_pass_share_one_child_whatever_they_raise_or_print(trial: CrashTrial, stream: Stream) -> None:
    assert convicted(trial, stream, 0, NUMBER["quit"], NUMBER["print"], 11) == {}
    (child,) = children(stream)
    child.send_signal(signal.SIGINT)  # Ctrl-C is for the worker to decide on
    assert convicted(trial, stream, 10) == {}
    assert children(stream) == {child}
    trial.close()
    assert not children(stream)


def test_another_stream_has_a_child_of_its_own(trial: CrashTrial, stream: Stream) -> None:
    dev = Stream(JobFile(stream.path), "dev")
    dev.path = stream.path
    for one, other in ((stream, dev), (dev, stream)):
        assert convicted(trial, one, 0) == {}
        assert len(children(one)) == 1
        assert not children(other)


def test_transforms_that_lie_beside_the_job_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(tmp_path)
    declared = "from loader_server.transforms.declare import transform\n@transform()\n"
    (tmp_path / "beside.py").write_text(f"{declared}def nothing(sample, rng): pass\n")
    path = write_job(tmp_path, samples=4, transforms=("beside:nothing", "logmel", "characters"))
    index(path)
    trial = CrashTrial(TrialNursery(), path, 60.0)
    assert convicted(trial, Stream(JobFile(path), "train"), 0) == {}
    trial.close()


@pytest.mark.parametrize(
    ("order", "ends"),
    [
        ("abort", "signal SIGABRT, signal SIGABRT"),
        ("segv", "signal SIGSEGV, signal SIGSEGV"),
        ("exit", "exit 0, exit 0"),
        ("close", "exit 1, exit 1"),
        ("hang", "no end in 2 s, no end in 2 s"),
    ],
)
def test_two_ends_of_its_own_convict_a_sample_and_nobody_beside_it(
    trial: CrashTrial, stream: Stream, monkeypatch: pytest.MonkeyPatch, order: str, ends: str
) -> None:
    victim = NUMBER[order]
    if order == "hang":
        monkeypatch.setattr(trial, "_timeout_s", 2.0)
    found = trial.try_samples(stream, 0, ((sample, raw_of(stream.source, sample)) for sample in (0, victim, 11)))
    (one,) = found
    assert (one.sample, one.ends) == (victim, ends)
    assert one.identity == stream.identity(victim)


def test_a_process_that_is_left_behind_does_not_hide_the_end_of_the_child(trial: CrashTrial, stream: Stream) -> None:
    try:
        assert convicted(trial, stream, NUMBER["leave"]) == {NUMBER["leave"]: "signal SIGABRT, signal SIGABRT"}
    finally:
        for one in children(stream):
            one.kill()


def test_a_child_that_is_killed_from_outside_is_the_machines_failure(trial: CrashTrial, stream: Stream) -> None:
    name = stream.source.name(NUMBER["kill"])
    with pytest.raises(MachineError, match=f"got {name} in hand: signal SIGKILL, which came from outside"):
        convicted(trial, stream, 0, NUMBER["kill"])


def test_one_that_died_while_it_had_nothing_in_hand_speaks_against_nobody(trial: CrashTrial, stream: Stream) -> None:
    assert convicted(trial, stream, 0) == {}
    (child,) = children(stream)
    child.send_signal(signal.SIGSEGV)
    wait_until(lambda: not child.is_running(), "it has died")
    assert convicted(trial, stream, 0) == {}  # a fresh child has the last word


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, ("exit 0", True)),
        (1, ("exit 1", True)),
        (-signal.SIGSEGV, ("signal SIGSEGV", True)),
        (-signal.SIGBUS, ("signal SIGBUS", True)),
        (-signal.SIGABRT, ("signal SIGABRT", True)),
        (-signal.SIGILL, ("signal SIGILL", True)),
        (-signal.SIGFPE, ("signal SIGFPE", True)),
        (-signal.SIGKILL, ("signal SIGKILL", False)),
        (-signal.SIGTERM, ("signal SIGTERM", False)),
        (-signal.SIGALRM, ("signal SIGALRM", False)),
        (-(signal.SIGRTMIN + 3), (f"signal {signal.SIGRTMIN + 3}", False)),
    ],
)
def test_a_crash_and_an_exit_are_its_own_other_signals_are_not(code: int, verdict: tuple[str, bool]) -> None:
    assert judged(code) == verdict


# --- children that cannot try anything ---


def test_a_job_that_no_longer_opens_is_the_machines_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = job_with_texts(tmp_path, {}, transform="obeys", samples=4)
    index(path)
    stream = Stream(JobFile(path), "train")
    write_texts(tmp_path, {1: "another text"})
    with pytest.raises(
        MachineError, match=r"clips/00000.wav in hand: a child that could not open the job: DataError: .*csv\.csv"
    ):
        convicted(CrashTrial(TrialNursery(), path, 1.0), stream, 0)


def test_another_index_is_the_machines_failure_even_if_it_holds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = job_with_texts(tmp_path, {}, transform="obeys", samples=4)
    index(path)
    stream = Stream(JobFile(path), "train")
    index(path)
    with pytest.raises(MachineError, match="an index or transforms that have changed on disk since"):
        convicted(CrashTrial(TrialNursery(), path, 1.0), stream, 0)


def test_so_is_one_that_takes_for_ever_to_start(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_server.building.crash_trial._READY_TIMEOUT_S", 0.1)
    with pytest.raises(MachineError, match="a child that was not ready in time: signal SIGKILL"):
        convicted(CrashTrial(TrialNursery("import signal; signal.pause()"), stream.path, 1.0), stream, 0)
    assert not children(stream)


def test_a_child_that_does_not_start_is_the_machines_failure(trial: CrashTrial, stream: Stream) -> None:
    assert convicted(trial, stream, 0) == {}  # so that the nursery is there
    descriptors = open_descriptors()
    with pytest.raises(MachineError, match="a child that ended before it was ready: exit 1"):
        convicted(CrashTrial(TrialNursery("raise SystemExit(1)"), stream.path, 1.0), stream, 0)
    assert not open_descriptors() - descriptors


def test_so_is_one_whose_end_nobody_hears_of(
    trial: CrashTrial, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loader_server.building.crash_trial._KILLED_S", 0.1)
    assert convicted(trial, stream, 0) == {}
    (child,) = children(stream)
    nursery = child.parent()
    assert nursery is not None
    nursery.suspend()
    try:
        with pytest.raises(MachineError, match=r"expected a killed process to end, got none that has in 0\.1 s"):
            trial.close()
    finally:
        nursery.resume()


def test_without_room_for_its_descriptors_no_child_starts_and_nothing_stays_open(stream: Stream) -> None:
    """There is room for a pair of sockets, and for nothing after it."""
    gc.collect()  # which would close some later, and so make room
    two = [os.dup(0) for _ in range(2)]
    for fd in two:
        os.close(fd)
    descriptors = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(two) + 1, hard))
    try:
        with pytest.raises(MachineError, match=r"no child that starts: OSError: .*Too many open files") as failed:
            convicted(CrashTrial(TrialNursery(), stream.path, 1.0), stream, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not open_descriptors() - descriptors
    assert failed.value.__cause__ is not None  # whose frames hold on to what would be closed with them


def test_so_is_a_nursery_that_has_ended(stream: Stream) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    descriptors = open_descriptors()
    with (
        ours,
        pytest.raises(MachineError, match=r"no child that starts: NurseryEndedError: .*the end of the one that forks"),
    ):
        convicted(CrashTrial(Asker(ours, 0), stream.path, 1.0), stream, 0)
    assert not open_descriptors() - descriptors
