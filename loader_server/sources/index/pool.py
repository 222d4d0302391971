"""Pieces of a source, looked at in order, by one process or by as many as pay.

Rules: what comes out does not depend on how many processes there are; so many pieces wait for each that none is idle,
and no more, so memory stays bounded. Processes end with the one that asked, also if that is killed. What a piece holds
is `probe`'s business.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from loader_server.sources.index.probe import Probed, ProbeOrder, Prober, begin_probing, probed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from loader_server.sources.source import Source

__all__ = ["probed_in_order"]

_PIECES_AHEAD = 4


def probed_in_order(
    order: ProbeOrder, source: Source, pieces: Iterator[Any], processes: int
) -> Generator[Probed, None, None]:
    """What each piece holds: `source` looks itself if one process is enough. BrokenProcessPool where a process died."""
    if processes == 1:
        yield from map(Prober(order, source).probe, pieces)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), begin_probing, (order, os.getpid()))
    try:
        yield from _in_order(pool, pieces, processes * _PIECES_AHEAD)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, pieces: Iterator[Any], ahead: int) -> Iterator[Probed]:
    waiting: deque[Future[Probed]] = deque()
    for piece in pieces:
        with _interrupts_held():
            waiting.append(pool.submit(probed, piece))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that start meanwhile never see Ctrl-C, which reaches the whole group: this one alone decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
