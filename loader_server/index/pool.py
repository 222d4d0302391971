"""A pool of processes that does pieces of work in order.

Rules: just enough pieces are queued for each process that none is idle, so memory stays bounded. Processes end with the
one that started them, even if it is killed. Knows nothing about what a piece is, and what is done with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from loader_server.machine.processes import end_with_parent
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["run_in_order", "usable_processes"]

_T = TypeVar("_T")

#: Pieces queued for each process: enough that none waits for work, few enough that memory stays bounded.
_PIECES_AHEAD = 4

#: In a process of the pool: the function that makes the work, and the work, once the first piece has come.
_MAKERS: list[Callable[[], Callable[[Any], Any]]] = []
_WORK: list[Callable[[Any], Any]] = []


def usable_processes(processes: int) -> int:
    """Return `processes`, or 1 if there is no room for semaphores, such as without /dev/shm, which is logged."""
    if processes > 1:
        try:
            get_context("spawn").Lock()
        except OSError as error:
            Log("index").warning("one process works alone: processes share work through /dev/shm", error=str(error))
            return 1
    return processes


def run_in_order(
    make_work: Callable[[], Callable[[Any], _T]], pieces: Iterator[Any], processes: int
) -> Generator[_T, None, None]:
    """Yield the results of all pieces in order; each process makes its own work, when its first piece comes.

    What making the work or doing a piece raises is raised here, in the piece's turn, and what `pieces` raises.

    Raises:
        BrokenProcessPool: A process died.

    """
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (os.getpid(), make_work))
    waiting: deque[Future[_T]] = deque()
    try:
        for piece in pieces:
            with _interrupts_held():
                waiting.append(pool.submit(_do, piece))
            # Results are taken in order: one slow piece holds up the others' results, but no more than are queued.
            if len(waiting) > processes * _PIECES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Also when the caller stops early, as for refused data: what is queued is dropped, and no process stays.
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent: int, make_work: Callable[[], Callable[[Any], Any]]) -> None:
    """Prepare a process of the pool: it ends with its parent, and makes its work when the first piece comes.

    It ends at once if the parent is gone already.
    """
    try:
        end_with_parent(parent, signal.SIGKILL)
    except SystemExit:  # the parent was killed while we started; a traceback would help nobody
        os._exit(0)
    _MAKERS[:] = [make_work]
    _WORK.clear()


def _do(piece: Any) -> Any:
    # The work is not made in `_begin`: a pool hides an error of its initializer, but passes on one of a piece.
    if not _WORK:
        _WORK.append(_MAKERS[0]())
    return _WORK[0](piece)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT meanwhile: processes started in this block inherit that, and Ctrl-C does not end them.

    The terminal sends it to the whole process group, but only this process decides what to do.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
