"""Keras without matplotlib, which it imports to draw galleries, wherever it is installed: that takes half a second."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["lean_keras"]


@contextmanager
def lean_keras() -> Iterator[None]:
    """Who imports Keras in this block gets one that cannot draw; matplotlib can be imported afterwards."""
    hidden = "matplotlib" not in sys.modules
    if hidden:
        sys.modules["matplotlib"] = None  # type: ignore[assignment] # as if it were not installed
    try:
        yield
    finally:
        if hidden:
            del sys.modules["matplotlib"]
