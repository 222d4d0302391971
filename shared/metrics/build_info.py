"""The versions that a process runs, as every process tells them in its metrics."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import cache

import shared
from shared.wire.codec import VERSION

__all__ = ["build_versions"]


@cache
def build_versions() -> tuple[str, ...]:
    """Return the versions of Stoker, of its protocol, of Python and of numpy; "unknown" for one that is not installed.

    They stay the same for the life of the process, even if packages are replaced meanwhile.
    """
    return (_installed(shared.DISTRIBUTION), str(VERSION), platform.python_version(), _installed("numpy"))


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
