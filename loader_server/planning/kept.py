"""What of a plan takes long to work out, and is therefore kept for the next start; where is not the planner's business.

Rules: pure; arrays by name under the digest of the plan that they belong to, so what is found is right or damaged, and
whoever keeps them returns nothing that is damaged. Several threads and processes may load and save at once.
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
    """Whoever keeps arrays: `kind` is what they are, `name` whose."""

    def load(self, kind: str, name: str) -> Arrays | None:
        """What was saved; None if nothing was, or it is gone or damaged."""

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Keep these; a keeper that cannot says so to the operator, not to the planner."""


class Nowhere:
    """Keeps nothing."""

    def load(self, kind: str, name: str) -> None:
        """Nothing was kept."""

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Let go of them."""
