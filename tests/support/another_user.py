"""What a user meets to whom files of others are closed, as they are not to root."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_another_user", "folder_for_all"]

_SOMEBODY = 12345


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """For the length of a block this process has the rights of another user; only root can lend them."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    os.seteuid(_SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """Make a folder that every user can reach, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="stoker-open-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
