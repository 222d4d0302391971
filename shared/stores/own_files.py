"""Files that only processes of ours make and write, in a folder that others may be able to write to as well.

Rules: a link, pipe or device in the place of such a file is refused, never followed: it could direct our data into
somebody else's file. A file that appears whole is written as a draft first, under a name that nobody can guess, and
renamed. A folder that this user may not write to is refused before anything is made in it; looking makes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

from shared.errors import MachineError, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

__all__ = [
    "CLOSED", "CLOSED_REMEDY", "draft_of", "open_own", "refuse_closed", "refuse_linked_folder", "replacing",
    "sync_folder", "why_closed",
]  # fmt: skip

#: Error numbers of a place that may not be written to.
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)

#: What is in the place of a file, by the error of opening it: a pipe only if nobody reads it.
_IN_THE_WAY = {errno.ELOOP: "a link", errno.ENXIO: "a pipe"}

CLOSED_REMEDY = "Let this user write there (chown, chmod, a mount that is not read-only), or name another place."


def why_closed(place: Path) -> str:
    """Return the reason why a file or folder can be neither written nor made, or "" if it can.

    An OSError while looking is such a reason as well.
    """
    try:
        existing = place.absolute()
        # What does not exist yet can be made if its nearest existing folder may be written to.
        while not os.path.lexists(existing) and existing != existing.parent:
            existing = existing.parent
        rights = os.W_OK | os.X_OK if existing.is_dir() else os.W_OK
        # The kernel is asked, not the mode: capabilities and read-only mounts count as well. Some network file systems
        # know better only when something is written.
        if os.access(existing, rights, effective_ids=True):
            return ""
        status = existing.stat()
        if os.statvfs(existing).f_flag & os.ST_RDONLY:
            return f"{existing}, which is on a read-only file system"
    except OSError as error:
        return f"{place}: {error.strerror}"
    return f"{existing} of user {status.st_uid} with mode {status.st_mode & 0o7777:o}"


def refuse_closed(folder: Path, *, where: str) -> None:
    """Raise a SettingsError if a folder can be neither written to nor made.

    Args:
        folder: The folder, which need not exist yet.
        where: Where it was named, such as a setting or an option.
    """
    reason = why_closed(folder)
    require(
        not reason,
        expected=f"a folder that user {os.geteuid()} may write to",
        got=reason,
        where=where,
        remedy=CLOSED_REMEDY,
    )


def open_own(path: Path | str, flags: int, mode: int = 0o644) -> int:
    """Open a file of ours and return its descriptor; raise MachineError if something else is in its place.

    That is a link, a pipe, a device, or a second name of another file. `mode` are the rights of a file that is made by
    this. Raise OSError as `os.open` does.
    """
    # Without O_NONBLOCK, opening a pipe that somebody planted would wait for its other end for ever.
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise _planted(path, _IN_THE_WAY[error.errno]) from None
    # A hard link is a second name of a file elsewhere, which O_NOFOLLOW does not notice.
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
        return number
    os.close(number)
    raise _planted(path, "a second name of another file" if stat.S_ISREG(status.st_mode) else "a pipe or device")


def draft_of(path: Path) -> Path:
    """Return a draft's name beside `path`; open it with "x", which follows no link.

    The draft of a process that was killed stays; folders that get many of them remove `*.tmp*`.
    """
    return path.with_name(f"{path.name}.tmp{secrets.token_hex(8)}")


@contextlib.contextmanager
def replacing(path: Path, draft: Path | None = None, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a draft that replaces `path` at the end of the block: synced and whole, or not at all.

    If the block raises, the draft is removed and `path` stays as it is. `draft` is its name if it is to be made in
    another folder than `path`; raise FileExistsError if it exists, and OSError if writing fails. Without `sync` a power
    cut may leave a torn file under the final name: only for content that is checked when it is read.
    """
    draft = draft or draft_of(path)
    try:
        with draft.open("x+b") as file:
            yield file
            file.flush()
            if sync:  # before the rename, or a power cut could leave the new name with an empty file
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:  # re-raised, an interrupt too: the draft must not stay
        draft.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: a file that is synced may still lose its name in a power cut.

    Raise OSError if the folder is missing or that fails.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
