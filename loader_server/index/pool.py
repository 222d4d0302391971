"""Pieces of a source, probed in order, by one process or by as many as pay.

Rules: the output does not depend on the number of processes; just enough pieces are queued for each process that none
is idle, so memory stays bounded. Processes end with the one that started them, even if it is killed. What a piece holds
is `probe`'s business.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from loader_server.index.probe import Probed, ProbeOrder, Prober, begin_probing, probe_piece
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from loader_server.sources.source import Source

__all__ = ["probe_in_order", "run_in_order", "usable_processes"]

_T = TypeVar("_T")

_PIECES_AHEAD = 4


def usable_processes(processes: int) -> int:
    """Return how many processes can share work: one where there is no room for semaphores, such as without /dev/shm."""
    if processes > 1:
        try:
            get_context("spawn").Lock()
        except OSError as error:
            Log("index").warning("one process works alone: processes share work through /dev/shm", error=str(error))
            return 1
    return processes


def probe_in_order(
    order: ProbeOrder, source: Source, pieces: Iterator[Any], processes: int
) -> Generator[Probed, None, None]:
    """What each piece holds. If one process is enough, `source` itself probes, unless it must not. A BrokenProcessPool
    if a process died.
    """
    if not source.apart and usable_processes(processes) == 1:
        yield from map(Prober(order, source).probe, pieces)
        return
    yield from run_in_order(probe_piece, pieces, processes, partial(begin_probing, order, os.getpid()))


def run_in_order(
    work: Callable[[Any], _T], pieces: Iterator[Any], processes: int, begin: Callable[[], None]
) -> Generator[_T, None, None]:
    """What `work` returns for each piece, in processes that each call `begin` once."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), begin)
    waiting: deque[Future[_T]] = deque()
    try:
        for piece in pieces:
            with _interrupts_held():
                waiting.append(pool.submit(work, piece))
            if len(waiting) > processes * _PIECES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C, which reaches the whole group, from processes that start in this block: only this one decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
