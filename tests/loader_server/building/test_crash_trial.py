"""Trials, with real children: what convicts a sample, and what is the machine's failure."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from loader_server.building.crash_trial import CrashTrial, judged
from loader_server.job_file import JobFile
from loader_server.machine.asking import Asker
from loader_server.machine.room import Room
from loader_server.stream import Stream
from shared.errors import MachineError
from tests.support.bad_samples import index, job_with_texts, write_texts
from tests.support.descriptors import open_descriptors
from tests.support.forked import TrialNursery
from tests.support.loaders import ROOT, wait_until, write_job
from tests.support.sources import raw_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDERS = ("abort", "segv", "exit", "hang", "close", "leave", "kill", "quit", "print", "memory", "EMFILE")
#: Much less than any machine has that runs tests.
NEEDED = Room(memory=2**20, descriptors=64)
NUMBER = {order: 1 + place for place, order in enumerate(ORDERS)}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    folder = tmp_path_factory.mktemp("job")
    texts = {number: order for order, number in NUMBER.items()}
    path = job_with_texts(folder, texts, transform="obeys", samples=14)
    index(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        stream = Stream(JobFile(path), "train")
        stream.path = path
        yield stream
        stream.close()


@pytest.fixture
def trial(stream: Stream) -> Iterator[CrashTrial]:
    trial = CrashTrial(TrialNursery(), stream.path, 60.0, NEEDED)
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
    assert convicted(trial, stream, 0, NUMBER["quit"], NUMBER["print"], 12) == {}
    (child,) = children(stream)
    child.send_signal(signal.SIGINT)  # Ctrl-C is for the worker to decide on
    assert convicted(trial, stream, 13) == {}
    assert children(stream) == {child}
    trial.close()
    assert not children(stream)


@pytest.mark.fault(62)
def test_a_child_offers_itself_to_the_kernel_before_its_worker(trial: CrashTrial, stream: Stream) -> None:
    assert convicted(trial, stream, 0) == {}
    (child,) = children(stream)
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (child.ppid(), child.pid)]
    assert scores[1] == min(1000, scores[0] + 800)


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
    trial = CrashTrial(TrialNursery(), path, 60.0, NEEDED)
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
    found = trial.try_samples(stream, 0, ((sample, raw_of(stream.source, sample)) for sample in (0, victim, 12)))
    (one,) = found
    assert (one.sample, one.ends) == (victim, ends)
    assert one.identity == stream.identity(victim)


@pytest.mark.fault(53)
@pytest.mark.parametrize(
    ("order", "end"),
    [("memory", "MemoryError: Unable to allocate 256. GiB"), ("EMFILE", "OSError: [Errno 24] Too many open files")],
)
def test_running_out_twice_in_fresh_children_with_enough_free_convicts(
    trial: CrashTrial, stream: Stream, order: str, end: str
) -> None:
    assert convicted(trial, stream, NUMBER[order]) == {NUMBER[order]: f"{end}, {end}"}
    assert convicted(trial, stream, 0) == {}


@pytest.mark.fault(53)
def test_a_child_that_tried_others_before_does_not_count_where_something_ran_out(
    trial: CrashTrial, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[tuple[bool, object]]()
    try_it = trial._try

    def noted(*arguments: object) -> object:
        is_fresh = trial._child is None or trial._child.is_fresh
        made = try_it(*arguments)
        tried.append((is_fresh, made))
        return made

    monkeypatch.setattr(trial, "_try", noted)
    assert set(convicted(trial, stream, 0, NUMBER["memory"], 1 + len(ORDERS))) == {NUMBER["memory"]}
    assert [is_fresh for is_fresh, _ in tried] == [True, False, True, True, True]
    assert [getattr(made, "is_fresh", None) for _, made in tried] == [None, False, True, True, None]


@pytest.mark.fault(53)
def test_five_tries_without_enough_free_are_the_machines_failure(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = CrashTrial(TrialNursery(), stream.path, 60.0, Room(memory=2**62, descriptors=64))
    started, name = [], stream.source.name(NUMBER["memory"])
    monkeypatch.setattr(
        trial, "_get_ready_child", lambda *how: started.append(how) or CrashTrial._get_ready_child(trial, *how)
    )
    with pytest.raises(MachineError, match=f"got {name} in hand: MemoryError: .*free, of which 4096 PiB") as failed:
        convicted(trial, stream, NUMBER["memory"])
    assert len(started) == 5
    assert str(failed.value).count("MemoryError") == 1
    assert not children(stream)


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
        MachineError, match=r"clips/00000.wav in hand: a child that could not open the job: DataError: .*another one"
    ):
        convicted(CrashTrial(TrialNursery(), path, 1.0, NEEDED), stream, 0)


def test_another_index_is_the_machines_failure_even_if_it_holds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = job_with_texts(tmp_path, {}, transform="obeys", samples=4)
    index(path)
    stream = Stream(JobFile(path), "train")
    index(path)
    with pytest.raises(MachineError, match="an index or transforms that have changed on disk since"):
        convicted(CrashTrial(TrialNursery(), path, 1.0, NEEDED), stream, 0)


def test_so_is_one_that_takes_for_ever_to_start(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_server.building.crash_trial._READY_TIMEOUT_S", 0.1)
    with pytest.raises(MachineError, match="a child that was not ready in time: signal SIGKILL"):
        convicted(CrashTrial(TrialNursery("import signal; signal.pause()"), stream.path, 1.0, NEEDED), stream, 0)
    assert not children(stream)


def test_a_child_that_does_not_start_is_the_machines_failure(trial: CrashTrial, stream: Stream) -> None:
    assert convicted(trial, stream, 0) == {}  # so that the nursery is there
    descriptors = open_descriptors()
    with pytest.raises(MachineError, match="a child that ended before it was ready: exit 1"):
        convicted(CrashTrial(TrialNursery("raise SystemExit(1)"), stream.path, 1.0, NEEDED), stream, 0)
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
            convicted(CrashTrial(TrialNursery(), stream.path, 1.0, NEEDED), stream, 0)
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
        pytest.raises(
            MachineError, match=r"no child that starts: NurseryEndedError: .*the end of the process that forks"
        ),
    ):
        convicted(CrashTrial(Asker(ours, 0), stream.path, 1.0, NEEDED), stream, 0)
    assert not open_descriptors() - descriptors
