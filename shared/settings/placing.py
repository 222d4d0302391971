"""Where a setting stands, for errors of code that does not know it, such as a user's module that declares a transform.

Rules: pure; whoever knows a place adds it, so that the error names all of the way from the job file on.
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
    """Add the place to settings errors that do not know it, or know only its last part."""
    try:
        yield
    except SettingsError as error:
        known = error.where.startswith(where)
        place = error.where if known else f"{where}, {error.where}" if error.where else where
        raise SettingsError(expected=error.expected, got=error.got, where=place, remedy=error.remedy) from None
