"""Builds of this tree that differ: copies of our packages in a folder, of another release or version of bytes.

A process that has such a folder first on its path runs that copy, and reports it on stderr: which release, and its pid.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from loader_server.transforms.chain import BYTES_VERSION
from shared.wire.codec import VERSION
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


def make_build(
    folder: Path, release: str, *, bytes_version: int = BYTES_VERSION, protocol: int = VERSION
) -> Path:  # fmt: skip
    """Copy our packages into a folder, as this release; another version of bytes or protocol is a number alone."""
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    about = folder / f"stoker-{release}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(_METADATA.format(release=release))
    marked = folder / "shared" / "__init__.py"
    marked.write_text(marked.read_text() + _SAYS.format(release=release))
    _replace(folder / "loader_server" / "transforms" / "chain.py", "BYTES_VERSION", BYTES_VERSION, bytes_version)
    _replace(folder / "shared" / "wire" / "codec.py", "VERSION", VERSION, protocol)
    return folder


def _replace(file: Path, name: str, before: int, now: int) -> None:
    text, line = file.read_text(), f"\n{name} = {before}\n"
    assert text.count(line) == 1
    file.write_text(text.replace(line, f"\n{name} = {now}\n"))


def runs(text: str, release: str, pid: int) -> bool:
    """Whether a process has said that it runs this release."""
    return f"release {release} runs as {pid}\n" in text
