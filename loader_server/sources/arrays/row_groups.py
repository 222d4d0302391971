"""Cache of decoded row groups in one piece of memory of a fixed size, which holds the latest ones.

Rules: a group is decoded once, even if several threads ask for it at the same time; the oldest groups make room; groups
that are being gathered stay in memory until that is done, because gathering holds the lock that storing takes. Any
thread may ask. Knows neither files nor formats: `decode` gives a group's columns.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import write_padded, write_rectangles
from shared.errors import DataError
from shared.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.arrays.arrow_columns import ColumnValues
    from loader_server.sources.arrays.arrow_types import ColumnKind

__all__ = ["RowGroups"]

#: How many groups are decoded at the same time at most.
_AT_A_TIME = 8
#: How many groups have to be decoded again soon after their eviction to make a warning.
_MANY_AGAIN = 64


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of the memory that a group takes."""

    start: int
    stop: int
    group: int


class RowGroups:
    """Rows by number, in a cache of decoded groups.

    Group g has the rows from `firsts[g]` to before `firsts[g + 1]`, and `decode` returns its columns. The memory is a
    ring: groups are stored one after another, and evicted in that order.
    """

    def __init__(
        self,
        kinds: Sequence[ColumnKind],
        firsts: NDArray[np.int64],
        most_bytes: int,
        decode: Callable[[int], Sequence[ColumnValues]],
    ) -> None:
        #: How many times groups were decoded.
        self.decoded = 0
        self._kinds = tuple(kinds)
        self._firsts = firsts
        self._decode = decode
        self._memory = np.empty(most_bytes, np.uint8)  # pages that are never written take no memory
        self._views = {kind.key: _viewed(self._memory, kind.dtype, kind.inner) for kind in kinds}
        self._offsets = _viewed(self._memory, "int64", ())
        groups = len(firsts) - 1
        #: Whether a group is in memory.
        self._here = np.zeros(groups, np.bool_)
        #: Where a group's values begin, counted in values, and its offsets, counted in offsets.
        self._values_at = {kind.key: np.zeros(groups, np.int64) for kind in kinds}
        self._offsets_at = {kind.key: np.zeros(groups, np.int64) for kind in kinds if kind.ragged}
        #: Guards the memory and everything that says what is where in it.
        self._lock = threading.Lock()
        #: A lock for every eighth group, instead of one for each of what may be millions.
        self._decoding = [threading.Lock() for _ in range(_AT_A_TIME)]
        #: The groups in memory, oldest first, and where the newest ends.
        self._spans: deque[_Span] = deque()
        self._end = 0
        #: Bytes stored so far, and what these were when a group was evicted: a small difference means too soon.
        self._stored = self._again = 0
        self._gone_at: dict[int, int] = {}

    def missing(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return places in `rows`: of one row for each group that is not in memory; none if all are."""
        groups = self._groups_of(rows)
        away = np.flatnonzero(~self._here[groups])
        return away[np.unique(groups[away], return_index=True)[1]] if len(away) else away

    def _groups_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for each row of the data set, the number of the group that holds it."""
        # side="right" passes over groups without rows, which begin at the same row as the next.
        return np.searchsorted(self._firsts, rows, side="right") - 1

    def bring(self, group: int) -> None:
        """Decode a group and store it, unless it is in memory.

        Raise a DataError if it is larger than the memory; errors of `decode` pass.
        """
        # Held while decoding: a thread that asks for the same group waits, and then finds it in memory. Other threads
        # go on gathering, because `_lock` is only taken to store.
        with self._decoding[group % _AT_A_TIME]:
            if not self._here[group]:
                columns = self._decode(group)
                with self._lock:
                    self._store(group, columns)

    def gather(self, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the values of these rows, padded, and their lengths under the keys that `out` has.

        Rows of a fixed size without a length in `out` are written as they are. Decode the groups that are missing.
        Raise a DataError if one of them is larger than the memory; errors of `decode` pass.
        """
        groups = self._groups_of(rows)
        # Read without the lock, so it may be outdated by now: checked again below.
        for group in dict.fromkeys(groups[~self._here[groups]].tolist()):
            self.bring(group)
        with self._lock:
            # Storing one group, here or in another thread, may have evicted another of them.
            if self._here[groups].all():
                self._write(rows, groups, out)
                return
        for group in np.unique(groups).tolist():  # not all were in memory at once: one after another
            self._gather_group(group, np.flatnonzero(groups == group), rows, out)

    def _gather_group(
        self, group: int, places: NDArray[np.int64], rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Write the rows of one group to their places in `out`, decoding the group if it is missing.

        Raise a DataError if it is larger than the memory; errors of `decode` pass.
        """
        # Written to arrays of its own first, because `_write` fills whole arrays.
        own = {key: np.empty((len(places), *array.shape[1:]), array.dtype) for key, array in out.items()}
        self._with_group(group, lambda: self._write(rows[places], np.full(len(places), group), own))
        for key, array in own.items():
            out[key][places] = array

    def _with_group(self, group: int, then: Callable[[], Any]) -> Any:
        """Call `then` while this group is in memory and the lock is held, and return its result.

        Decode the group if it is missing; raise a DataError if it is larger than the memory. Errors of `decode` pass.
        """
        # Another thread may evict the group between `bring` and taking the lock: then it is decoded again.
        while True:
            with self._lock:
                if self._here[group]:
                    return then()
            self.bring(group)

    def _write(self, rows: NDArray[np.int64], groups: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the values of rows, and their lengths, under the keys that `out` has.

        Their groups are all in memory, and the caller holds the lock.
        """
        # With the lock held, because a group that is stored meanwhile may take the place of one of these.
        within = rows - self._firsts[groups]
        for kind in self._kinds:
            key = kind.key
            if key not in out:
                continue
            values = self._views[key]
            starts, lengths = self._places(kind, groups, within)
            if kind.cells:
                assert lengths is not None
                steps = self._offsets[self._steps_at(kind, groups) + within]
                out[f"{key}_length"][:], out[f"{key}_width"][:] = steps, (widths := lengths // np.maximum(steps, 1))
                write_rectangles(values, starts, np.stack([steps, widths], axis=1), out[key])
                continue
            if lengths is None and f"{key}_length" in out:  # its first axis counts as padded
                starts, lengths, values = starts * kind.inner[0], np.full(len(rows), kind.inner[0]), values.reshape(-1)
            if lengths is None:
                np.take(values, starts, axis=0, out=out[key], mode="clip")
            else:
                write_padded(values, starts, lengths, out[key])
                out[f"{key}_length"][:] = lengths

    def _places(
        self, kind: ColumnKind, groups: NDArray[np.int64], within: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return where the values of these rows begin, and how many they are (None if all have the same)."""
        base = self._values_at[kind.key][groups]
        if not kind.ragged:
            return base + within, None
        at = self._offsets_at[kind.key][groups] + within
        starts = self._offsets[at]
        return base + starts, self._offsets[at + 1] - starts

    def _steps_at(self, kind: ColumnKind, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the numbers of lists of a group's rows begin, of a kind that has some: behind its offsets."""
        return self._offsets_at[kind.key][groups] + self._firsts[groups + 1] - self._firsts[groups] + 1

    def values(self, row: int) -> list[bytes]:
        """Return the bytes of all columns of one row, decoding its group if it is not in memory.

        Raise a DataError if the group is larger than the memory; errors of `decode` pass.
        """
        group = int(self._groups_of(np.array([row]))[0])
        values: list[bytes] = self._with_group(group, lambda: self._bytes_of(group, row - int(self._firsts[group])))
        return values

    def _bytes_of(self, group: int, within: int) -> list[bytes]:
        """Return copies of the bytes of one row of a group; the caller holds the lock.

        There is one value for each column, in the order of the columns.
        """
        values = []
        for kind in self._kinds:
            start = int(self._values_at[kind.key][group])
            if kind.ragged:
                at = int(self._offsets_at[kind.key][group]) + within
                first, end = self._offsets[at : at + 2].tolist()
            else:
                first, end = within, within + 1
            # Copies, because they are decoded after the lock was released.
            values.append(self._views[kind.key][start + first : start + end].tobytes())
        return values

    # --- storing ---

    def _store(self, group: int, columns: Sequence[ColumnValues]) -> None:
        """Copy a decoded group into the memory; the caller holds the lock.

        Raise a DataError if the group is larger than the whole memory.
        """
        self.decoded += 1
        self._note_again(group)
        at = self._make_room(group, columns)
        for kind, column in zip(self._kinds, columns, strict=True):
            # Rounded up to whole rows, so that the view of this dtype reaches them.
            at = self._values_at[kind.key][group] = -(-at // kind.row_bytes)
            stop = at + len(column.values)
            self._views[kind.key][at:stop] = column.values
            at = stop * kind.row_bytes
            if column.offsets is not None:
                at = self._offsets_at[kind.key][group] = -(-at // 8)
                numbers = column.offsets if column.steps is None else np.append(column.offsets, column.steps)
                self._offsets[at : at + len(numbers)] = numbers
                at = (at + len(numbers)) * 8
        self._here[group] = True

    def _make_room(self, group: int, columns: Sequence[ColumnValues]) -> int:
        """Evict the groups that lie where this one goes, and return where it begins.

        Raise a DataError if the group is larger than the whole memory.
        """
        # Each array may begin later than the one before ends, aligned to its rows: hence a row more for each.
        nbytes = sum(
            column.values.nbytes + kind.row_bytes + _bytes_beside(column)
            for kind, column in zip(self._kinds, columns, strict=True)
        )
        if nbytes > len(self._memory):
            raise DataError(
                expected=f"row groups of at most {len(self._memory)} bytes, as `cache` allows",
                got=f"a group of {nbytes} bytes",
                where="the columns that the stream reads",
                remedy="Raise `cache`, name fewer `columns`, or write smaller row groups.",
            )
        start = self._end
        if start + nbytes > len(self._memory):
            start = 0
            # Groups behind the end are the oldest. They are evicted although nothing is stored
            # there now: `_forget` looks at the oldest group only, and would stop at them.
            self._forget(lambda span: span.start >= self._end)
        self._forget(lambda span: span.start < start + nbytes and span.stop > start)
        self._end = start + nbytes
        self._stored += nbytes
        self._spans.append(_Span(start, self._end, group))
        return start

    def _forget(self, is_in_the_way: Callable[[_Span], bool]) -> None:
        """Evict the oldest groups, one after another, as long as the oldest is in the way; none left ends it too."""
        while self._spans and is_in_the_way(self._spans[0]):
            gone = self._spans.popleft().group
            self._here[gone] = False
            self._gone_at[gone] = self._stored

    def _note_again(self, group: int) -> None:
        """Count a group that is decoded again soon after it was evicted, and warn once, at the 64th."""
        gone_at = self._gone_at.pop(group, None)
        # Soon: before as much as half of the memory was stored since.
        if gone_at is not None and self._stored - gone_at < len(self._memory) // 2:
            self._again += 1
            if self._again == _MANY_AGAIN:
                Log("sources").warning(
                    "row groups are decoded again and again: raise `cache` or lower `window` of the stream, or name "
                    "fewer columns",
                    cache_bytes=len(self._memory),
                    decoded=self.decoded,
                )


def _bytes_beside(column: ColumnValues) -> int:
    """Return the bytes that offsets and numbers of lists take, with room to be aligned; 0 without offsets."""
    if column.offsets is None:
        return 0
    return column.offsets.nbytes + 8 + (0 if column.steps is None else column.steps.nbytes)


def _viewed(memory: NDArray[np.uint8], dtype: str, inner: tuple[int, ...]) -> NDArray[Any]:
    """Return the memory as an array of this dtype and inner shape; bytes at its end may be left over."""
    row = np.dtype(dtype).itemsize * int(np.prod(inner))
    return memory[: len(memory) // row * row].view(dtype).reshape(-1, *inner)
