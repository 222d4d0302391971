"""Reordering of batches that arrive out of order.

Rules: pure. Items go in under their sequence numbers, in any order but each number once, and come out in order. Taking
one out is a single step of the interpreter, so a signal comes either before it or after it.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Inbox"]

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items by sequence number, taken out in order from `head` on."""

    def __init__(self, head: int = 0) -> None:
        self._ready: deque[T] = deque()
        #: The number after the last ready item.
        self._end = head
        #: Items that arrived before an earlier number did.
        self._early: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._early)

    @property
    def head(self) -> int:
        """Return the number of the next item to be taken."""
        return self._end - len(self._ready)

    def put(self, seq: int, item: T) -> None:
        """Add an item under its number; raise AssertionError if that number came already, or lies before the head."""
        if seq < self._end or seq in self._early:
            raise AssertionError(f"number {seq} came twice; the head is {self.head}")
        self._early[seq] = item
        while self._end in self._early:
            self._ready.append(self._early.pop(self._end))
            self._end += 1

    def peek(self) -> T | None:
        """Return the item at the head without removing it; None if it has not arrived."""
        return self._ready[0] if self._ready else None

    def take(self) -> T:
        """Remove and return the item at the head; raise IndexError if it has not arrived."""
        return self._ready.popleft()

    def retract(self, seq: int) -> T | None:
        """Remove and return an item, whose number may then be put again; return None if it is not here.

        Items behind it stay, but wait for this number, or for the next `put` if this number was taken already.
        """
        while self._ready and self._end > seq:
            self._end -= 1
            self._early[self._end] = self._ready.pop()
        return self._early.pop(seq, None)

    def restart(self, head: int) -> list[T]:
        """Start over at `head`; return the items that were dropped, perhaps none."""
        left = [*self._ready, *self._early.values()]
        self._ready.clear()
        self._early.clear()
        self._end = head
        return left
