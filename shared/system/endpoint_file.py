"""A coordinator's endpoint file: the coordinator writes its address there, and others follow it when it moves.

Rules: the file holds one endpoint and a newline, and changes atomically; any other content counts as no address.
Anyone who can write the file can lead workers and trainers to a coordinator of their own: with keys that coordinator
would still have to prove itself, without them such a file is refused. A file without an address (yet) is waited for, as
an unanswering coordinator is. The file is read again only while the coordinator is silent, because a file system may
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

#: The file is read after this much silence, and again after each pause.
_QUIET_S = 1.0
_PAUSE_S = 0.25


def write_endpoint(file: Path, endpoint: str) -> None:
    """Replace the file with one that holds the endpoint; raise OSError if that fails."""
    number, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(number, "w") as written:
            os.fchmod(number, 0o644)  # trainers may be other users
            written.write(endpoint + "\n")
        Path(draft).replace(file)
    except BaseException:  # re-raised, an interrupt too: the draft must not stay
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise


class FollowedEndpoint:
    """A coordinator's address, given as such or by the file that holds it (`file:///…`).

    Raises a SettingsError if it is neither, or if others may write the file and no keys are used. A file that cannot be
    read or holds no address leaves `address` empty and is noted in `problem`. Once an address is
    known, an unsafe file only logs a warning, and the last safe address counts.
    """

    def __init__(self, given: str, *, encrypted: bool) -> None:
        check_coordinator(given)
        #: The endpoint or file as given; errors name it.
        self.given = given
        name = file_of(given)
        self._file = Path(name) if name else None
        self._encrypted = encrypted
        #: The address; empty until the file holds one.
        self.address = "" if name else given
        #: Why the file gave no address at the last look; empty if it did.
        self.problem = ""
        self._look_s = 0.0
        self.look()

    def look(self) -> None:
        """Read the address from the file, if there is one; keep the last address and note the problem if that fails.

        Raise SettingsError if the file is unsafe and no address is known yet.
        """
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
        """Return whether the coordinator's address differs from the connected one; False if there is no file.

        The file is read only after a silence of `_QUIET_S`, and at most every `_PAUSE_S`; return False in between.
        Raise SettingsError if the file is unsafe and no address is known yet.
        """
        if self._file is None or quiet_s < _QUIET_S or now_s < self._look_s:
            return False
        self._look_s = now_s + _PAUSE_S
        self.look()
        return self.address != connected

    def _note(self, problem: str, reason: str) -> None:
        """Remember why the file gave no address; log a new reason once if the last address stays in use."""
        if problem != self.problem and self.address:
            Log("endpoint").warning(
                "endpoint file cannot be used: its last address stays valid", file=self._file, reason=reason
            )
        self.problem = problem


def _read(file: Path, *, encrypted: bool) -> str:
    """Return the endpoint in the file.

    Raise OSError if it cannot be read, is no regular file or holds no endpoint, RuntimeError for links that lead in a
    circle, and SettingsError if others may write it and no keys are used.
    """
    file = file.resolve()
    number = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{file} is no file")
        if not encrypted:
            _refuse_others(file, status)
        text = os.read(number, _LONGEST_ENDPOINT).decode(errors="replace")
    finally:
        os.close(number)
    # Without its newline the file is not one of ours, or was cut.
    address, newline, _ = text.partition("\n")
    if not newline or not is_connectable(address):
        raise OSError(f"the file says {text[:100]!r}, which is no address")
    return address


def _refuse_others(file: Path, status: os.stat_result) -> None:
    """Raise SettingsError if others than this user and root may write the file or replace it in its folder.

    A folder that others may write to is accepted if it is sticky, such as /tmp.
    """
    for path, state in ((file, status), (file.parent, file.parent.stat())):
        # In a sticky folder, such as /tmp, others may add files but not replace this one.
        is_sticky_folder = stat.S_ISDIR(state.st_mode) and bool(state.st_mode & stat.S_ISVTX)
        if state.st_uid not in (0, os.geteuid()):
            raise _unsafe(file, f"{path}, which belongs to user {state.st_uid}", "run as that user")
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky_folder:
            raise _unsafe(file, f"{path}, which others may write", f"chmod go-w {path}")


def _unsafe(file: Path, got: str, remedy: str) -> SettingsError:
    return SettingsError(
        expected="keys, or an endpoint file and its folder that only you or root may write",
        got=got,
        where=f"file://{file}",
        remedy=f"Use keys (`loader-server keys`), or {remedy}.",
    )
