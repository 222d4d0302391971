"""A trainer that reads an epoch of a running job, and what came of it: its digest, what is lost, the longest gap.

    python -m tests.fleet.reading tcp://10.77.0.1:7400 --keys keys --say-at 100

It reads as fast as the job gives, through the public door, and reports each batch as trained on. The digest is that of
`trainer-client verify`. The longest gap is the longest time between two batches, so it leaves out the first one.
Batches come by TCP, as between machines: engines run all hosts on one, where shared memory would be taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import trainer_client
from tests.support.forked import ROOT
from trainer_client.verifying.digests import EpochDigests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["EpochRead", "count_faults", "read_by", "read_epoch"]

#: How long the job's first batch may take; containers and Slurm have to start.
_CONNECT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRead:
    """What came of reading one epoch."""

    digest: str
    batches: int
    lost: int
    repeated: int
    #: The longest time between two batches, and the number of the batch that ended it.
    gap_s: float
    gap_at: int
    seconds: float

    def refuse_faults(self) -> None:
        """Raise if a batch is lost or came again."""
        if self.lost or self.repeated:
            raise AssertionError(f"lost {self.lost}, repeated {self.repeated} of {self.batches} batches")


def read_epoch(
    endpoint: str, *, keys: str = "", stream: str = "train", then: Callable[[int], object] = lambda _number: None
) -> EpochRead:
    """Read the epoch at the job's cursor; `then` is called with each batch's number once the batch is read."""
    with trainer_client.connect(
        endpoint, stream=stream, keys=keys, shared_memory=False, connect_timeout_s=_CONNECT_TIMEOUT_S
    ) as feed:
        epoch, expected = feed.epoch, feed.rounds_left()
        numbers: list[int] = []
        digests = EpochDigests(epoch=epoch, group=1, plan_digest="")
        gap_s, gap_at = 0.0, -1
        began_s = last_s = time.monotonic()
        with feed.open() as batches:
            for batch in batches:
                now_s = time.monotonic()
                if numbers and now_s - last_s > gap_s:
                    gap_s, gap_at = now_s - last_s, batch.number
                last_s = now_s
                numbers.append(batch.number)
                digests.batches.append(batch.digest)
                feed.trained()
                then(batch.number)
    lost, repeated = count_faults(numbers, expected)
    return EpochRead(
        digest=digests.digest,
        batches=len(numbers),
        lost=lost,
        repeated=repeated,
        gap_s=round(gap_s, 3),
        gap_at=gap_at,
        seconds=round(last_s - began_s, 3),
    )


def count_faults(numbers: Sequence[int], expected: int) -> tuple[int, int]:
    """Return how many of the batches from 0 on are lost, and how many came again."""
    distinct = set(numbers)
    return len(set(range(expected)) - distinct), len(numbers) - len(distinct)


def read_by(
    prefix: Sequence[str],
    endpoint: str,
    *,
    keys: Path | str = "",
    at: int = -1,
    then: Callable[[], object] = lambda: None,
    python: str = sys.executable,
) -> EpochRead:
    """Read in a process of its own, started by `prefix` (such as `ip netns exec NAME`); call `then` at batch `at`."""
    words = (endpoint, "--keys", str(keys), "--say-at", str(at))
    reader = subprocess.Popen(
        [*prefix, python, "-m", "tests.fleet.reading", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    last, is_done = "", False
    try:
        for line in reader.stdout:
            if line.startswith("at batch"):
                then()
                is_done = True
            last = line
        if reader.wait(60):
            raise AssertionError(f"the reader ended with {reader.returncode}")
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    if at >= 0 and not is_done:
        raise AssertionError(f"the epoch ended before batch {at}")
    return EpochRead(**json.loads(last))


def main(words: Sequence[str] | None = None) -> int:
    """Read as the arguments say; print what came of it as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--keys", default="", metavar="FOLDER")
    parser.add_argument("--stream", default="train")
    parser.add_argument("--say-at", type=int, default=-1, metavar="N", help="print a line once batch N is read")
    options = parser.parse_args(words)

    def say(number: int) -> None:
        if number == options.say_at:
            print(f"at batch {number}", flush=True)

    outcome = read_epoch(options.endpoint, keys=options.keys, stream=options.stream, then=say)
    print(json.dumps(asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
