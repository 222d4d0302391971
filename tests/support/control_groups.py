"""Control groups that tests make, where they may: what is in one has no more memory or CPU than it is given."""

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
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Group", "cpu_quota_group", "limited_group"]

#: The period of a CPU quota.
_PERIOD_US = 100_000

_ROOT = Path("/sys/fs/cgroup")


class Group:
    """A control group, of the first version or the second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_first = (folder / "memory.limit_in_bytes").exists()

    def limit(self, nbytes: int) -> None:
        """Let what is in it have as much memory."""
        (self._folder / ("memory.limit_in_bytes" if self._is_first else "memory.max")).write_text(str(nbytes))

    def limit_cpu(self, cores: float) -> None:
        """Let what is in it have as many cores, maybe a part of one."""
        quota = str(int(cores * _PERIOD_US))
        if (self._folder / "cpu.cfs_quota_us").exists():
            (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(quota)
        else:
            (self._folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")

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
    with _made_group("memory", lambda group: group.limit(nbytes)) as group:
        yield group


@contextmanager
def cpu_quota_group(cores: float) -> Iterator[Group]:
    """For the length of a block; the test is skipped where nobody may make one."""
    with _made_group("cpu", lambda group: group.limit_cpu(cores)) as group:
        yield group


@contextmanager
def _made_group(controller: str, limit: Callable[[Group], None]) -> Iterator[Group]:
    parent = _ROOT / controller if (_ROOT / controller).is_dir() else _ROOT
    folder = parent / f"stoker-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        group = Group(folder)
        limit(group)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield group
    finally:
        group.remove()
