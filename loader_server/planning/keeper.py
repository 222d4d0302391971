"""The interface of a store for the parts of a plan that take long to compute; where it keeps them is its own business.

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
    """Store of arrays: `kind` tells what they are, `name` which plan they belong to."""

    def load(self, kind: str, name: str) -> Arrays | None:
        """Return the saved arrays, or None if there are none, or if they are gone or damaged."""

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Save these arrays; report a failure to the operator instead of raising."""


class Nowhere:
    """Keeper that keeps nothing."""

    def load(self, kind: str, name: str) -> None:
        """Return None: nothing is kept."""

    def save(self, kind: str, name: str, arrays: Arrays) -> None:
        """Drop the arrays."""
