"""The parts of a plan that take long to compute and are kept for the next start; where is not the planner's business.

Rules: pure; arrays are kept by name, under the digest of their plan, so what is found is right unless it is damaged,
and a keeper never returns damaged arrays. Several threads and processes may load and save at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.integer]]

__all__ = ["Keeper", "Nowhere"]


class Keeper(Protocol):
    """Keeps arrays: `kind` says what they are, `name` which plan they belong to."""

    def load(self, kind: str, name: str) -> Arrays | None:
        """The arrays that were saved; None if there are none, or if they are gone or damaged."""

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Save these; a keeper that cannot do so tells the operator, not the planner."""


class Nowhere:
    """Keeps nothing."""

    def load(self, kind: str, name: str) -> None:
        """Nothing was kept."""

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Drop them."""
