"""Hosts that join a job with an index of a million samples: how soon one of them is of use, and whom 64 disturb.

    python -m tests.benchmarks.joining_hosts [--json] [--samples 1000000] [--hosts 64] [--rounds 5] [--only …] [--quick]

All is on this machine, by loopback and without keys; the data are lines of text, indexed for real. fresh: from starting
`loader-server run ENDPOINT` with an empty state folder, while a trainer waits and there is no other worker, to that
trainer's first batch. crowd: 64 thin hosts fetch the bundle and register at once (`joining_crowd`), while 64 thin
trainers say `Progress` four times a second. `p99_ms` is the time within which 99 % of the answers came, `quiet_p99_ms`
the same for as long without the hosts, just before, `more_ms` the difference; `grown_mib` is how much the coordinator's
own memory grew at most. The exit code is 1 if a first batch took over 5 s in the median, if p99 is over 50 ms above
that without the hosts in the median, or if the coordinator ever grew by more than 32 MiB: 16 MiB may be queued, and as
much again is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

import trainer_client
from loader_server.building.fingerprint import builder_fingerprint
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.sockets import read_waiting
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.benchmarks.coordinator import Crowd, Fake, serving
from tests.support.loaders import ROOT
from trainer_client.load_test.report.document import machine

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil
    from typing_extensions import Self

__all__ = ["main"]

_JOB = """
[job]
name = "lines"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "lines"
paths = ["lines.txt"]
transforms = ["characters"]
length = "text"
budget = "8192 characters"
mode = "queue"
"""

_TRAINERS = 64
_PROGRESS_S = 0.25
_FIRST_S = 5.0
_MORE_MS = 50.0
_GROWN_MIB = 32.0
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def _make_job(folder: Path, samples: int) -> Path:
    """Write so many lines, and index them."""
    draws = random.Random(7)
    pool = ["".join(draws.choices("abcdefghij klmnop", k=draws.randint(20, 120))) + "\n" for _ in range(1000)]
    with (folder / "lines.txt").open("w") as lines:
        lines.writelines(pool[number % len(pool)] for number in range(samples))
    job = folder / "job.toml"
    job.write_text(_JOB)
    for command in ("index", "plan"):
        words = [sys.executable, "-m", "loader_server", command, str(job)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT)
    return job


# --- a fresh host ---


def _fresh(endpoint: str, data: Path, rounds: int) -> dict[str, Any]:
    found = [_first_batch(endpoint, data) for _ in range(rounds)]
    first_s = [round(one["first_batch_s"], 2) for one in found]
    return {
        "first_batch_s": statistics.median(first_s),
        "first_batch_spread": [min(first_s), max(first_s)],
        "fetched_s": round(statistics.median(one["fetched_s"] for one in found), 2),
    }


def _first_batch(endpoint: str, data: Path) -> dict[str, float]:
    """How long a host with nothing takes to its first batch, and to a bundle that is whole."""
    with (
        tempfile.TemporaryDirectory() as folder,
        trainer_client.connect(endpoint) as feed,
        feed.open() as reading,
    ):
        words = [sys.executable, "-m", "loader_server", "run", endpoint, "--workers", "2", "--data", str(data)]
        log = Path(folder) / "log"
        began_s, began_at_s = time.monotonic(), time.time()
        with log.open("w") as file:
            host = subprocess.Popen(words, cwd=folder, env=_ENVIRONMENT, stdout=file, stderr=file)
        try:
            next(reading)
            took_s = time.monotonic() - began_s
        finally:
            host.send_signal(signal.SIGTERM)
            host.wait(60)
        (bundle,) = (Path(folder) / ".stoker" / "bundles").glob("*/")
        return {"first_batch_s": took_s, "fetched_s": bundle.stat().st_mtime - began_at_s}


# --- a crowd of hosts ---


@dataclass
class _Probe:
    """A trainer's `Progress`, and when it was said; 0: it is answered."""

    fake: Fake
    due_s: float
    asked_s: float = 0.0
    #: When a newer list of workers came, which may be the answer.
    listed_s: float = 0.0


class _Trainers:
    """Trainers that say how far they are, and count how long the answers take."""

    def __init__(self, crowd: Crowd, coordinator: psutil.Process) -> None:
        self._status = Path(f"/proc/{coordinator.pid}/status")
        self._poller = zmq.Poller()
        now_s = time.monotonic()
        self._probes = {
            fake.socket: _Probe(fake, now_s + _PROGRESS_S * at / len(crowd.trainers))
            for at, fake in enumerate(crowd.trainers)
        }
        for socket in self._probes:
            self._poller.register(socket, zmq.POLLIN)
        self._latencies_s: list[float] = []
        self._peak_mib = 0.0

    def run(self, is_over: Callable[[], bool]) -> tuple[float, float]:
        """Go on until it is over; return the 99th percentile in ms, and what the coordinator grew by in MiB."""
        self._latencies_s, self._peak_mib, before_mib = [], 0.0, self._own_mib()
        looked_s = 0.0
        while not is_over():
            now_s = time.monotonic()
            for probe in self._probes.values():
                self._say(probe, now_s)
            if now_s - looked_s > 0.02:
                self._peak_mib, looked_s = max(self._peak_mib, self._own_mib()), now_s
            for socket, _ in self._poller.poll(2):
                for frames in read_waiting(socket):
                    self._take(self._probes[socket], decode(frames[0].buffer))
        ordered = sorted(self._latencies_s)
        return 1000 * ordered[int(0.99 * (len(ordered) - 1))], self._peak_mib - before_mib

    def _own_mib(self) -> float:
        return int(self._status.read_text().split("RssAnon:")[1].split()[0]) / 1024

    def _say(self, probe: _Probe, now_s: float) -> None:
        if now_s < probe.due_s:
            return
        if probe.asked_s and probe.listed_s:
            self._note(probe, probe.listed_s)
        if not probe.asked_s:
            probe.asked_s = now_s
            probe.fake.socket.send(probe.fake.beat)
        probe.due_s += _PROGRESS_S

    def _take(self, probe: _Probe, message: m.Message) -> None:
        if isinstance(message, m.Members):
            probe.listed_s = time.monotonic()
            progress = decode(probe.fake.beat)
            assert isinstance(progress, m.Progress)
            told = {name: getattr(progress, name) for name in progress.checks} | {"members": message.version}
            probe.fake.beat = encode(m.Progress(**told))
        elif isinstance(message, m.Noted) and probe.asked_s:
            self._note(probe, time.monotonic())

    def _note(self, probe: _Probe, answered_s: float) -> None:
        if answered_s >= probe.asked_s:
            self._latencies_s.append(answered_s - probe.asked_s)
            probe.asked_s = 0.0
        probe.listed_s = 0.0


class _ThinHosts:
    """The process of hosts that join whenever it is told to."""

    def __init__(self, endpoint: str, builder: str, hosts: int) -> None:
        words = [sys.executable, "-m", "tests.benchmarks.joining_crowd", endpoint, builder, str(hosts)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT, cwd=ROOT
        )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self._poller = zmq.Poller()
        self._poller.register(self._stdout.fileno(), zmq.POLLIN)

    def __enter__(self) -> Self:
        self.answer()
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()

    def begin(self) -> None:
        """Let all of them join."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_answered(self) -> bool:
        """Return whether all have joined, or the process has ended."""
        return bool(self._poller.poll(0))

    def answer(self) -> dict[str, float]:
        """Return what it says next."""
        line = self._stdout.readline()
        if not line:
            raise RuntimeError("the thin hosts have ended; above stands why")
        return dict(json.loads(line))


def _crowd(endpoint: str, coordinator: psutil.Process, job: Path, hosts: int, rounds: int) -> dict[str, Any]:
    opened = JobFile(job)
    builder = builder_fingerprint({"train": Stream(opened, "train")}, opened.versions_of_sent())
    crowd = Crowd(endpoint, builder, _TRAINERS, 0)
    found = []
    try:
        with _ThinHosts(endpoint, builder, hosts) as hosts_side:
            trainers = _Trainers(crowd, coordinator)
            lasts_s = 3.0
            for _ in range(rounds):
                until_s = time.monotonic() + lasts_s
                quiet_ms, _ = trainers.run(lambda until_s=until_s: time.monotonic() > until_s)
                hosts_side.begin()
                p99_ms, grown_mib = trainers.run(hosts_side.has_answered)
                joined = hosts_side.answer()
                found.append({"quiet_p99_ms": quiet_ms, "p99_ms": p99_ms, "grown_mib": grown_mib, **joined})
                lasts_s = max(1.0, min(10.0, joined["seconds"]))
    finally:
        crowd.close()
    middle = {name: round(statistics.median(one[name] for one in found), 2) for name in found[0]}
    more_ms = [round(one["p99_ms"] - one["quiet_p99_ms"], 1) for one in found]
    return {
        "hosts": hosts,
        **middle,
        "more_ms": statistics.median(more_ms),
        "more_spread": [min(more_ms), max(more_ms)],
        "most_grown_mib": round(max(one["grown_mib"] for one in found), 1),
    }


def measured(*, samples: int, hosts: int, rounds: int, parts: list[str]) -> dict[str, Any]:
    """Return all figures."""
    found: dict[str, Any] = {"samples": samples}
    with tempfile.TemporaryDirectory() as name:
        job = _make_job(Path(name), samples)
        with serving(job, {}) as (coordinator, endpoint):
            if "fresh" in parts:
                found["fresh"] = _fresh(endpoint, job.parent, rounds)
            if "crowd" in parts:
                found["crowd"] = _crowd(endpoint, coordinator, job, hosts, rounds)
    return found


def _is_within(found: dict[str, Any]) -> bool:
    fresh, crowd = found.get("fresh"), found.get("crowd")
    soon = fresh is None or fresh["first_batch_s"] <= _FIRST_S
    calm = crowd is None or (crowd["more_ms"] <= _MORE_MS and crowd["most_grown_mib"] <= _GROWN_MIB)
    return soon and calm


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=("fresh", "crowd"), default=["fresh", "crowd"], help="parts")
    parser.add_argument("--quick", action="store_true", help="one round, few samples and hosts: says nothing of speed")
    options = parser.parse_args()
    if options.quick:
        options.samples, options.hosts, options.rounds = 2000, 4, 1
    found = measured(samples=options.samples, hosts=options.hosts, rounds=options.rounds, parts=options.only)
    if not options.json:
        for part in options.only:
            for name, value in found[part].items():
                print(f"{part:>6} {name:>20}  {value}")
    print(json.dumps({**found, "machine": machine(), "load_1_min": round(os.getloadavg()[0], 2)}))
    return 0 if options.quick or _is_within(found) else 1


if __name__ == "__main__":
    sys.exit(main())
