"""The process that keeps a coordinator or a worker of a fleet running on its node, for an actor of Ray.

    python -m loader_server.fleet.process_keeper ORDERS

The orders are JSON: `commands`, command lines of `loader-server` of which the last is kept running, and `ends_job`.
Each line of standard input is a JSON object of files for this process's own folder. Reports leave by standard output.

Rules: at the end of its input, however its owner ended, it ends its child in good order, removes its folder, and ends.
It must not know of Ray.

Why a process: when Ray ends an actor it kills the actor's children, and `--parent` signals only a child. A child of the
actor would be killed undrained, and leave keys behind. So this process leaves its parent and session at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shared.commands import LONGEST_WAIT_S
from shared.stores.locks import lock
from shared.stores.own_files import replacing

__all__ = ["LISTEN_FILE", "main"]

#: The file that says where the child is to serve: at first as ordered, then where its predecessor did.
LISTEN_FILE = "listen"

_PREFIX = "stoker-ray-"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
#: A child that lived for this long has not failed at its start: its successor need not wait for long.
_HEALTHY_S = 2.0
#: How long a child may take to end in good order; a host that joined drains for at most 10 s.
_DRAIN_S = 12.0


def main() -> None:
    """Leave the parent, and keep a child as the orders say, until the input ends; then end this process.

    Raise OSError if the system refuses a folder or a process.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Only for the reports: whatever else writes to standard output, such as a child, goes to the log.
    reports = os.dup(1)
    os.dup2(2, 1)
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        lock(in_use := os.open(folder, os.O_RDONLY), wait=True)
        _KeptProcess(Path(folder), in_use, reports).keep(json.loads(sys.argv[1]))


def _remove_left() -> None:
    """Remove the folders, which may hold keys, of keepers that were killed together with their owners."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # An empty folder may be one that its maker is about to lock.
                if lock(handle, wait=False) and any(folder.iterdir()):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_DRAIN_S)
    child.kill()
    child.wait()


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode())
    path.chmod(0o600)


class _KeptProcess:
    """The child that is kept, with the folder, the descriptor of its lock, and that of the reports."""

    def __init__(self, folder: Path, in_use: int, reports: int) -> None:
        self._folder, self._in_use, self._reports = folder, in_use, reports
        # Unbuffered, so that nothing lies in a buffer where `select` does not see it.
        self._owner = io.FileIO(0)
        self._report(folder=str(folder))

    def keep(self, orders: dict[str, Any]) -> None:
        """Run commands one by one, each again until its exit code is 0, the last for ever, until owner or job ends."""
        if self._has_owner_ended(None):  # its first line has the files without which nothing can start
            return
        commands, pause_s, served = list(orders["commands"]), _FIRST_PAUSE_S, self._folder / LISTEN_FILE
        listen = served.read_text() if served.exists() else ""
        while True:
            started_s = time.monotonic()
            code = self._run_child(commands[0], served.read_text() if listen else "")
            if code is None:
                return
            if code == 0 and len(commands) > 1:
                del commands[0]
                continue
            is_over = code == 0 and orders["ends_job"]
            self._report(ended=code, is_over=is_over)
            if time.monotonic() - started_s > _HEALTHY_S:
                pause_s = _FIRST_PAUSE_S
            else:
                served.write_text(listen)  # the port of a predecessor may have been taken meanwhile
            if is_over or self._has_owner_ended(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run_child(self, command: list[str], listen: str) -> int | None:
        """Run a command line, with what only this process knows in place of the names in braces.

        Return its exit code, or None if the owner has ended before: then the child is ended in good order, or killed
        after 12 s. Raise OSError if it cannot be started, or a file of the owner's cannot be written.
        """
        known = {"folder": self._folder, "parent": os.getpid(), "reports": self._reports, "listen": listen}
        for name, value in known.items():
            command = [word.replace(f"{{{name}}}", str(value)) for word in command]
        child = subprocess.Popen(
            [sys.executable, "-m", "loader_server", *command],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            pass_fds=(self._reports, self._in_use),  # the folder is in use as long as the child lives
        )
        ending = os.pidfd_open(child.pid)
        try:
            while child.poll() is None:
                # In short waits, because Python misses a signal that arrives just as it begins to wait.
                if self._has_owner_ended(LONGEST_WAIT_S, ending):
                    return None
            return child.returncode
        finally:
            os.close(ending)
            _end(child)

    def _has_owner_ended(self, wait_s: float | None, *others: int) -> bool:
        """Wait for the owner, or until another descriptor is ready; write the files that the owner sends.

        Return whether the owner has ended; False if nothing came in time. OSErrors of writing pass.
        """
        if 0 not in select.select([0, *others], [], [], wait_s)[0]:
            return False
        line = self._owner.readline()
        has_ended = not line.endswith(b"\n")
        for name, content in () if has_ended else json.loads(line).items():
            _write(self._folder / name, content)
        return has_ended

    def _report(self, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # an owner that has ended is noticed by the input
            os.write(self._reports, (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    main()
