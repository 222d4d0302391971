"""Puts what arrives back in order.

Rules: pure. Items go in under their sequence number, in any order, each number once, and come out in order, each once.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Inbox"]

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items that wait for their turn; `head` is the next number to come out."""

    def __init__(self, head: int = 0) -> None:
        self.head = head
        self._items: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, seq: int, item: T) -> None:
        """Take an item in."""
        if seq < self.head or seq in self._items:
            raise AssertionError(f"number {seq} came twice; the head is {self.head}")
        self._items[seq] = item

    def has_next(self) -> bool:
        """Whether the head is here."""
        return self.head in self._items

    def peek(self) -> T | None:
        """The head, if it is here."""
        return self._items.get(self.head)

    def take(self) -> T:
        """The head, which is gone then."""
        item = self._items.pop(self.head)
        self.head += 1
        return item

    def retract(self, seq: int) -> T | None:
        """Take an item back out, if it is still here; its number may be put again."""
        return self._items.pop(seq, None)

    def restart(self, head: int) -> list[T]:
        """Begin anew at `head`; what was still here is returned."""
        left = list(self._items.values())
        self._items.clear()
        self.head = head
        return left
