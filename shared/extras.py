"""Libraries that only some uses of Stoker need: imported where one is used, or the error that says how to get it.

Rules: pure, but for the import; the one place that says so. An import that fails for another reason than absence is
named by that reason.
"""

from __future__ import annotations

import importlib
from typing import Any

from shared.errors import SettingsError

__all__ = ["how_to_get", "library"]


def library(name: str, *, extra: str, use: str, where: str = "this Python", otherwise: str = "") -> Any:  # noqa: ANN401 - a module without types
    """The module of this name; or else a SettingsError that says what it is for, and who asks for it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        remedy = how_to_get(extra, otherwise)
        raise SettingsError(expected=f"{package}, {use}", got=str(error), where=where, remedy=remedy) from error


def how_to_get(extra: str, otherwise: str = "") -> str:
    """The remedy: install it, or otherwise do without."""
    return f"Run `pip install 'stoker[{extra}]'`" + (f", {otherwise}." if otherwise else ".")
