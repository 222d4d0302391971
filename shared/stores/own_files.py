"""Files that only processes of ours make and write, in a folder that others may be able to write to as well.

Rules: a link, pipe or device in the place of such a file is refused, never followed: it could direct our data into
somebody else's file. A file that appears whole is written as a draft first, under a name that nobody can guess, and
renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

from shared.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

__all__ = ["draft_of", "open_own", "refuse_linked_folder", "replacing", "sync_folder"]


def open_own(path: Path | str, flags: int, mode: int = 0o644) -> int:
    """Open a file of ours and return its descriptor; raise MachineError if something else is in its place.

    `mode` are the rights of a file that is made by this. Raise OSError as `os.open` does.
    """
    # Without O_NONBLOCK, opening a pipe that somebody planted would wait for its other end for ever.
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads
            raise _planted(path, "a link" if error.errno == errno.ELOOP else "a pipe") from None
        raise
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

    `draft` is its name if it is to be made in another folder than `path`. Without `sync` a power cut may leave a torn
    file under the final name: only for content that is checked when it is read.
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
    """Wait until the disk has the names in a folder: a file that is synced may still lose its name in a power cut."""
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
