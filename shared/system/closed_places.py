"""Places that this user may not write to: a read-only file system, or another user's folder or file.

Rules: looking neither makes nor changes anything. The kernel is asked with the rights that this process has now, which
capabilities add to; some network file systems know better only when something is written.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from shared.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CLOSED", "CLOSED_REMEDY", "refuse_closed", "why_closed"]

#: Error numbers of a place that may not be written to.
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)

CLOSED_REMEDY = "Let this user write there (chown, chmod, a mount that is not read-only), or name another place."


def why_closed(place: Path) -> str:
    """Return the reason why a file or folder can be neither written nor made, or "" if it can."""
    try:
        there = place.absolute()
        # What does not exist yet can be made if its nearest existing folder may be written to.
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        rights = os.W_OK | os.X_OK if there.is_dir() else os.W_OK
        if os.access(there, rights, effective_ids=True):
            return ""
        status = there.stat()
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            return f"{there}, which is on a read-only file system"
    except OSError as error:
        return f"{place}: {error.strerror}"
    return f"{there} of user {status.st_uid} with mode {status.st_mode & 0o7777:o}"


def refuse_closed(folder: Path, *, where: str) -> None:
    """Raise a SettingsError if a folder can be neither written to nor made.

    Args:
        folder: The folder, which need not exist yet.
        where: Where it was named, such as a setting or an option.
    """
    why = why_closed(folder)
    if why:
        raise SettingsError(
            expected=f"a folder that user {os.geteuid()} may write to", got=why, where=where, remedy=CLOSED_REMEDY
        )
