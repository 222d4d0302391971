"""A trainer in queue mode as a process of its own, which writes down what it does.

    python -m tests.support.queue_trainer ENDPOINT STEP_S EPOCHS LOG

Each line of the log is `[seconds, what, epoch, number]`: `took` before it trains on a batch, and `done` once the
coordinator has said that the batch is done and on disk. It trains by waiting for so long.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import trainer_client


def main() -> None:
    endpoint, step_s, epochs, log = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    wait = threading.Event().wait
    with log.open("a", buffering=1) as lines, trainer_client.connect(endpoint, epochs=epochs, prefetch=4) as feed:

        def write(what: str, batch: trainer_client.Batch) -> None:
            lines.write(json.dumps([time.monotonic(), what, batch.epoch, batch.number]) + "\n")

        for _ in range(feed.epoch, epochs):
            for batch in feed:
                write("took", batch)
                wait(step_s)
                batch.done()
                feed.state()
                write("done", batch)


if __name__ == "__main__":
    main()
