"""Libraries that only some uses of Stoker need: imported where one is used, or the error that says how to get it.

Rules: pure, but for the import and for looking up this installation; the one place that says so. An import that fails
for another reason than absence is named by that reason. The command that is advised is one that works for this
installation: where Stoker was installed from a checkout, pip would look for its name in an index, and not find it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from typing import Any
from urllib.parse import unquote, urlsplit

from shared.errors import SettingsError

__all__ = ["MissingLibraryError", "how_to_get", "library", "pip_install"]

_PACKAGE = "stoker"


class MissingLibraryError(SettingsError):
    """A library is not installed; whatever does without it goes on."""


def library(name: str, *, extra: str, use: str, where: str = "this Python", otherwise: str = "") -> Any:
    """The module of this name; or else a SettingsError that says what it is for, and who asks for it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        remedy = how_to_get(extra, otherwise)
        raise MissingLibraryError(expected=f"{package}, {use}", got=str(error), where=where, remedy=remedy) from error


def how_to_get(extra: str, otherwise: str = "") -> str:
    """The remedy: install it, or otherwise do without."""
    return f"Run `{pip_install(extra)}`" + (f", {otherwise}." if otherwise else ".")


def pip_install(extra: str) -> str:
    """Return the command that adds an extra to this very installation, as pip has noted where it came from."""
    try:
        noted = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return f"pip install -e '{__file__.removesuffix('/shared/extras.py')}[{extra}]'"
    return _pip_install(extra, json.loads(noted) if noted else {})


def _pip_install(extra: str, origin: dict[str, Any]) -> str:
    url, directory = str(origin.get("url", "")), origin.get("dir_info")
    if directory is not None:
        path = unquote(urlsplit(url).path)
        return f"pip install {'-e ' if directory.get('editable') else ''}'{path}[{extra}]'"
    if not url:
        return f"pip install '{_PACKAGE}[{extra}]'"
    control = origin.get("vcs_info", {}).get("vcs", "")
    return f"pip install '{_PACKAGE}[{extra}] @ {control + '+' if control else ''}{url}'"
