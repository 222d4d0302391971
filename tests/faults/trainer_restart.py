"""Trainers of each strategy are killed and started again: how often was each sample trained on in the committed model?

`python -m tests.faults.trainer_restart [--json] [--strategy NAME …]`: real loaders and real processes. A run is killed
with signal 9, one process of several, as often as `--kills` says; whoever is left ends by itself, and all are started
again. With parameter servers only who was killed is, while the others go on. The model counts the samples that it is
trained on, so its last checkpoint is the history of the whole run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tests.support.counting_model import MODULE, counted, start_workers
from tests.support.counting_servers import EPOCHS, train_and_kill
from tests.support.loaders import running, write_job
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WAYS", "History", "restart"]

_SAMPLES, _EPOCHS = 40, 3

#: How many processes a strategy has, and what it is asked for with.
WAYS: dict[str, tuple[int, Sequence[str]]] = {
    "single": (1, ()),
    "mirrored": (1, ("--replicas", "2")),
    "central": (1, ("--replicas", "2")),
    "async": (1, ("--replicas", "2")),
    "multi-worker": (2, ()),
}

#: The strategy that goes on while processes are killed, and nobody has to start all anew.
_SERVED = "parameter-server"


class History(NamedTuple):
    """Samples that were trained on too seldom and too often in the committed model, its kills and steps."""

    lost: int
    repeated: int
    kills: int
    steps: int


def restart(names: Sequence[str], kills: int, seed: int) -> dict[str, History]:
    """The history of a run of each strategy."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        job = write_job(folder, samples=_SAMPLES, longest_s=0.5, budget="1 s", job="group = 2")
        streams = "".join(f'\n[streams.{name}]\nlike = "train"\nevaluation = false\n{_mode(name)}' for name in names)
        job.write_text(job.read_text() + streams)
        (folder / "counts.py").write_text(MODULE)
        with running(job, workers=1) as loaders:
            return {
                name: _served_history(folder, loaders.endpoint, kills)
                if name == _SERVED
                else _history(folder, loaders.endpoint, name, kills, chance)
                for name in names
            }


def _mode(name: str) -> str:
    return 'mode = "queue"\n' if name == _SERVED else ""


def _served_history(folder: Path, endpoint: str, kills: int) -> History:
    checkpoints = folder / f"{_SERVED}-checkpoints"
    train_and_kill(endpoint, _SERVED, _SAMPLES, kills, checkpoints)
    seen, record = counted(checkpoints)
    return History(int(np.sum(seen < EPOCHS)), int(np.sum(seen > EPOCHS)), kills, record["step"])


def _history(folder: Path, endpoint: str, name: str, kills: int, chance: random.Random) -> History:
    processes, words = WAYS[name]
    checkpoints = folder / f"{name}-checkpoints"
    command = [
        *("train", "--feed", endpoint, "--stream", name, "--model", "counts", "--param", f"samples={_SAMPLES}"),
        *("--checkpoint", str(checkpoints), "--epochs", str(_EPOCHS), "--strategy", name, *words, "--log-every", "1"),
    ]
    for _ in range(kills):
        slowly = ("--param", "pause_s=0.5", "--save-every", "2", "steps")
        _kill(folder, processes, [*command, *slowly], checkpoints, chance)
    with ExitStack() as stack:
        for one in start_workers(stack, folder, processes, *command):
            code, said, complained = one.ended(180)
            assert code == 0, (said, complained)
    seen, record = counted(checkpoints)
    return History(int(np.sum(seen < _EPOCHS)), int(np.sum(seen > _EPOCHS)), kills, record["step"])


def _kill(folder: Path, processes: int, command: Sequence[str], checkpoints: Path, chance: random.Random) -> None:
    """One life of the run: it is killed some steps after its newest checkpoint."""
    newest = CheckpointFolder(checkpoints, 3).read_last()  # None, too, if it was killed before its first one
    done = newest[1]["step"] if newest is not None else 0
    with ExitStack() as stack:
        started = start_workers(stack, folder, processes, *command)
        started[0].wait_for_text(f", step {done + chance.randint(1, 5)}: ")
        victim = chance.choice(started)
        victim.kill()
        for one in started:
            code, said, complained = one.ended(180)
            assert code == (-9 if one is victim else 3), (said, complained)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", action="append", choices=(*WAYS, _SERVED), help="only these")
    parser.add_argument("--kills", type=int, default=2, help="kills of each strategy's run (2)")
    parser.add_argument("--seed", type=int, default=1, help="when, and which process (1)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    found = restart(options.strategy or [*WAYS, _SERVED], options.kills, options.seed)
    if options.json:
        said = {name: one._asdict() for name, one in found.items()}
        total = {what: sum(getattr(one, what) for one in found.values()) for what in ("lost", "repeated")}
        print(json.dumps({"strategies": said, **total}))
    else:
        for name, one in found.items():
            print(f"{name}: {one.lost} lost, {one.repeated} repeated, after {one.kills} kills and {one.steps} steps")
    sys.exit(any(one.lost or one.repeated for one in found.values()))


if __name__ == "__main__":
    main()
