"""Refusals of the system (a full disk, an unreadable folder, no memory), as our own errors; and its limits.

Rules: each error says what to do, because the system says only what it did not do. Too low limits are refused before a
process begins to serve or to connect, with the limit and what is needed: later they would show as connections that
nobody accepts, or as a process that libzmq ends (it aborts where a thread cannot be started).
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from shared.errors import MachineError

__all__ = ["OUT_OF_ROOM", "is_refusal", "refuse_small_limits", "refuse_small_limits_of_client", "system_error"]

#: Error numbers of a file that cannot grow.
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Error numbers of exhausted resources. Libraries raise exceptions of their own for these, with `errno` set.
_TOO_FEW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_THREAD = "can't start new thread"

#: Message of `tempfile` where there is no place for temporary files; TensorFlow cannot be imported there.
_NO_TEMPORARY = "No usable temporary directory"

#: Open files of a server: some eighty for itself and the files it reads, and as many connections; it accepts no
#: connections while five eighths are taken.
_SERVER_FILES = 256
#: Address space of a server: a worker that serves one small stream has taken 0.8 GiB, most of it for its threads.
_SERVER_MEMORY = 2**30
#: What a trainer, or a command that asks a server, needs beyond what its process uses already.
_CLIENT_FILES, _CLIENT_MEMORY = 32, 128 * 2**20

_MAY_NOT = "Give this user the right to it, or name another place."
_REMEDIES = {
    errno.ENOSPC: "Make room on that disk, and start again; what was there before is whole.",
    errno.EDQUOT: "Make room within the quota, and start again; what was there before is whole.",
    errno.EFBIG: "Allow larger files (ulimit -f), or take another disk.",
    errno.EACCES: _MAY_NOT,
    errno.EPERM: _MAY_NOT,
    errno.EROFS: "Name a place that can be written to.",
    errno.EMFILE: "Allow more open files: ulimit -n.",
    errno.ENFILE: "Allow the machine more open files: sysctl fs.file-max.",
    errno.ENOMEM: "Give it more memory, or allow it more: ulimit -v.",
}


def is_refusal(error: BaseException) -> bool:
    """Return whether the system refused something, as opposed to a defect in our code or a user's."""
    if isinstance(error, OSError | MemoryError) or getattr(error, "errno", None) in _TOO_FEW:
        return True
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def system_error(error: BaseException, where: str = "") -> MachineError:
    """Return the system's refusal as a MachineError.

    `where` names what was worked on, for errors that name no file.
    """
    if isinstance(error, MemoryError | RuntimeError):  # of memory, and of threads, which need memory
        got, number = str(error) or "no memory left", errno.ENOMEM
    else:
        got = getattr(error, "strerror", None) or str(error) or type(error).__name__
        number = getattr(error, "errno", None) or 0
    remedy = _REMEDIES.get(number, "Mend that, and start again; --log-level debug says where in the code it was.")
    if _NO_TEMPORARY in got:
        where, remedy = where or "TMPDIR", "Set TMPDIR to a folder that this user may write to."
    # A rename names both files; errors of libraries, which have only a number, name none.
    names = (getattr(error, "filename", None), getattr(error, "filename2", None))
    places = [str(name) for name in names if name is not None]
    return MachineError(
        expected="the system to do what it was asked for",
        got=got,
        where=where or " and ".join(places) or "this machine",
        remedy=remedy,
    )


def refuse_small_limits() -> None:
    """Raise a MachineError if this process may have too few open files, or too little address space, to serve."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # servers raise theirs as far as they may
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    _refuse_below("open files (ulimit -n)", files, _SERVER_FILES, 1, "LimitNOFILE=")
    _refuse_below("MiB of address space (ulimit -v)", memory, _SERVER_MEMORY, 2**20, "LimitAS=")


def refuse_small_limits_of_client() -> None:
    """Raise a MachineError if too few open files, or too little address space, are left for connections."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    _refuse_below("open files (ulimit -n)", files, _files_in_use() + _CLIENT_FILES, 1, "LimitNOFILE=")
    _refuse_below("MiB of address space (ulimit -v)", memory, _memory_in_use() + _CLIENT_MEMORY, 2**20, "LimitAS=")


def _refuse_below(resource_name: str, limit: int, least: int, unit: int, in_a_unit: str) -> None:
    """Raise a MachineError if a limit is below what is needed; `unit` is the unit of both in the message."""
    if limit != resource.RLIM_INFINITY and limit < least:
        raise MachineError(
            expected=f"at least {-(-least // unit)} {resource_name}",
            got=f"a limit of {limit // unit}",
            where="this process",
            remedy=f"Raise the limit where it is set: in the shell, in the service's file ({in_a_unit}), or of the "
            "container.",
        )


def _files_in_use() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _memory_in_use() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
