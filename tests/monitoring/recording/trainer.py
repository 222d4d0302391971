"""A trainer as a process of its own whose metrics are served: it trains by waiting, and tells what it waited for data.

    python -m tests.monitoring.recording.trainer ENDPOINT TARGETS '{"rank": 0, "world": 2}' [HOW]

HOW is `lockstep`, `queue` or `evaluation`. Its steps take `step_s`, or `NAME_s` if `"name"` is among the
options, as the file of delays says (see tests.support.slowed.delays); its first one `first_step_s`, as if the step were
compiled. SIGTERM ends it in good order.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import trainer_client
from tests.support.slowed.delays import delay_s

if TYPE_CHECKING:
    from trainer_client import Feed


class _Training:
    def __init__(self, how: str, name: str) -> None:
        self._how = how
        self._name = name
        self._is_first = True

    def train(self, feed: Feed) -> None:
        """Take epoch after epoch; an evaluation takes one."""
        while True:
            self._take_epoch(feed)
            if self._how == "evaluation":
                return

    def _take_epoch(self, feed: Feed) -> None:
        batches = iter(feed)
        while True:
            began_s = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                return
            feed.waited(time.monotonic() - began_s)
            time.sleep(delay_s("first_step_s") if self._is_first else 0.0)
            time.sleep(delay_s(self._name))
            self._is_first = False
            if self._how == "queue":
                batch.done()
            else:
                feed.trained()


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Run the command."""
    endpoint, targets, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    how = sys.argv[4] if len(sys.argv) > 4 else "lockstep"
    signal.signal(signal.SIGTERM, _end)
    training = _Training(how, options.pop("name", "step") + "_s")
    where: dict[str, Any] = {"metrics_port": 0, "metrics_targets": targets, **options}
    while True:
        with trainer_client.connect(endpoint, **where) as feed:
            training.train(feed)
        time.sleep(delay_s("pause_s"))


if __name__ == "__main__":
    main()
