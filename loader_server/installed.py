"""Versions of installed packages, read from the head of what each says of itself.

`importlib.metadata.version` parses all of it as an e-mail, a millisecond for each package, and each process of a job
asks for six.
"""

from __future__ import annotations

import importlib.metadata

__all__ = ["said_of", "version_of"]


def version_of(package: str) -> str:
    """The version of the package of this name; or else importlib's PackageNotFoundError."""
    return said_of(importlib.metadata.distribution(package), "Version")


def said_of(distribution: importlib.metadata.Distribution, key: str) -> str:
    """What it says of itself under this key, such as its Name."""
    for line in (distribution.read_text("METADATA") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
        if not line:
            break
    said: str = distribution.metadata[key]  # of an older form
    return said
