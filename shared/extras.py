"""Optional libraries: import one where it is used, or raise an error that says how to install it.

Rules: pure, but for the import and for looking up this installation. An import that fails for another reason than
absence is reported with that reason. The advised command suits this installation: where Stoker was installed from a
checkout, pip would look for its name in an index and not find it.
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
    """A library is not installed; features that do not need it still work."""


def library(name: str, *, extra: str, use: str, where: str = "this Python", otherwise: str = "") -> Any:
    """Import and return a module; raise MissingLibraryError with its use and the install command at an ImportError.

    Other errors that importing it raises pass through.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")  # as pip names it
        raise MissingLibraryError(
            expected=f"{package}, {use}", got=str(error), where=where, remedy=how_to_get(extra, otherwise)
        ) from error


def how_to_get(extra: str, otherwise: str = "") -> str:
    """Return the remedy for a missing library: the install command, and the alternative `otherwise` if there is one."""
    return f"Run `{pip_install(extra)}`" + (f", {otherwise}." if otherwise else ".")


def pip_install(extra: str) -> str:
    """Return the pip command that adds an extra to this installation, from pip's record of where it came from."""
    try:
        origin = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return f"pip install -e '{__file__.removesuffix('/shared/extras.py')}[{extra}]'"
    return _pip_install(extra, json.loads(origin) if origin else {})


def _pip_install(extra: str, origin: dict[str, Any]) -> str:
    """Return the pip command for an installation with this origin: a folder, an index (no URL), or a URL."""
    # pip records where it took a package from (PEP 610): nothing for an index, a folder or a version control's URL.
    url, directory = str(origin.get("url", "")), origin.get("dir_info")
    if directory is not None:
        path = unquote(urlsplit(url).path)
        return f"pip install {'-e ' if directory.get('editable') else ''}'{path}[{extra}]'"
    if not url:
        return f"pip install '{_PACKAGE}[{extra}]'"
    control = origin.get("vcs_info", {}).get("vcs", "")
    return f"pip install '{_PACKAGE}[{extra}] @ {control + '+' if control else ''}{url}'"
