"""What a flood leaves behind: malloc keeps the memory that was needed for it, which is given back once it is over.

Rules: used in the thread that serves. While a flood lasts nothing is given back, because it would be taken again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.malloc_tuning import give_back_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aftermath"]


class Aftermath:
    """`note` that there is a flood; `look` now and then, some times a second or more rarely."""

    def __init__(self, give_back: Callable[[], None] = give_back_freed_memory) -> None:
        self._give_back = give_back
        #: Whether there was a flood since the last look, and whether memory has to be given back after one.
        self._is_flooded = self._is_owed = False

    def note(self) -> None:
        """Note that somebody is not heard, or not answered, or sends faster than we take in."""
        self._is_flooded = True

    def look(self) -> None:
        """Give memory back if there was no flood since the last look, for the first time since the last one."""
        if self._is_owed and not self._is_flooded:
            self._give_back()
        self._is_owed, self._is_flooded = self._is_flooded, False
