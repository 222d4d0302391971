"""A notebook whose cell was run many times, as a process of its own: each run connects a feed, and nobody closes one.

    python -m tests.support.notebook ENDPOINT STREAM CELLS KEEPS

Each cell makes a data set of its feed and reads a batch. With `keeps` every feed stays referenced, as in a list; else
each cell's variables replace those of the last. Then it prints a line for each line that it reads: how many threads and
descriptors it has, and how often it logged that a feed stops.
"""

from __future__ import annotations

import gc
import json
import logging
import sys

import psutil

import trainer_client


class _Stops(logging.Handler):
    """Counts the feeds that stop."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "feed stops" in record.getMessage()


def main() -> None:
    endpoint, stream, cells, keeps = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "keeps"
    stops, kept = _Stops(), []
    logging.getLogger().addHandler(stops)
    for _ in range(cells):
        feed = trainer_client.connect(endpoint, stream=stream)
        data = feed.dataset(inputs="audio", targets="text")
        next(iter(data))
        if keeps:
            kept.append(feed)
    process = psutil.Process()
    for _ in sys.stdin:
        gc.collect()
        found = {"threads": process.num_threads(), "descriptors": process.num_fds(), "stops": stops.count}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
