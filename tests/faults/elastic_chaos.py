"""Members of an elastic run are killed, stopped and started again at random, and so is the coordinator.

    python -m tests.faults.elastic_chaos [--epochs 2] [--seed 1] --json

The trainers (tests.support.elastic_trainer) exchange what they train on in each step, and rank 0 commits it with the
cursor. Every few seconds one of them is killed (kill -9) and started again a while later, or stopped for so long that
the others go on without it and then let go on as if nothing had happened; or the coordinator is killed. Afterwards the
committed checkpoints and all logs are checked. `lost`, `repeated`: samples that are not, or more than once, in the last
committed model. `breaks`: commits that do not contain the one before, or are not what their cursor says. The last line
is one JSON object; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.forked import ROOT, ModuleProcess, start_module
from tests.support.loaders import Loaders, ask, running, wait_until, write_job
from trainer_client.training.checkpoints.checkpoint_folder import _read

if TYPE_CHECKING:
    import numpy as np

SAMPLES = 400
_LEAST, _MOST = 2, 4
_JOB = 'heartbeat_timeout = "800 ms"'


@dataclass
class Seat:
    """A trainer that is started again whenever it was killed; each life has a log."""

    name: str
    folder: Path
    endpoint: str
    epochs: int
    limits: tuple[int, int] = (_LEAST, _MOST)
    step_s: float = 0.05
    logs: list[Path] = field(default_factory=list)
    process: ModuleProcess | None = None

    def start(self) -> None:
        self.logs.append(self.folder / f"trainer-{self.name}-{len(self.logs)}.log")
        self.logs[-1].touch()
        said = (self.endpoint, self.folder, self.epochs, SAMPLES, *self.limits, self.step_s, self.logs[-1])
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{self.folder}"}
        self.process = start_module(
            ("tests.support.elastic_trainer", *map(str, said)),
            folder=self.folder,
            log=self.folder / "errors.txt",
            environment=environment,
        )

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def lines(self, what: str = "") -> list[tuple]:
        """What its present life, or all of them, wrote down of one kind; a last line that is cut is left out."""
        whole = [line for line in self.logs[-1].read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [one for one in map(tuple, map(json.loads, whole)) if not what or one[1] == what]


def job_in(folder: Path) -> Path:
    """The job that they train on."""
    return write_job(folder, samples=SAMPLES, budget="2 s", job=_JOB)


def run(epochs: int, seed: int, hurts: int) -> dict[str, object]:
    """The whole run, and what its checkpoints and logs say."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(job_in(folder), workers=1) as loaders:
            seats = [Seat(str(number), folder, loaders.endpoint, epochs) for number in range(_MOST)]
            for seat in seats:
                seat.start()
            try:
                wait_until(lambda: all(seat.lines("step") for seat in seats), "all train")
                for _ in range(hurts):
                    _hurt(loaders, seats, chance)
                wait_until(lambda: _is_over(loaders, seats), "all are done", timeout_s=300)
                if any(seat.process is not None and seat.process.poll() for seat in seats):
                    raise AssertionError((folder / "errors.txt").read_text()[-3000:])
            finally:
                for seat in seats:
                    seat.kill()
        return {"hurts": hurts, **check(folder, epochs), **_times(seats)}


def _is_over(loaders: Loaders, seats: list[Seat]) -> bool:
    """Whether all have ended; one that was killed at the very end, and started again, waits for others in vain."""
    left = [seat for seat in seats if seat.process is not None and seat.process.poll() is None]
    if not left or len(left) == len(seats):
        return not left
    world = ask(loaders.endpoint)["streams"]["train"]["elastic"]
    return world["stage"] == "ended" and len(world["waiting"]) == len(left) < _LEAST


def _hurt(loaders: Loaders, seats: list[Seat], chance: random.Random) -> None:
    wait = threading.Event().wait
    wait(chance.uniform(0.5, 2.5))
    what, seat = chance.choice(("kill", "kill", "stop", "coordinator")), chance.choice(seats)
    assert seat.process is not None
    if seat.process.poll() is not None:  # the run is over
        return
    if what == "coordinator":
        loaders.coordinator().kill()
    elif what == "kill":
        seat.kill()
        wait(chance.choice((0.1, 6.0)))
        seat.start()
    else:
        seat.send(signal.SIGSTOP)
        wait(chance.choice((1.0, 6.0)))
        seat.send(signal.SIGCONT)


def check(folder: Path, epochs: int) -> dict[str, int]:
    """The offline checker: what the committed models contain."""
    paths = sorted((folder / "checkpoints").glob("*.npz"))
    commits = [_read(path) for path in paths]
    counts = commits[-1][0]["counts"]
    breaks = sum(bool((after[0]["counts"] < before[0]["counts"]).any()) for before, after in pairwise(commits))
    breaks += sum(after[1]["world"] < before[1]["world"] for before, after in pairwise(commits))
    breaks += sum(not _is_as_its_cursor_says(*commit, epochs) for commit in commits)
    return {
        "samples": int(counts.size),
        "lost": int((counts == 0).sum()),
        "repeated": int((counts > 1).sum()),
        "commits": len(commits),
        "breaks": breaks,
        "worlds": len({record["world"] for _, record in commits}),
    }


def _is_as_its_cursor_says(arrays: dict[str, np.ndarray], record: dict, epochs: int) -> bool:
    """Epochs before the cursor are whole, those after it untouched, and nothing counts twice."""
    counts, epoch = arrays["counts"], record["feed"]["epoch"]
    begun = epoch < epochs and bool(record["feed"]["number"])
    is_whole = bool((counts[:epoch] == 1).all())
    is_untouched = not counts[epoch + begun :].any()
    return is_whole and is_untouched and counts.max() <= 1 and (not begun or bool(counts[epoch].any()))


def _times(seats: list[Seat]) -> dict[str, float]:
    moments = sorted(
        line[0]
        for seat in seats
        for log in seat.logs
        for line in (json.loads(text) for text in log.read_text().splitlines(keepends=True) if text.endswith("\n"))
        if line[1] == "step"
    )
    return {"worst_stall_s": round(max(after - before for before, after in pairwise(moments)), 2)}


def broken(result: dict) -> bool:
    """Whether a promise was broken."""
    return bool(result["lost"] or result["repeated"] or result["breaks"])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--hurts", type=int, default=10, help="how often somebody is killed or stopped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    began_s = time.monotonic()
    result = run(options.epochs, options.seed, options.hurts)
    if not options.json:
        print(f"the run took {time.monotonic() - began_s:.0f} s")
    print(json.dumps(result))
    return broken(result)


if __name__ == "__main__":
    sys.exit(main())
