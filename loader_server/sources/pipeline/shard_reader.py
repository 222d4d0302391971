"""The elements of one shard by ordinal, for any caller: made in order, kept for a while, and made again after that.

Rules: elements that were made are kept within a limit in bytes, because several trainers read side by side. For an
element that is no longer kept, the shard is run again from its beginning, which costs everything before it, and is
logged. Every element that is made is handed to `check`. Any thread may ask; one at a time makes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from shared.errors import DataError
from shared.logs import Log
from shared.pipelines.element_values import flat_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.pipeline.shard_run import ShardRun

    Flat = Mapping[str, NDArray[np.generic]]

__all__ = ["ShardReader"]

#: Limit for the elements that a reader keeps.
_KEPT_BYTES = 128 * 2**20
#: Elements that are kept whatever their size: the one being handed out, and the one before.
_LEAST_KEPT = 2
_LOG_EVERY_S = 10.0
#: Making fewer than this again is not logged: it happens when several trainers ask side by side.
_WORTH_TELLING = 16


class ShardReader:
    """Reader of a shard of one epoch; `elements` is the most that the shard may have."""

    def __init__(
        self, start: Callable[[], ShardRun], check: Callable[[int, Flat], None], *, elements: int, where: str
    ) -> None:
        self._start = start
        self._check = check
        self._elements = elements
        self._where = where
        self._lock = threading.Lock()
        self._run: ShardRun | None = None
        self._ended = False
        #: The last elements made, and the ordinal of the next one to make.
        #: Kept because several trainers read side by side: the one behind would have the shard made from its beginning.
        self._kept: deque[Flat] = deque()
        self._kept_bytes = 0
        self._next = 0

    def element(self, ordinal: int, begin: Callable[[int], None]) -> Flat | None:
        """Return the element in the form in which it crosses the network, or None if the shard ends before it.

        `begin` is called with the ordinal of each element made on the way. Raise a DataError if the user's code fails,
        an element does not pass the check, or the shard has too many.
        """
        with self._lock:
            if self._run is None or ordinal < self._next - len(self._kept):
                self._begin_anew(ordinal)
            progress_s = time.monotonic() + _LOG_EVERY_S
            while ordinal >= self._next and not self._ended:
                begin(self._next)
                self._make_next()
                if time.monotonic() > progress_s:
                    progress_s += _LOG_EVERY_S
                    Log("worker").info("on the way in a shard", shard=self._where, at=self._next, to=ordinal)
            # A negative index: elements are counted back from the next one to make.
            return self._kept[ordinal - self._next] if ordinal < self._next else None

    def _begin_anew(self, ordinal: int) -> None:
        """Start the shard from its beginning, and log it if it costs much."""
        if ordinal >= _WORTH_TELLING:
            Log("worker").info("a shard is made from its beginning", shard=self._where, to=ordinal)
        self._run = self._start()
        self._kept.clear()
        self._kept_bytes = self._next = 0
        self._ended = False

    def _make_next(self) -> None:
        """Make the next element; after an error the shard begins anew, as the run's state is unknown."""
        run, self._run = self._run, None  # given back below, unless anything raises
        assert run is not None
        element = run.next_element()
        if element is None:
            self._ended = True
        else:
            flat = flat_values(run.values, element)
            self._check(self._next, flat)
            # At the last element that was planned for, look for another: one more is an error, never dropped silently.
            if self._next + 1 == self._elements and run.next_element() is not None:
                raise self._too_many()
            self._keep(flat)
            self._next += 1
        self._run = run

    def _keep(self, flat: Flat) -> None:
        """Keep an element, and drop the oldest ones beyond the limit in bytes."""
        self._kept.append(flat)
        self._kept_bytes += _nbytes(flat)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > _LEAST_KEPT:
            self._kept_bytes -= _nbytes(self._kept.popleft())

    def _too_many(self) -> DataError:
        """Return the error for a shard with more elements than planned."""
        return DataError(
            expected=f"at most {self._elements} elements, as many as the longest shard had while indexing",
            got="more",
            where=self._where,
            remedy="If the number differs from epoch to epoch, write the most that there may be: elements = …",
        )


def _nbytes(flat: Flat) -> int:
    return sum(array.nbytes for array in flat.values())
