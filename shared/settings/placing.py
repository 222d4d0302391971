"""Places of settings in errors, for code that does not know its own place, such as a user's transform.

Rules: pure; each caller that knows a place adds it, so that the error names the whole path from the job file on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["placing"]


@contextlib.contextmanager
def placing(where: str) -> Iterator[None]:
    """Prefix `where` to the place of SettingsErrors from the block, unless they have it already."""
    try:
        yield
    except SettingsError as error:
        known = error.where.startswith(where)
        place = error.where if known else f"{where}, {error.where}" if error.where else where
        raise SettingsError(expected=error.expected, got=error.got, where=place, remedy=error.remedy) from None
