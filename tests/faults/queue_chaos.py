"""Four trainers of unequal speed share a stream in queue mode, while three of them and the coordinator are killed.

    python -m tests.faults.queue_chaos [--epochs 3] [--seed 1] --json

The trainers are processes that need 1, 2, 4 and 8 times as long for a batch. The three faster ones are killed (kill -9)
at random and started again, and so is the coordinator. Each writes down which batches it took, and which are done by
the coordinator's word; afterwards these logs are checked. `repeated`: batches that were done twice. `lost`: those that
are not done, but for those whose trainer was killed between the coordinator's word and its own line. `worst_stall_s`:
the longest time in which nothing was done. `share_error`: how far the work that a trainer did while it lived is from
its speed. The last line is one JSON object; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.forked import ROOT, ModuleProcess, start_module
from tests.support.loaders import Loaders, ask, running, write_job

#: The slowest is never killed.
_STEPS_S = (0.4, 0.2, 0.1, 0.05)
_LEASE_TIMEOUT_S = 6.0
_JOB = 'heartbeat_timeout = "400 ms"'
_STREAM = f'mode = "queue"\nlease_timeout = "{_LEASE_TIMEOUT_S:g} s"\norder = "shuffled"'


@dataclass
class Place:
    """A trainer that is started again whenever it was killed; each life has a log."""

    step_s: float
    folder: Path
    endpoint: str
    epochs: int
    logs: list[Path] = field(default_factory=list)
    process: ModuleProcess | None = None

    def start(self) -> None:
        self.logs.append(self.folder / f"trainer-{self.step_s:g}-{len(self.logs)}.log")
        self.logs[-1].touch()
        said = (self.endpoint, self.step_s, self.epochs, self.logs[-1])
        self.process = start_module(
            ("tests.support.queue_trainer", *map(str, said)),
            folder=self.folder,
            log=self.folder / "errors.txt",
            environment={**os.environ, "PYTHONPATH": f"{ROOT}:{self.folder}"},
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[list[tuple[float, str, int, int]]]:
        """What each life wrote down; the last line of one that was killed may be cut."""
        whole = [
            [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")] for log in self.logs
        ]
        return [[tuple(json.loads(line)) for line in life] for life in whole]


def run(epochs: int, seed: int, kills: int, coordinator_kills: int) -> dict[str, object]:
    """The whole run, and what its logs say."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = write_job(folder, samples=600, budget="2 s", job=_JOB, stream=_STREAM)
        with running(job, workers=1) as loaders:
            places = [Place(step_s, folder, loaders.endpoint, epochs) for step_s in _STEPS_S]
            for place in places:
                place.start()
            _hurt(loaders, places, chance, kills, coordinator_kills)
            for place in places:
                assert place.process is not None
                if place.process.wait(300):
                    raise AssertionError((folder / "errors.txt").read_text()[-2000:])
            table = ask(loaders.endpoint)["streams"]["train"]
        return _check(places, epochs, table)


def _hurt(loaders: Loaders, places: list[Place], chance: random.Random, kills: int, coordinator_kills: int) -> None:
    """Kill one or the other every second or so, once all have begun."""
    wait = threading.Event().wait
    while not all(place.logs[0].stat().st_size for place in places):
        wait(0.05)
    victims = ["trainer"] * kills + ["coordinator"] * coordinator_kills
    chance.shuffle(victims)
    for victim in victims:
        wait(chance.uniform(0.5, 1.5))
        if victim == "coordinator":
            loaders.coordinator().kill()
            continue
        place = chance.choice(places[1:])
        place.kill()
        wait(chance.uniform(0.0, 0.3))
        place.start()


def _check(places: list[Place], epochs: int, table: dict) -> dict[str, object]:
    lives = [life for place in places for life in place.lines()]
    done = Counter((line[2], line[3]) for life in lives for line in life if line[1] == "done")
    #: What a life had in hand as it was killed: perhaps done, and not written down.
    open_at_end = {(life[-1][2], life[-1][3]) for life in lives if life and life[-1][1] == "took"}
    batches = {(epoch, number) for epoch in range(epochs) for number in range(table["batches"])}
    moments = sorted(line[0] for life in lives for line in life if line[1] == "done")
    queue = table["queue"]["train"]
    return {
        "batches": len(batches),
        "lost": len(batches - set(done) - open_at_end) + max(0, epochs - queue["epoch"]),
        "repeated": sum(count > 1 for count in done.values()) + len(set(done) - batches),
        "dead_letters": queue["dead"],
        "worst_stall_s": round(max(after - before for before, after in pairwise(moments)), 3),
        "share_error": round(_share_error(places), 3),
        "unlogged": len(batches - set(done)),
    }


def _share_error(places: list[Place]) -> float:
    """How far each trainer's pace, while it had something to do, is from its speed."""
    paces = []
    for place in places:
        did = lived_s = 0.0
        for life in place.lines():
            if len(life) > 2:
                did += sum(line[1] == "done" for line in life)
                lived_s += life[-1][0] - life[0][0]
        paces.append(did / lived_s * place.step_s)
    usual = sum(paces) / len(paces)
    return max(abs(pace / usual - 1) for pace in paces)


def broken(result: dict) -> bool:
    """Whether a promise was broken."""
    counted = result["lost"] or result["repeated"] or result["dead_letters"]
    return bool(counted) or result["worst_stall_s"] > _LEASE_TIMEOUT_S or result["share_error"] > 0.2


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=9, help="of trainers")
    parser.add_argument("--coordinator-kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    began_s = time.monotonic()
    result = run(options.epochs, options.seed, options.kills, options.coordinator_kills)
    if not options.json:
        print(f"{options.kills} trainers and {options.coordinator_kills} coordinators were killed in "
              f"{time.monotonic() - began_s:.0f} s, and started again")  # fmt: skip
    print(json.dumps(result))
    return broken(result)


if __name__ == "__main__":
    sys.exit(main())
