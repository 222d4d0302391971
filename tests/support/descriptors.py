"""The descriptors that this process has open, to see that a piece of code left none behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["open_descriptors"]


def open_descriptors() -> set[tuple[str, str]]:
    """Each with what it leads to. Compare by `-`: what others leave may be closed at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((entry.name, str(entry.readlink())))
    return found
