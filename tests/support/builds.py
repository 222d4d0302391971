"""Builds of this tree that differ: copies of our packages in a folder, with another release or another version of bytes.

A process that has such a folder first on its path runs that copy, and says so on stderr: which release, and its pid.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.support.forked import ROOT

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_build", "runs"]

_PACKAGES = ("shared", "loader_server", "trainer_client")
_METADATA = "Metadata-Version: 2.1\nName: stoker\nVersion: {release}\n"
_SAYS = """
import os, sys

print(f"release {release} runs as {{os.getpid()}}", file=sys.stderr, flush=True)
"""
_BYTES = "BYTES_VERSION = 2\n"


def make_build(folder: Path, release: str, *, bytes_version: int = 2) -> Path:
    """Copy our packages into a folder, as this release; with another version of bytes it is no other code."""
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    about = folder / f"stoker-{release}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(_METADATA.format(release=release))
    marked = folder / "shared" / "__init__.py"
    marked.write_text(marked.read_text() + _SAYS.format(release=release))
    chain = folder / "loader_server" / "transforms" / "chain.py"
    text = chain.read_text()
    assert text.count(_BYTES) == 1
    chain.write_text(text.replace(_BYTES, f"BYTES_VERSION = {bytes_version}\n"))
    return folder


def runs(text: str, release: str, pid: int) -> bool:
    """Whether a process has said that it runs this release."""
    return f"release {release} runs as {pid}\n" in text
