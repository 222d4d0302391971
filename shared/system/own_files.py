"""Files that only processes of ours make and write, in a folder that others may be able to write to as well.

Rule: a link, pipe or device that somebody put in the place of such a file is refused, never followed: what is written
there would end up in a file of somebody else's.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from shared.errors import MachineError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["open_own", "refuse_linked_folder"]


def open_own(path: Path | str, flags: int) -> int:
    """Open a file of ours and return its descriptor; MachineError if something else is in its place."""
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads
            raise _planted(path, "a link" if error.errno == errno.ELOOP else "a pipe") from None
        raise
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
        return number
    os.close(number)
    raise _planted(path, "a second name of another file" if stat.S_ISREG(status.st_mode) else "a pipe or device")


def refuse_linked_folder(folder: Path) -> None:
    """Raise a MachineError if a folder of ours is a link to another one."""
    if folder.is_symlink():
        raise _planted(folder, "a link")


def _planted(path: Path | str, got: str) -> MachineError:
    return MachineError(
        expected="a file or folder that only Stoker makes",
        got=got,
        where=str(path),
        remedy="Remove it, and see who may write to that folder.",
    )
