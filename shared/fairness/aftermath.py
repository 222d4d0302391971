"""What a flood leaves behind: malloc keeps the memory that was needed for it, which is given back once it is over.

Rules: used in the thread that serves. While a flood lasts nothing is given back, because it would be taken again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.malloc_tuning import give_back_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aftermath"]


#: After so many looks without a flood memory is given back: soon, and again once connections that had to be stopped
#: have been heard to end.
_LOOKS = (1, 10)


class Aftermath:
    """`note` that there is a flood; `look` now and then, some times a second or more rarely."""

    def __init__(self, give_back: Callable[[], None] = give_back_freed_memory) -> None:
        self._give_back = give_back
        #: How many looks there were since the last flood.
        self._calm_looks = _LOOKS[-1]

    def note(self) -> None:
        """Note that somebody is not heard, or not answered, or sends faster than we take in."""
        self._calm_looks = -1

    def look(self) -> None:
        """Give memory back if a flood is over."""
        if self._calm_looks < _LOOKS[-1]:
            self._calm_looks += 1
            if self._calm_looks in _LOOKS:
                self._give_back()
