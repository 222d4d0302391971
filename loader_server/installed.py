"""Versions of installed packages, read from the head of their metadata.

`importlib.metadata.version` parses all of the metadata as an e-mail, a millisecond for each package, and each process
of a job asks for six.
"""

from __future__ import annotations

import importlib.metadata

__all__ = ["said_of", "version_of"]


def version_of(package: str) -> str:
    """Return the version of an installed package; raise importlib's PackageNotFoundError if it is not installed."""
    return said_of(importlib.metadata.distribution(package), "Version")


def said_of(distribution: importlib.metadata.Distribution, key: str) -> str:
    """Return a field of a distribution's metadata, such as its Name."""
    # The fields stand before the first empty line, as the headers of an e-mail do.
    for line in (distribution.read_text("METADATA") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
        if not line:
            break
    said: str = distribution.metadata[key]  # an older format, without METADATA
    return said
