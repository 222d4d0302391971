"""What a fleet costs its coordinator and a trainer: connections, messages, bytes and memory with 10 to 1 000 workers.

    python -m tests.benchmarks.fleet_size [--json] [--workers 10 100 1000] [--trainers 16] [--seconds 8] [--quick]

Coordinator and trainer are real processes; the workers are thin ones (`fleet_size_ends`), each with connections of its
own and as if on a host of its own, and so are the other trainers (those of `coordinator`). All is on loopback and
without keys. The coordinator is measured with all workers and the thin trainers; then one real trainer attaches, which
reads 20 batches a second. Bytes are those of TCP, as `ss` tells them for that process's connections; messages are
counted by the thin ends, so the trainer's are those with its workers; memory is what is the process's own, and CPU the
share of a core. `list_bytes` is the list of workers that each trainer gets whenever one comes or goes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from loader_server.building.fingerprint import builder_fingerprint
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.wire import messages as m
from shared.wire.codec import encode
from shared.wire.message_parts import WorkerAddress
from tests.benchmarks.coordinator import Crowd, serving
from tests.benchmarks.data_path_consumer import cpu_s
from tests.benchmarks.fleet_size_ends import HEARTBEAT_S
from tests.support.loaders import ROOT
from trainer_client.load_test.report.document import machine

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["measured"]

_JOB = """
[job]
name = "size"
seed = 7
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "synthetic"
samples = 400_000
length = "tokens"
budget = "3200 tokens"
shapes = 4
mode = "queue"

[streams.steps]
like = "train"
mode = "lockstep"
"""

_BATCHES_PER_S = 20
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class _End:
    """A process of `fleet_size_ends`, which answers a line with a line."""

    def __init__(self, *arguments: str) -> None:
        words = [sys.executable, "-m", "tests.benchmarks.fleet_size_ends", *arguments]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT, cwd=ROOT
        )

    def __enter__(self) -> Self:
        self.answer()
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()

    def say(self, line: str = "") -> None:
        """Begin what it does in answer to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, int]:
        """Return the answer, once it has come."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("it has ended; above stands why")
        return dict(json.loads(line))

    def ask(self) -> dict[str, int]:
        """Say an empty line; return the answer."""
        self.say()
        return self.answer()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A process as the kernel sees it at a moment."""

    at_s: float
    connections: int
    nbytes: int
    cpu_s: float
    own_mib: float

    @classmethod
    def of(cls, pid: int) -> _Seen:
        """Look at it now."""
        inodes = _socket_inodes(pid)
        listed = subprocess.run(
            ["ss", "-tineH", "-O", "state", "established"], capture_output=True, text=True, check=True
        )
        lines = [line for line in listed.stdout.splitlines() if (found := _INODE.search(line)) and found[1] in inodes]
        return cls(
            at_s=time.monotonic(),
            connections=len(lines),
            nbytes=sum(int(number) for line in lines for number in _BYTES.findall(line)),
            cpu_s=cpu_s(psutil.Process(pid)),
            own_mib=int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) / 1024,
        )

    def until(self, later: _Seen) -> dict[str, float]:
        """Return what it cost from now to then."""
        took_s = later.at_s - self.at_s
        return {
            "connections": later.connections,
            "kb_per_s": round((later.nbytes - self.nbytes) / took_s / 1e3, 1),
            "cpu_cores": round((later.cpu_s - self.cpu_s) / took_s, 4),
            "own_mib": round(later.own_mib, 1),
        }


_INODE = re.compile(r"\bino:(\d+)")
_BYTES = re.compile(r"\bbytes_(?:sent|received):(\d+)")


def _socket_inodes(pid: int) -> set[str]:
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(link.readlink().name)
        except FileNotFoundError:  # it was closed meanwhile
            continue
    return {name.removeprefix("socket:[").removesuffix("]") for name in links if name.startswith("socket:")}


def _of_coordinator(pid: int, crowd: Crowd, workers: _End, seconds: float) -> dict[str, float]:
    process = psutil.Process(pid)
    crowd.run(process, 2, 0)  # the lists of workers and culprits have come
    workers.ask()
    before, said = _Seen.of(pid), crowd.said
    crowd.run(process, seconds, 0)
    found = before.until(_Seen.of(pid))
    messages = crowd.said - said + workers.ask()["coordinator_messages"]
    return {"messages_per_s": round(messages / seconds), **found}


def _of_trainer(endpoint: str, workers: _End, seconds: float) -> dict[str, float]:
    with _End("trainer", endpoint, str(_BATCHES_PER_S)) as trainer:
        trainer.say("1")
        trainer.answer()
        workers.ask()
        before = _Seen.of(trainer.process.pid)
        trainer.say(str(seconds))
        batches = trainer.answer()["batches"]
        found = before.until(_Seen.of(trainer.process.pid))
        said = workers.ask()
        return {
            "messages_per_s": round(said["trainer_messages"] / seconds),
            "batches_per_s": round(batches / seconds, 1),
            **found,
        }


def _list_bytes(count: int) -> int:
    """How long the list of so many workers is."""
    address = WorkerAddress("loader-001-12", 2**62, "tcp://10.123.123.123:12345", "0" * 36, 0)
    return len(encode(m.Members(version=1, workers=(address,) * count)))


def measured(count: int, *, trainers: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a fleet with so many workers."""
    with tempfile.TemporaryDirectory() as name:
        job = Path(name) / "job.toml"
        job.write_text(_JOB)
        words = [sys.executable, "-m", "loader_server", "index", str(job)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=_ENVIRONMENT)
        opened = JobFile(job)
        streams = {stream: Stream(opened, stream) for stream in opened.recipes}
        builder = builder_fingerprint(streams, opened.versions_of_sent())
        with (
            serving(job, {}) as (coordinator, endpoint),
            _End("workers", endpoint, str(job), str(count)) as workers,
        ):
            crowd = Crowd(endpoint, builder, trainers, 0)
            try:
                of_coordinator = _of_coordinator(coordinator.pid, crowd, workers, seconds)
            finally:
                crowd.close()
            of_trainer = _of_trainer(endpoint, workers, seconds)
    return {"workers": count, "list_bytes": _list_bytes(count), "coordinator": of_coordinator, "trainer": of_trainer}


def _line(found: dict[str, Any], who: str) -> str:
    one = found[who]
    cells = [f"{who}, {found['workers']} workers", one["connections"], one["messages_per_s"], f"{one['kb_per_s']:.0f}"]
    cells += [f"{one['cpu_cores']:.3f}", f"{one['own_mib']:.0f}"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--workers", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--trainers", type=int, default=16, help="thin ones, beside the real one")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="3 workers for a second, which says nothing")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.trainers, options.seconds = [3], 2, 1.0
    found = [measured(count, trainers=options.trainers, seconds=options.seconds) for count in options.workers]
    if not options.json:
        print("| process | connections | messages/s | kB/s | CPU, cores | own MiB |\n|---|--:|--:|--:|--:|--:|")
        print("\n".join(_line(one, who) for who in ("coordinator", "trainer") for one in found))
    how = {"trainers": options.trainers, "heartbeat_s": HEARTBEAT_S}
    print(json.dumps({"sizes": found, **how, "machine": machine(), "load_1_min": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
