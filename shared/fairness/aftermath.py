"""Return of memory after a flood: malloc keeps what the flood needed until it is asked to give it back.

Rules: used in the thread that serves. While a flood lasts nothing is given back, because it would be taken again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.malloc_tuning import give_back_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aftermath"]


#: Give memory back after this many looks without a flood: soon, and once more after stopped connections have ended.
_LOOKS = (1, 10)


class Aftermath:
    """Trigger of the memory return: call `note` during a flood, and `look` a few times a second or less."""

    def __init__(self, give_back: Callable[[], None] = give_back_freed_memory) -> None:
        self._give_back = give_back
        #: Looks since the last flood; at the start as if it were long over.
        self._calm_looks = _LOOKS[-1]

    def note(self) -> None:
        """Note a flood: a peer is ignored, not answered, or sends faster than we take in."""
        self._calm_looks = -1

    def look(self) -> None:
        """Give memory back if the last flood is 1 or 10 looks ago."""
        if self._calm_looks < _LOOKS[-1]:
            self._calm_looks += 1
            if self._calm_looks in _LOOKS:
                self._give_back()
