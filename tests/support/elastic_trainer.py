"""A member of an elastic run, for fault tests: its model is how often it was trained on each sample of each epoch.

    python -m tests.support.elastic_trainer ENDPOINT FOLDER EPOCHS SAMPLES LEAST MOST STEP_S LOG [TARGETS]

In each step all ranks exchange the samples of their batches, by files and a barrier, as gradients would be. So the
models of all ranks are equal, and a step counts for all of them or for none. Rank 0 commits every few steps, and as it
leaves a world. The log has a line for each world, step and commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import trainer_client
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from trainer_client import Batch, Feed

_EVERY = 6
#: While there is no file of this name in the folder, each step takes a while.
HURRY = "hurry"
#: All checkpoints are kept, so that the whole history can be checked.
_KEEP = 10**6


class Member:
    """One process."""

    def __init__(self, folder: Path, epochs: int, samples: int, step_s: float, log: Path) -> None:
        self._folder = folder
        self._epochs = epochs
        self._samples = samples
        self._step_s = step_s
        self._log = log.open("a", buffering=1)
        (folder / "exchange").mkdir(exist_ok=True)

    def train(self, feed: Feed) -> None:
        """In one world."""
        version = feed._session.receiver.settings.core.world_version
        folder = CheckpointFolder(self._folder / "checkpoints", _KEEP, chained=True)
        found = folder.read_last()
        counts = np.zeros((self._epochs, self._samples), np.int64) if found is None else found[0]["counts"]
        if found is not None:
            feed.restore(found[1]["feed"])
        self._write("world", version, feed.rank, feed.world, feed.epoch, feed.number)

        def commit() -> None:
            folder.write({"counts": counts}, {"feed": feed.state(), "world": version})
            self._write("commit", version, feed.rank, feed.world, feed.epoch, feed.number)

        unsaved = 0
        try:
            while feed.epoch < self._epochs:
                for batch in feed:
                    epoch, cursor = feed.epoch, feed.number
                    counts[epoch] += self._exchange(feed, batch, version)
                    feed.trained()
                    self._write("step", version, feed.rank, feed.world, epoch, cursor)
                    unsaved += 1
                    if feed.rank == 0 and unsaved >= _EVERY:
                        commit()
                        unsaved = 0
                    if not (self._folder / HURRY).exists():
                        threading.Event().wait(self._step_s)
        except trainer_client.WorldChangedError as change:
            self._write("over", version, feed.rank, feed.world, feed.epoch, feed.number, change.got)
            if feed.rank == 0 and unsaved:
                with contextlib.suppress(trainer_client.WorldChangedError):  # another chief was faster
                    commit()
            raise
        if feed.rank == 0 and unsaved:
            commit()

    def _exchange(self, feed: Feed, batch: Batch, version: int) -> np.ndarray:
        """How often each sample is in the batches of all ranks."""
        stem = f"{version}-{feed.epoch}-{feed.number}"
        mine = self._folder / "exchange" / f"{stem}-{feed.rank}.npy"
        temporary = mine.with_suffix(f".tmp{os.getpid()}.npy")
        np.save(temporary, batch["tag"][batch["weight"] > 0])
        temporary.replace(mine)
        feed.aggregate({}, rows=1, step=feed.number)
        theirs = [np.load(mine.with_name(f"{stem}-{rank}.npy")) for rank in range(feed.world)]
        return np.bincount(np.concatenate(theirs), minlength=self._samples)

    def _write(self, what: str, *facts: int | str) -> None:
        print(json.dumps([time.monotonic(), what, *facts]), file=self._log)


def main() -> None:
    """The command."""
    endpoint, folder, epochs, samples, least, most, step_s, log, *targets = sys.argv[1:]
    member = Member(Path(folder), int(epochs), int(samples), float(step_s), Path(log))
    metrics = {"metrics_port": 0, "metrics_targets": targets[0]} if targets else {}
    trainer_client.run_elastic(member.train, endpoint, elastic=(int(least), int(most)), **metrics)


if __name__ == "__main__":
    main()
