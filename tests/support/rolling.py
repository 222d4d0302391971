"""Loaders whose processes are of builds that differ and are replaced one by one, and trainers that read meanwhile."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from loader_server.commands import status
from shared.errors import LostError
from tests.support.builds import runs
from tests.support.forked import start_module
from tests.support.loaders import wait_until
from tests.support.scraping import read_targets
from trainer_client.verifying.digests import EpochDigests, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.forked import ModuleProcess

__all__ = ["Part", "Rolling", "rolling"]

_TRAINER = """
import sys, time
from pathlib import Path
import trainer_client

endpoint, rank, world, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
with trainer_client.connect(endpoint, stream="train", rank=rank, world=world, verify=True) as feed:
    ends = False
    while not ends:
        ends = stop.exists()
        for batch in feed:
            print("batch", batch.epoch, batch.number, batch.digest, time.monotonic(), flush=True)
            time.sleep(0.04)
print("read", flush=True)
"""


@dataclass
class Part:
    """A process of a build."""

    process: ModuleProcess
    release: str
    log: Path


def _without_tag(worker: str) -> str:
    return re.sub(r"-[0-9a-f]{6}-(\d+)$", r"-\1", worker)


class Rolling:
    """A coordinator, workers, hosts that joined and trainers, by name; each runs one of the builds, by release."""

    def __init__(self, job: Path, builds: dict[str, Path]) -> None:
        self.job = job
        self.endpoint = ""
        self.parts: dict[str, Part] = {}
        self._builds = builds
        self._stop = job.parent / "stop"
        self._trainers: list[str] = []
        (job.parent / "reader.py").write_text(_TRAINER)

    # --- processes ---

    def index(self, release: str) -> None:
        """Make the job's index."""
        part = self._start("index", release, "loader_server", "index", str(self.job))
        assert part.process.wait(100) == 0, self.text("index")

    def coordinate(self, release: str) -> None:
        """Start the coordinator, or its successor at the same endpoint, and wait until it serves."""
        read, write = os.pipe()
        listen = ("--listen", self.endpoint) if self.endpoint else ()
        self._start("coordinator", release, "loader_server", "coordinator", str(self.job), *listen, ready=write)
        os.close(write)
        with os.fdopen(read) as ready:
            line = ready.readline()
        assert line, self.text("coordinator")
        self.endpoint = json.loads(line)["endpoint"]

    def work(self, name: str, release: str) -> None:
        """Start a worker."""
        to = ("--coordinator", self.endpoint, "--listen", "tcp://127.0.0.1:*")
        self._start(name, release, "loader_server", "worker", str(self.job), "--name", name, *to)

    def join(self, name: str, release: str) -> None:
        """Have a host join, with one worker, in a folder of its own."""
        state = self.job.parent / name
        self._start(
            name, release, "loader_server", "run", self.endpoint, "--workers", "1", "--state", str(state),
            "--data", str(self.job.parent),
        )  # fmt: skip

    def train(self, name: str, release: str, rank: int, world: int) -> None:
        """Start a trainer, which reads epoch after epoch until `stop_trainers`."""
        self._trainers.append(name)
        self._start(name, release, "reader", self.endpoint, str(rank), str(world), str(self._stop))

    def _start(self, name: str, release: str, *command: str, ready: int | None = None) -> Part:
        folder = self.job.parent
        log = folder / f"{name}.log"
        log.touch()
        environment = {**os.environ, "PYTHONPATH": f"{self._builds[release]}:{folder}"}
        process = start_module(command, folder=folder, log=log, environment=environment, ready=ready, fork=False)
        part = self.parts[name] = Part(process, release, log)
        wait_until(lambda: runs(log.read_text(), release, process.pid), f"{name} runs {release}", 100)
        return part

    def end(self, name: str) -> None:
        """End a process in good order, as an operator who upgrades it does."""
        process = self.parts[name].process
        process.terminate()
        assert process.wait(60) in {0, -15}, self.text(name)

    def text(self, name: str) -> str:
        """All that a process and its predecessors have said."""
        return self.parts[name].log.read_text()

    def lives(self, name: str) -> bool:
        """Whether a process has not ended."""
        return self.parts[name].process.poll() is None

    # --- what the coordinator says ---

    def report(self) -> dict[str, Any]:
        """What it says, once it answers."""
        found: list[dict[str, Any]] = []

        def ask() -> bool:
            try:
                found.append(status.ask(self.endpoint, timeout_s=2.0))
            except LostError:
                return False
            return True

        wait_until(ask, "the coordinator answers")
        return found[-1]

    def wait_for_workers(self, *names: str) -> None:
        """Wait until these and no others are there; those of a host that joined without the tag of its folder."""
        wait_until(lambda: self._workers() == sorted(names), f"{', '.join(names)} are there", 100)

    def _workers(self) -> list[str]:
        return sorted(_without_tag(worker["name"]) for worker in self.report()["workers"])

    def refused(self) -> dict[str, str]:
        """Return the workers that cannot serve, and what each got."""
        return {_without_tag(failing["worker"]): failing["got"] for failing in self.report()["failing"]}

    def readyz(self, worker: str) -> str:
        """What a worker answers to that probe; empty if it does not."""
        for target in read_targets(self.job.parent / ".stoker" / "tones" / "targets").values():
            if target.get("worker") == worker:
                try:
                    with urllib.request.urlopen(f"http://{target['address']}/readyz", timeout=30) as answer:
                        return str(answer.read().decode().strip())
                except urllib.error.HTTPError as error:
                    with error:
                        return error.read().decode().strip()
                except OSError:
                    return ""
        return ""

    # --- what the trainers read ---

    def read(self, name: str) -> list[tuple[int, int, int, float]]:
        """Return epoch, number, digest and time of each batch that a trainer has read, in its order."""
        whole = self.text(name).rpartition("\n")[0].splitlines()
        lines = (line.split()[1:] for line in whole if line.startswith("batch "))
        return [(int(epoch), int(number), int(digest), float(at_s)) for epoch, number, digest, at_s in lines]

    def wait_for_batches(self, count: int) -> None:
        """Wait until each trainer has read so many more."""
        before = {name: len(self.read(name)) for name in self._trainers}
        wait_until(
            lambda: all(len(self.read(name)) >= before[name] + count for name in self._trainers),
            f"every trainer has read {count} batches more",
            100,
        )

    def longest_gap_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> float:
        """Return the longest that a trainer had no batch in this time."""
        gaps = [0.0]
        for name in self._trainers:
            times = [at_s for *_, at_s in self.read(name) if since_s <= at_s <= until_s]
            gaps += [after - before for before, after in pairwise(times)]
        return max(gaps)

    def stop_trainers(self) -> None:
        """Let the trainers read their epochs to the end; none of them may have seen an error."""
        self._stop.touch()
        for name in self._trainers:
            assert self.parts[name].process.wait(100) == 0, self.text(name)[-3000:]
            assert self.text(name).endswith("read\n")

    def epochs_read(self, plan: str) -> list[EpochDigests]:
        """Return all batches of the epochs that all trainers have read, each once and in order, or fail."""
        found: dict[int, dict[int, int]] = defaultdict(dict)
        last = min(self.read(name)[-1][0] for name in self._trainers)
        for name in self._trainers:
            batches = [batch for batch in self.read(name) if batch[0] <= last]
            assert [batch[:2] for batch in batches] == sorted({batch[:2] for batch in batches}), f"{name}: repeated"
            for epoch, number, digest, _ in batches:
                assert number not in found[epoch], f"batch {number} of epoch {epoch} was read by two"
                found[epoch][number] = digest
        epochs = []
        for epoch in range(last + 1):
            numbers = found[epoch]
            assert sorted(numbers) == list(range(len(numbers))), f"epoch {epoch}: lost"
            epochs.append(EpochDigests(epoch, len(self._trainers), plan))
            epochs[-1].batches.extend(numbers[number] for number in range(len(numbers)))
        return epochs

    def digest(self, epochs: int) -> str:
        """Return the digest of the first epochs that the trainers read, as `trainer-client verify` computes it."""
        read = self.epochs_read("")
        assert len(read) >= epochs
        return digest_of(read[:epochs])

    def close(self) -> None:
        """End all that is left."""
        for part in self.parts.values():
            part.process.terminate()
        for part in self.parts.values():
            try:
                part.process.wait(30)
            finally:
                part.process.kill()


@contextmanager
def rolling(job: Path, builds: dict[str, Path]) -> Iterator[Rolling]:
    """Nothing yet, but all that is started ends with the block."""
    made = Rolling(job, builds)
    try:
        yield made
    finally:
        made.close()
