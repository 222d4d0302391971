"""Control groups that tests make, where they may: what is in one has no more memory than it is given."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Group", "limited_group"]

_ROOT = Path("/sys/fs/cgroup")


class Group:
    """A control group, of the first version or the second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_first = (folder / "memory.limit_in_bytes").exists()

    def limit(self, nbytes: int) -> None:
        """Let what is in it have as much memory."""
        (self._folder / ("memory.limit_in_bytes" if self._is_first else "memory.max")).write_text(str(nbytes))

    def take(self, pids: Iterable[int]) -> None:
        """Have these processes in it, and what they will fork."""
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How often the kernel killed a process in it for memory."""
        name = "memory.oom_control" if self._is_first else "memory.events"
        facts = dict(line.split() for line in (self._folder / name).read_text().splitlines())
        return int(facts["oom_kill"])

    def remove(self) -> None:
        """Remove it once it is empty, which the kernel notices a little later."""

        def is_gone() -> bool:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            return not self._folder.exists()

        wait_until(is_gone, "the group is empty")


@contextmanager
def limited_group(nbytes: int) -> Iterator[Group]:
    """For the length of a block; the test is skipped where nobody may make one."""
    parent = _ROOT / "memory" if (_ROOT / "memory").is_dir() else _ROOT
    folder = parent / f"stoker-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        group = Group(folder)
        group.limit(nbytes)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group
    finally:
        group.remove()
