"""The file in which a coordinator writes where it serves, and those who follow it from one address to the next.

Rules: the file holds one endpoint and a newline, and changes atomically, so whatever else is found there counts as
nothing. Who can write the file can lead workers and trainers to a coordinator of their own: with keys that coordinator
would still have to prove itself, without them such a file is refused. A file that says nothing (yet) is waited for, as
a coordinator that does not answer is. Only those who hear nothing look at the file again, because a file system may
hang.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from shared.endpoints import check_coordinator, file_of, is_connectable
from shared.errors import SettingsError
from shared.logs import Log

__all__ = ["FollowedEndpoint", "write_endpoint"]

_LONGEST_ENDPOINT = 4096

#: Who hears nothing for so long looks at the file, and again after each pause.
_QUIET_S = 1.0
_PAUSE_S = 0.25


def write_endpoint(file: Path, endpoint: str) -> None:
    """Put the endpoint into the file, which is replaced as a whole; raises OSError if that cannot be done."""
    number, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(number, "w") as written:
            os.fchmod(number, 0o644)  # trainers may be other users
            written.write(endpoint + "\n")
        Path(draft).replace(file)
    except BaseException:  # an interrupt too: no draft stays
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise


class FollowedEndpoint:
    """A coordinator as somebody named it: by its address, or by the file that says it (`file:///…`).

    Raises a SettingsError if it is neither, or if others may write the file and no keys are used. Once an address is
    known, an unsafe file is only warned of, and the last safe address counts.
    """

    def __init__(self, given: str, *, encrypted: bool) -> None:
        check_coordinator(given)
        #: What was given; errors name it.
        self.given = given
        name = file_of(given)
        self._file = Path(name) if name else None
        self._encrypted = encrypted
        #: The address; empty as long as the file does not say it.
        self.address = "" if name else given
        #: What is wrong with the file, if it says nothing.
        self.problem = ""
        self._look_s = 0.0
        self.look()

    def look(self) -> None:
        """Read the file, if it is one."""
        if self._file is None:
            return
        try:
            address = _read(self._file, encrypted=self._encrypted)
        except SettingsError as error:
            if not self.address:
                raise
            self._note(error.got, str(error))
        except (OSError, RuntimeError) as error:  # the latter of links that lead in a circle
            self._note(getattr(error, "strerror", None) or str(error), str(error))
        else:
            self.problem = ""
            self.address = address

    def has_moved(self, connected: str, quiet_s: float, now_s: float) -> bool:
        """Return whether the coordinator is elsewhere than where we are connected.

        The file is looked at only if the coordinator has been quiet for long, and only so often.
        """
        if self._file is None or quiet_s < _QUIET_S or now_s < self._look_s:
            return False
        self._look_s = now_s + _PAUSE_S
        self.look()
        return self.address != connected

    def _note(self, problem: str, why: str) -> None:
        if problem != self.problem and self.address:
            Log("endpoint").warning("the last address that the file said counts", file=self._file, reason=why)
        self.problem = problem


def _read(file: Path, *, encrypted: bool) -> str:
    """Return the endpoint in the file; OSError if it says none."""
    file = file.resolve()
    number = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{file} is no file")
        if not encrypted:
            _refuse_others(file, status)
        text = os.read(number, _LONGEST_ENDPOINT).decode(errors="replace")
    finally:
        os.close(number)
    address, newline, _ = text.partition("\n")
    if not newline or not is_connectable(address):
        raise OSError(f"the file says {text[:100]!r}, which is no address")
    return address


def _refuse_others(file: Path, status: os.stat_result) -> None:
    """Refuse a file that others than its reader and root may write, or put another one in place of."""
    folder = file.parent.stat()
    for path, found in ((file, status), (file.parent, folder)):
        is_sticky_folder = stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
        if found.st_uid not in (0, os.geteuid()):
            raise _unsafe(file, f"{path}, which belongs to user {found.st_uid}", "run as that user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky_folder:
            raise _unsafe(file, f"{path}, which others may write", f"chmod go-w {path}")


def _unsafe(file: Path, got: str, remedy: str) -> SettingsError:
    return SettingsError(
        expected="keys, or an endpoint file and its folder that only you or root may write",
        got=got,
        where=f"file://{file}",
        remedy=f"Use keys (`loader-server keys`), or {remedy}.",
    )
