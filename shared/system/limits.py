"""Limits of the system on a process, checked before it begins to serve or to connect.

Rules: too low limits are refused at once, with the limit and what is needed: later they would show as connections that
nobody accepts, or as a process that libzmq ends (it aborts where a thread cannot be started).
"""

from __future__ import annotations

import resource
from pathlib import Path

from shared.errors import MachineError

__all__ = ["refuse_small_limits", "refuse_small_limits_of_client"]

#: Open files of a server: some eighty for itself and the files it reads, and as many connections; it accepts no
#: connections while five eighths are taken.
_SERVER_FILES = 256
#: Address space of a server: a worker that serves one small stream has taken 0.8 GiB, most of it for its threads.
_SERVER_MEMORY = 2**30
#: What a trainer, or a command that asks a server, needs beyond what its process uses already.
_CLIENT_FILES, _CLIENT_MEMORY = 32, 128 * 2**20


def refuse_small_limits() -> None:
    """Raise a MachineError if this process may have too few open files, or too little address space, to serve."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # servers raise theirs as far as they may
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    _refuse("open files (ulimit -n)", files, _SERVER_FILES, 1, "LimitNOFILE=")
    _refuse("MiB of address space (ulimit -v)", memory, _SERVER_MEMORY, 2**20, "LimitAS=")


def refuse_small_limits_of_client() -> None:
    """Raise a MachineError if too few open files, or too little address space, are left for connections."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    _refuse("open files (ulimit -n)", files, _files_in_use() + _CLIENT_FILES, 1, "LimitNOFILE=")
    least = _memory_in_use() + _CLIENT_MEMORY
    _refuse("MiB of address space (ulimit -v)", memory, least, 2**20, "LimitAS=")


def _refuse(what: str, limit: int, least: int, unit: int, in_a_unit: str) -> None:
    """Raise a MachineError if a limit is below what is needed; `unit` is the unit of both in the message."""
    if limit != resource.RLIM_INFINITY and limit < least:
        raise MachineError(
            expected=f"at least {-(-least // unit)} {what}",
            got=f"a limit of {limit // unit}",
            where="this process",
            remedy=f"Raise the limit where it is set: in the shell, in the service's file ({in_a_unit}), or of the "
            "container.",
        )


def _files_in_use() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _memory_in_use() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return pages * resource.getpagesize()
