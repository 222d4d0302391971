"""Waits until the coordinator hears so many workers and trainers, and says when that was.

    python -m tests.fleet.waiting tcp://10.77.0.1:7400 --keys keys --workers 3

Who was silent for longer than a heartbeat timeout does not count. The last line has the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from loader_server.commands.status import ask
from shared.errors import LostError
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def _heard(report: dict[str, Any], silent_s: float) -> tuple[int, int]:
    """Return how many workers and trainers were heard of late."""
    trainers = [trainer for stream in report["streams"].values() for trainer in stream["trainers"]]
    return (
        sum(worker["silent_s"] <= silent_s for worker in report["workers"]),
        sum(trainer["silent_s"] <= silent_s for trainer in trainers),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Wait as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint")
    parser.add_argument("--keys", default="", metavar="FOLDER")
    parser.add_argument("--workers", type=int, default=0, metavar="N")
    parser.add_argument("--trainers", type=int, default=0, metavar="N")
    parser.add_argument("--silent-s", type=float, default=2.0, metavar="S")
    parser.add_argument("--timeout-s", type=float, default=100.0, metavar="S")
    options = parser.parse_args(words)

    def are_all_heard() -> bool:
        try:
            report = ask(options.endpoint, keys=options.keys, timeout_s=0.5)
        except LostError:
            return False
        workers, trainers = _heard(report, options.silent_s)
        return workers >= options.workers and trainers >= options.trainers

    wait_until(are_all_heard, f"{options.workers} workers, {options.trainers} trainers", options.timeout_s)
    print(json.dumps({"at_s": time.monotonic()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
