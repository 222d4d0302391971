"""A disk that is small enough to fill."""

from __future__ import annotations

import contextlib
import resource
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["SmallDisk", "no_file_larger_than", "small_disk"]


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own, unless none could be mounted."""

    folder: Path

    def fill(self) -> Callable[[], None]:
        """Leave no room; the answer makes room again."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))
        return filler.unlink


@contextlib.contextmanager
def no_file_larger_than(nbytes: int) -> Iterator[None]:
    """Let no file that this process writes grow further, as on a full disk, but without the rights to mount one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def small_disk(folder: Path, size: str, *, skip: bool = True) -> Iterator[SmallDisk]:
    """Mount one at a folder that is made; where that is not allowed, skip the test, or have a plain folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode and skip:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
