"""Tar shards for tests, as the standard library writes them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["npy", "tar_of", "write_shard"]


def tar_of(members: Iterable[tuple[str, bytes]], style: int = tarfile.PAX_FORMAT, mtime: int = 1) -> bytes:
    """A tar file of members in this order, which may have one name twice."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=style) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), mtime
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def write_shard(path: Path, members: Iterable[tuple[str, bytes]], mtime: int = 1) -> Path:
    """A tar file on disk."""
    path.write_bytes(tar_of(members, mtime=mtime))
    return path


def npy(array: object) -> bytes:
    """The bytes of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()
