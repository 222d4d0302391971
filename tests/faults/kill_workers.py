"""Kill -9 of workers and the coordinator at random moments of an epoch, with a trainer reading, many times over.

    python -m tests.faults.kill_workers --rounds 20 [--way shared_memory | tcp | tcp_keys] --json

Each round reads one epoch from its start while processes are killed: one worker; all workers, one after the other; or
the coordinator. What arrived is compared, in order and digest, with the undisturbed epoch. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainer_client
from shared.keys import make_keys
from tests.support.loaders import Loaders, running, wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Callable

_WORKERS = 2


@dataclass
class Epoch:
    """What one reading of the epoch brought."""

    batches: list[tuple[int, int]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)

    def worst_gap_s(self, kills_s: list[float]) -> float:
        """The longest wait for a batch that a kill fell into."""
        gaps = zip(self.arrived_s, self.arrived_s[1:], strict=False)
        return max(
            (end - max(begin, kill) for begin, end in gaps for kill in kills_s if begin <= kill <= end), default=0.0
        )


def _read(loaders: Loaders, way: dict[str, Any], on_batch: Callable[[int], None] = lambda _: None) -> Epoch:
    epoch = Epoch()
    with trainer_client.connect(loaders.endpoint, **way) as feed:
        for batch in feed:
            epoch.batches.append((batch.number, batch.digest))
            epoch.arrived_s.append(time.monotonic())
            on_batch(len(epoch.batches))
    return epoch


class _Killer:
    """Kills what a round is about, each at a random batch of the epoch."""

    def __init__(self, loaders: Loaders, kind: str, batches: int, chance: random.Random) -> None:
        self.kills_s: list[float] = []
        self._loaders = loaders
        victims = {"one worker": 1, "all workers": _WORKERS, "coordinator": 1}[kind]
        self._kind = kind
        self._moments = sorted(chance.sample(range(1, batches - 1), victims))
        self._chance = chance
        self._killed: set[int] = set()
        self._threads: list[threading.Thread] = []

    def on_batch(self, count: int) -> None:
        if count in self._moments:
            thread = threading.Thread(target=self._kill, args=(self._chance.uniform(0, 0.03),))
            thread.start()
            self._threads.append(thread)

    def _kill(self, delay_s: float) -> None:
        """A moment later, so that it falls anywhere in building and sending."""
        threading.Event().wait(delay_s)
        victim = self._loaders.coordinator() if self._kind == "coordinator" else self._worker()
        self.kills_s.append(time.monotonic())
        victim.kill()

    def _worker(self):
        fresh: list = []
        wait_until(
            lambda: fresh.extend(w for w in self._loaders.workers() if w.pid not in self._killed) or fresh,
            "a worker lives",
        )
        victim = self._chance.choice(fresh)
        self._killed.add(victim.pid)
        return victim

    def finish(self) -> None:
        for thread in self._threads:
            thread.join()
        wait_until(lambda: len(self._loaders.workers()) == _WORKERS, "all workers are back")


def run(rounds: int, seed: int, say: Callable[[str], None], way: str = "shared_memory") -> dict[str, float]:
    """All rounds, with batches coming this way; the totals."""
    chance = random.Random(seed)
    total = {"rounds": rounds, "lost": 0, "repeated": 0, "digest_mismatch": 0, "worst_gap_s": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        transforms = ("tests.support.transforms:slow", "tests.support.transforms:noise", "logmel", "characters")
        keys = str(Path(folder) / "keys") if way == "tcp_keys" else ""
        if keys:
            make_keys(keys)
        more = f'keys = "{keys}"' if keys else ""
        job = write_job(Path(folder), samples=400, transforms=transforms, job=more)
        how = {"shared_memory": way == "shared_memory", "keys": keys}
        with running(job, workers=_WORKERS) as loaders:
            calm = _read(loaders, how)
            for number in range(rounds):
                kind = ("one worker", "all workers", "coordinator")[number % 3]
                killer = _Killer(loaders, kind, len(calm.batches), chance)
                epoch = _read(loaders, how, killer.on_batch)
                killer.finish()
                gap_s = epoch.worst_gap_s(killer.kills_s)
                _compare(calm, epoch, total)
                total["worst_gap_s"] = round(max(total["worst_gap_s"], gap_s), 3)
                killed = f"{kind}, {len(killer.kills_s)} killed"
                say(f"round {number + 1}: {killed}, {len(epoch.batches)} batches, gap {gap_s:.3f} s")
    return total


def _compare(calm: Epoch, epoch: Epoch, total: dict[str, float]) -> None:
    wanted, got = [number for number, _ in calm.batches], [number for number, _ in epoch.batches]
    total["lost"] += len(set(wanted) - set(got))
    total["repeated"] += len(got) - len(set(got))
    total["digest_mismatch"] += sum(mine != theirs for mine, theirs in zip(calm.batches, epoch.batches, strict=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", choices=("shared_memory", "tcp", "tcp_keys"), default="shared_memory")
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    total = run(options.rounds, options.seed, (lambda _: None) if options.json else print, options.way)
    print(json.dumps(total))


if __name__ == "__main__":
    main()
