"""What one coordinator carries: leases by the ten thousand a minute, and the heartbeats of a large fleet.

    python -m tests.benchmarks.coordinator [--trainers 1000] [--workers 200] [--rate 60000] --json

The coordinator is a process of its own, as `loader-server coordinator` starts it, with a journal on this disk. Trainers
and workers are thin fakes, each with a connection of its own. All attach first. Then they send heartbeats as real ones
do, four in a heartbeat timeout: `cpu_cores` is the coordinator's share of a core. Then each trainer also says at even
pauses that a batch is done and leases another, `--rate` a minute in all; `leases_per_minute` are those that were
granted, `leasing_cpu_cores` what that and the heartbeats took, and `p99_ms` the time within which 99 % of the answers
came. `slow_fsync` is the same with 10 ms put into every fsync, on a journal in memory where there is such a folder, so
that only these count. `waited_for_cpu` is the share of the time in which the coordinator could have run and was given
no core: latencies say something only if it is small. The exit code is 1 if it carried less than 50 000 a minute, if
heartbeats took half a core, or if with slow fsync more than 1 % of the answers took over 50 ms.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import zmq

from loader_server.building.fingerprint import builder_fingerprint
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.sockets import connect_dealer, read_waiting
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.support.loaders import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.wire.message_parts import Lease

_JOB = """
[job]
name = "many"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "synthetic"
samples = 4_000_000
length = "tokens"
budget = "500 tokens"
shapes = 4
mode = "queue"
"""

_HEARTBEAT_S = 0.5
_FSYNC_US = 10_000
_MEMORY = Path("/dev/shm")
_NOTED = encode(m.Noted())


@dataclass
class Fake:
    """A trainer or a worker: its connection, and what it says again and again."""

    socket: zmq.Socket[bytes]
    beat: bytes
    incarnation: int
    leases: tuple[Lease, ...] = ()
    serial: int = 0
    generation: int = 0
    #: When it said what is not answered yet; 0: nothing is open.
    asked_s: float = 0.0


@dataclass
class Measured:
    """What happened in one stretch of time."""

    cpu_cores: float
    leases_per_minute: float
    #: The share of the time in which it waited for a core.
    waited: float
    latencies_s: list[float] = field(default_factory=list)

    def within_ms(self, share: float) -> float:
        """The time in which this share of the answers came."""
        ordered = sorted(self.latencies_s)
        return round(1000 * ordered[int(share * (len(ordered) - 1))], 1) if ordered else 0.0


class Crowd:
    """Fakes of both kinds, served by one loop."""

    def __init__(self, endpoint: str, builder: str, trainers: int, workers: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 4 * (trainers + workers) + 16)
        self._poller = zmq.Poller()
        self._by_socket: dict[zmq.Socket[bytes], Fake] = {}
        self._latencies_s: list[float] = []
        self._ready = self._granted = 0
        #: Messages that were sent and read.
        self.said = 0
        self.workers = [self._worker(endpoint, builder, number) for number in range(1, workers + 1)]
        self._wait_for(workers)
        self.trainers = [self._trainer(endpoint, number) for number in range(1, trainers + 1)]
        self._wait_for(workers + trainers)

    def _connect(self, endpoint: str, incarnation: int, kind: str, beat: m.Message, first: m.Message) -> Fake:
        socket = connect_dealer(self._context, endpoint, None, f"{kind}-{incarnation}".encode())
        fake = Fake(socket, encode(beat), incarnation)
        self._poller.register(socket, zmq.POLLIN)
        self._by_socket[socket] = fake
        socket.send(encode(first))  # blocks until the connection is there
        return fake

    def _worker(self, endpoint: str, builder: str, number: int) -> Fake:
        name = f"worker-{number}"
        beat = m.Beat(
            worker=name,
            incarnation=number,
            waiting=4,
            building=1,
            built=99,
            masked=0,
            kept=0,
            decoded=99,
            taken=0,
            remote_bytes=0,
            remote_found=0,
            remote_waited=0,
            busy_us=0,
            awaited_us=0,
            read_us=0,
            held_up_us=0,
            throttled_us=0,
            queued_us=0,
            culprits=0,
        )
        register = m.Register(
            worker=name, incarnation=number, endpoint=f"tcp://10.0.0.1:{10_000 + number}", boot_id="b", uid=0,
            builder=builder, metrics="",
        )  # fmt: skip
        return self._connect(endpoint, number, "worker", beat, register)

    def _trainer(self, endpoint: str, number: int) -> Fake:
        incarnation = 1_000_000 + number
        attach = m.Attach(
            serial=1, job="", stream="train", rank=0, replicas=1, world=1, incarnation=incarnation,
            name=f"trainer-{number}", cursor=None, work="train", done=None, world_version=None,
            tenure=None,
        )  # fmt: skip
        return self._connect(endpoint, incarnation, "trainer", _progress(incarnation, 0), attach)

    def _wait_for(self, ready: int) -> None:
        until_s = time.monotonic() + 120
        while self._ready < ready:
            self._read(100)
            if time.monotonic() > until_s:
                raise SystemExit(f"after 120 s only {self._ready} of {ready} were let in")

    # --- one loop for all ---

    def run(self, coordinator: psutil.Process, seconds: float, leases_per_s: float) -> Measured:
        """Heartbeats of all, and leases if any are wanted."""
        began_s = time.monotonic()
        due = [(began_s + _HEARTBEAT_S * at / len(self._by_socket), at, fake, _HEARTBEAT_S)
               for at, fake in enumerate(self._by_socket.values())]  # fmt: skip
        if leases_per_s:
            pause_s = len(self.trainers) / leases_per_s
            due += [(began_s + pause_s * at / len(self.trainers), -1 - at, fake, pause_s)
                    for at, fake in enumerate(self.trainers)]  # fmt: skip
        heapq.heapify(due)
        self._latencies_s, self._granted = [], 0
        cpu_s, waited_s = _cpu_s(coordinator), _waited_s(coordinator)
        while (now_s := time.monotonic()) < began_s + seconds:
            while due[0][0] <= now_s:
                at_s, at, fake, pause_s = due[0]
                heapq.heapreplace(due, (at_s + pause_s, at, fake, pause_s))
                self._lease(fake, now_s) if at < 0 else fake.socket.send(fake.beat)
                self.said += 1
            self._read(2)
        took_s = time.monotonic() - began_s
        cores = (_cpu_s(coordinator) - cpu_s) / took_s
        waited = (_waited_s(coordinator) - waited_s) / took_s
        return Measured(cores, 60 * self._granted / took_s, waited, self._latencies_s)

    def _lease(self, fake: Fake, now_s: float) -> None:
        """The first of its batches is done, the second is in hand; it would have two."""
        if fake.asked_s:
            return
        fake.serial, fake.asked_s = fake.serial + 1, now_s
        in_hand = fake.leases[1] if len(fake.leases) > 1 else None
        said = m.Outcomes(
            stream="train", work="train", incarnation=fake.incarnation, serial=fake.serial, book=None,
            generation=fake.generation, done=fake.leases[:1], failed=(), returned=(), in_hand=in_hand, wanted=2,
            before=1000, snapshot=False,
        )  # fmt: skip
        fake.socket.send(encode(said))

    def _read(self, most_ms: int) -> None:
        for socket, _ in self._poller.poll(most_ms):
            for frames in read_waiting(socket):
                self.said += 1
                if frames[0].bytes != _NOTED:
                    self._take(self._by_socket[socket], decode(frames[0].buffer))

    def _take(self, fake: Fake, message: m.Message) -> None:
        if isinstance(message, m.Leases) and message.serial == fake.serial:
            self._granted += len(set(message.leases) - set(fake.leases))
            self._latencies_s.append(time.monotonic() - fake.asked_s)
            fake.leases, fake.generation, fake.asked_s = message.leases, message.generation, 0.0
        elif isinstance(message, m.Attached):
            self._ready += 1
            fake.beat = encode(_progress(fake.incarnation, message.members))
        elif isinstance(message, m.Members):
            fake.beat = encode(_progress(fake.incarnation, message.version))
        elif isinstance(message, m.Registered):
            self._ready += 1
        elif isinstance(message, m.Culprits):
            beat = decode(fake.beat)
            assert isinstance(beat, m.Beat)
            fake.beat = encode(_with_culprits(beat, message.version))
        elif isinstance(message, m.Refused | m.NotAttached):
            raise SystemExit(f"refused: {message}")

    def close(self) -> None:
        for socket in self._by_socket:
            socket.close(linger=0)
        self._context.term()


def _progress(incarnation: int, members: int) -> m.Progress:
    return m.Progress(
        stream="train", rank=0, incarnation=incarnation, epoch=0, number=0, read_epoch=0, read_number=9,
        waited_permille=20, batches_read=9, prefetch=8, wire_us=0,
        computed_us=0, metrics="", members=members,
    )  # fmt: skip


def _with_culprits(beat: m.Beat, version: int) -> m.Beat:
    return m.Beat(**{name: getattr(beat, name) for name in beat.checks} | {"culprits": version})


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _waited_s(process: psutil.Process) -> float:
    """How long its loop was ready to run and had to wait for a core."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def serving(job: Path, environment: dict[str, str]) -> Iterator[tuple[psutil.Process, str]]:
    """A coordinator's process, and where it serves."""
    ready, said = os.pipe()
    command = [sys.executable, "-m", "loader_server", "coordinator", str(job), "--ready-fd", str(said)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    log = job.parent / "coordinator.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, cwd=job.parent, pass_fds=[said], stderr=file)
    os.close(said)
    try:
        with os.fdopen(ready) as lines:
            line = lines.readline()
            if not line:
                raise RuntimeError(log.read_text())
            yield psutil.Process(process.pid), json.loads(line)["endpoint"]
    finally:
        process.terminate()
        process.wait(30)


def _slow_fsync(folder: Path) -> dict[str, str]:
    """The environment of a process in which every fsync takes longer."""
    library = folder / "slow_fsync.so"
    source = ROOT / "tests" / "support" / "slow_fsync.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library), "SLOW_FSYNC_US": str(_FSYNC_US)}


def measure(*, trainers: int, workers: int, rate: float, seconds: float, slow: bool) -> tuple[Measured, Measured]:
    """Heartbeats alone, and with leases."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if slow and _MEMORY.is_dir() else None) as name:
        job = Path(name) / "job.toml"
        job.write_text(_JOB)
        command = [sys.executable, "-m", "loader_server", "index", str(job)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
        opened = JobFile(job)
        builder = builder_fingerprint({"train": Stream(opened, "train")}, opened.versions_of_sent())
        with serving(job, _slow_fsync(Path(name)) if slow else {}) as (process, endpoint):
            crowd = Crowd(endpoint, builder, trainers, workers)
            try:
                crowd.run(process, 2, 0)  # the lists of workers and culprits have come
                beats = crowd.run(process, seconds, 0)
                crowd.run(process, 4, rate / 60)
                return beats, crowd.run(process, seconds, rate / 60)
            finally:
                crowd.close()


def result(*, trainers: int, workers: int, rate: float, seconds: float) -> dict[str, object]:
    """All figures."""
    how = {"trainers": trainers, "workers": workers, "rate": rate, "seconds": seconds}
    beats, leasing = measure(**how, slow=False)
    _, slow = measure(**how, slow=True)
    return {
        "leases_per_minute": round(leasing.leases_per_minute),
        "cpu_cores": round(beats.cpu_cores, 3),
        "trainers": trainers,
        "workers": workers,
        "leasing_cpu_cores": round(leasing.cpu_cores, 3),
        "p99_ms": leasing.within_ms(0.99),
        "waited_for_cpu": round(leasing.waited, 3),
        "slow_fsync": {
            "leases_per_minute": round(slow.leases_per_minute),
            "cpu_cores": round(slow.cpu_cores, 3),
            "p50_ms": slow.within_ms(0.5),
            "p99_ms": slow.within_ms(0.99),
            "waited_for_cpu": round(slow.waited, 3),
        },
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--rate", type=float, default=60_000, help="leases a minute that are asked for")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    found = result(trainers=options.trainers, workers=options.workers, rate=options.rate, seconds=options.seconds)
    print(json.dumps(found))
    slow = found["slow_fsync"]
    too_little = min(found["leases_per_minute"], slow["leases_per_minute"]) < 50_000
    return too_little or found["cpu_cores"] > 0.5 or slow["p99_ms"] > 50


if __name__ == "__main__":
    sys.exit(main())
