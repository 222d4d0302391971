"""A module of ours in a process that has no more rights than any user, and may be on a read-only machine.

    python -m tests.support.closed loader_server worker job.toml …
    python -m tests.support.closed only=/srv/cache loader_server run tcp://loader-a:7400 --state /srv/cache

Root's capabilities are dropped, so modes of files and folders count. With `only=FOLDER` all file systems are read-only
except that folder, as in a container that is started so: `/tmp` and `/dev/shm` as well; and there is no HOME. With
`only=` there is no such folder.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import struct
import subprocess
import sys
from pathlib import Path

__all__ = ["CLOSED", "may_close"]

#: The module's own name, to run it by.
CLOSED = "tests.support.closed"

ROOT = Path(__file__).resolve().parents[2]

_LIBC = ctypes.CDLL(None, use_errno=True)

_PR_SET_SECUREBITS, _NO_ROOT = 28, 3
_CAPABILITIES_3 = 0x20080522
_NEW_MOUNTS = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18


def may_close() -> bool:
    """Return whether file systems can be made read-only for one process here."""
    trial = [sys.executable, "-m", CLOSED, "only=", "this"]
    return os.geteuid() == 0 and subprocess.run(trial, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _drop_rights() -> None:
    """Give up all capabilities, those of children that execute another program as well."""
    if os.geteuid() == 0:
        _call("prctl", _PR_SET_SECUREBITS, _NO_ROOT, 0, 0, 0)
    _call("capset", struct.pack("Ii", _CAPABILITIES_3, 0), bytes(24))


def _open_only(folder: str) -> None:
    """Make all file systems read-only for this process and its children, except for one folder if it is named."""
    _call("unshare", _NEW_MOUNTS)
    _mount("", "/", _RECURSIVE | _PRIVATE)
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if folder:
        _mount(folder, folder, _BIND)
    for place in mounted:
        if not place.startswith(("/proc", "/sys")):
            _mount("", place, _REMOUNT | _BIND | _READ_ONLY)
    for name in ("HOME", "TMPDIR", "TEMP", "TMP"):
        os.environ.pop(name, None)


def _mount(source: str, target: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), b"", flags, b"")


def _call(name: str, *arguments: int | bytes) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main() -> None:
    """Close what is to be closed, and become the module."""
    del sys.argv[0]
    if sys.argv[0].startswith("only="):
        _open_only(sys.argv.pop(0).removeprefix("only="))
    _drop_rights()
    if sys.argv[0] != "this":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
