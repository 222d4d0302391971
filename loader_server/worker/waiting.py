"""A worker that is started by itself before its index or files are on its machine: it waits for them.

Rules: a worker of `loader-server run` does not wait here: it ends and is started again, so that a job that cannot begin
is refused at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shared.errors import DataError
from shared.logs import Log

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

__all__ = ["open_once_there"]

_T = TypeVar("_T")

#: Pauses between attempts.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 4.0


def open_once_there(
    open_it: Callable[[], _T], error: DataError, tell: Callable[[DataError], None], stop: threading.Event, worker: str
) -> _T | None:
    """Try again and again to open what this error says cannot be opened yet; return None if stopped before it can be.

    `tell` is called with the error of each attempt; the log has each error once.
    """
    log, logged, pause_s = Log("worker", worker=worker), "", _FIRST_PAUSE_S
    while True:
        if str(error) != logged:
            log.warning("no data: this worker serves once they are there", **error.words())
            logged = str(error)
        tell(error)
        if stop.wait(pause_s):
            return None
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            return open_it()
        except DataError as found:
            error = found
