"""One end of the benchmark between hosts: a bare sender, or a reader of bare sockets or of Stoker's workers.

    python -m tests.benchmarks.between_hosts_end send ADDRESS
    python -m tests.benchmarks.between_hosts_end read-bare ENDPOINT …
    python -m tests.benchmarks.between_hosts_end read-stoker ENDPOINT RANK WORLD [KEYS]

Rules: bare sockets are pyzmq's with the options of Stoker's own (`shared.sockets`): a ROUTER that sends a batch of
10 MB for each byte of credit, and one DEALER a sender. Both sides copy what Stoker cannot help copying: the sender
makes each batch by a copy and a stamp, the reader receives into memory that it uses again. A reader is idle between two
lines of its input (seconds to read), and answers each with one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

import trainer_client
from shared.sockets import bind_router, connect_dealer
from tests.benchmarks.data_path_payloads import BANDS, template

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CREDIT", "NBYTES"]

_ROWS, _FRAMES = 32, 1000
#: Of the values of a batch.
NBYTES = 4 * _ROWS * _FRAMES * BANDS

#: Batches that a reader has asked for and not read, of all senders together.
CREDIT = 8

#: Batches that may have come before the clock starts: they go first, uncounted.
_AHEAD = 2 * CREDIT


def _send(address: str) -> None:
    """Send for ever, a batch a credit, as a worker does: one at a time is made."""
    stencil = template("features", NBYTES // 4)
    buffers = [np.zeros_like(stencil) for _ in range(CREDIT)]
    trackers: list[Any] = [None] * CREDIT
    router = bind_router(zmq.Context(), f"tcp://{address}:*", None)
    print(json.dumps({"endpoint": router.getsockopt_string(zmq.LAST_ENDPOINT)}), flush=True)
    for number in itertools.count():
        identity, _ = router.recv_multipart()
        place = number % CREDIT
        if trackers[place] is not None:
            trackers[place].wait()
        np.copyto(buffers[place], stencil)
        buffers[place].reshape(_ROWS, _FRAMES, BANDS)[:, 0] = number
        router.send(identity, zmq.SNDMORE)
        trackers[place] = router.send(buffers[place].data, copy=False, track=True)


def _bare(endpoints: list[str]) -> Iterator[int]:
    """Read batches of all of these senders, as they come."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    poller = zmq.Poller()
    for endpoint in endpoints:
        dealer = connect_dealer(context, endpoint, None, secrets.token_bytes(16))
        poller.register(dealer, zmq.POLLIN)
        for _ in range(CREDIT // len(endpoints)):
            dealer.send(b"1")
    buffers = itertools.cycle([np.zeros(NBYTES, np.uint8) for _ in range(CREDIT)])
    while True:
        for socket, _ in poller.poll():
            yield socket.recv_into(next(buffers).data)  # type: ignore[attr-defined] # newer than its types
            socket.send(b"1")


def _stoker(endpoint: str, rank: int, world: int, keys: str) -> Iterator[int]:
    """Read batches of Stoker's workers, epoch after epoch."""
    with trainer_client.connect(
        endpoint, rank=rank, world=world, keys=keys, prefetch=CREDIT, shared_memory=False
    ) as feed:
        while True:
            with feed.open() as reading:
                for batch in reading:
                    yield batch["features"].nbytes


def _run(batches: Iterator[int], seconds: float) -> dict[str, float]:
    """Read for so long."""
    for _ in range(_AHEAD):
        next(batches)
    count, cpu_s = 0, time.process_time()
    began_s = now_s = time.perf_counter()
    while now_s - began_s < seconds:
        assert next(batches) == NBYTES
        count += 1
        now_s = time.perf_counter()
    return {
        "batches_per_s": count / (now_s - began_s),
        "batches": count,
        "read": _AHEAD + count,
        "cpu_s": time.process_time() - cpu_s,
    }


def main() -> None:
    """Be one end."""
    part, *arguments = sys.argv[1:]
    if part == "send":
        _send(*arguments)
    if part == "read-bare":
        batches = _bare(arguments)
    else:
        endpoint, rank, world, *keys = arguments
        batches = _stoker(endpoint, int(rank), int(world), *(keys or [""]))
    next(batches)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(batches, float(line))), flush=True)
    os._exit(0)  # what is on its way is of no use


if __name__ == "__main__":
    main()
