"""The process that keeps a coordinator or a worker of a fleet running on its node, for an actor of Ray.

    python -m loader_server.fleet.process_keeper ORDERS

The orders are JSON: `commands`, `listen` and `ends_job` of `ray_settings.Orders`. Reports go out on standard output in
lines of JSON: first the folder of this process, then those of the child, and of its end. A line on standard input says
that the owner has put its files into the folder.

Rules: at the end of its input, however its owner ended, it ends its child in good order, removes its folder, and ends.
A child that ends otherwise is started again after a pause, which grows while it keeps failing. It must not know of Ray.

Ray kills the children of an actor that it ends, and `--parent` signals only a child: a child of the actor would leave
its folder behind, and no other would notice the actor's end. So this process is none: it leaves its parent and its
session as soon as it starts, and what it keeps is its child.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.commands import LONGEST_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LISTEN_FILE", "main"]

#: The file in the folder that says where the child has served, so that its successor serves there as well.
LISTEN_FILE = "listen"

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
    # Made only here, where Ray no longer kills this process with the actor: nobody else would remove it.
    with tempfile.TemporaryDirectory(prefix="stoker-ray-", ignore_cleanup_errors=True) as folder:
        _report(reports, {"folder": folder})
        if os.read(0, 1):
            _keep(Path(folder), json.loads(sys.argv[1]), reports)


def _report(reports: int, facts: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # an owner that has ended is noticed by the input
        os.write(reports, (json.dumps(facts) + "\n").encode())


def _keep(folder: Path, orders: Mapping[str, Any], reports: int) -> None:
    """Run the commands one by one, and keep the last one running, until the owner or the job ends."""
    commands, served, pause_s = list(orders["commands"]), folder / LISTEN_FILE, _FIRST_PAUSE_S
    while True:
        started_s = time.monotonic()
        listen = served.read_text() if served.exists() else orders["listen"]
        known = {"folder": str(folder), "parent": str(os.getpid()), "facts": str(reports), "listen": listen}
        code = _run_child(commands[0], known, reports)
        if code is None:
            return
        if code == 0 and len(commands) > 1:
            del commands[0]
            continue
        is_over = code == 0 and orders["ends_job"]
        _report(reports, {"ended": code, "is_over": is_over})
        if time.monotonic() - started_s > _HEALTHY_S:
            pause_s = _FIRST_PAUSE_S
        else:
            served.unlink(missing_ok=True)  # that port may have been taken meanwhile
        if is_over or _has_owner_ended(pause_s):
            return
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _run_child(command: list[str], known: Mapping[str, str], reports: int) -> int | None:
    """Run a command line, with what only this process knows in place of the names in braces.

    Return its exit code, or None if the owner has ended before: then the child is ended in good order, or killed after
    12 s.
    """
    for name, value in known.items():
        command = [word.replace(f"{{{name}}}", value) for word in command]
    child = subprocess.Popen(
        [sys.executable, "-m", "loader_server", *command],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=(reports,),
    )
    ending = os.pidfd_open(child.pid)
    try:
        while child.poll() is None:
            # In short waits, because Python misses a signal that arrives just as it begins to wait.
            if _has_owner_ended(LONGEST_WAIT_S, ending):
                return None
        return child.returncode
    finally:
        os.close(ending)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_DRAIN_S)
        child.kill()
        child.wait()


def _has_owner_ended(wait_s: float, *others: int) -> bool:
    """Wait for the end of the input, or until another descriptor is ready; return whether the input has ended."""
    return 0 in select.select([0, *others], [], [], wait_s)[0]


if __name__ == "__main__":
    main()
