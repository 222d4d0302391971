"""Refusals of the system (a full disk, an unreadable folder, no memory), as our own errors.

Rules: pure; each says what to do, because the system says only what it did not do.
"""

from __future__ import annotations

import errno

from shared.errors import MachineError

__all__ = ["OUT_OF_ROOM", "is_refusal", "system_error"]

#: Error numbers of a file that cannot grow.
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Error numbers of exhausted resources. Libraries raise exceptions of their own for these, with `errno` set.
_TOO_FEW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_THREAD = "can't start new thread"

#: Message of `tempfile` where there is no place for temporary files; TensorFlow cannot be imported there.
_NO_TEMPORARY = "No usable temporary directory"

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
    places: list[str] = []
    if isinstance(error, MemoryError | RuntimeError):
        got, number = str(error) or "no memory left", errno.ENOMEM
    else:
        got = getattr(error, "strerror", None) or str(error) or type(error).__name__
        number = getattr(error, "errno", None) or 0
    remedy = _REMEDIES.get(number, "Mend that, and start again; --log-level debug says where in the code it was.")
    if isinstance(error, OSError):
        if _NO_TEMPORARY in got:
            where, remedy = where or "TMPDIR", "Set TMPDIR to a folder that this user may write to."
        places = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return MachineError(
        expected="the system to do what it was asked for",
        got=got,
        where=where or " and ".join(places) or "this machine",
        remedy=remedy,
    )
