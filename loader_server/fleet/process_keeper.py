"""The process that keeps a coordinator or a worker of a fleet running on its node, for an actor of Ray.

    python -m loader_server.fleet.process_keeper 10.0.0.7

The argument is the node's address for others. Orders come in lines of JSON on standard input, reports go out in lines
of JSON on standard output.

Rules: the first line is that of `ray_settings.Orders`; later ones replace files (`{"files": {…}}`). At the end of its
input, however its owner ended, it ends its child in good order, removes its folder, and ends. A child that ends
otherwise is started again after a pause, which grows while it keeps failing. It must not know of Ray.

Ray kills the children of an actor that it ends, which would leave folder and grandchildren behind; so this process is
none: it leaves its parent and its session as soon as it starts.
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
from shared.stores.own_files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Lines", "ProcessKeeper", "main"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
#: A child that lived for this long has not failed at its start: its successor need not wait for long.
_HEALTHY_S = 2.0
#: Interval of looks at a child that has closed its pipe, and so is about to end.
_ENDING_S = 0.05
#: How long a child may take to end in good order; a host that joined drains for at most 10 s.
_DRAIN_S = 12.0


class Lines:
    """A pipe that is read line by line, without waiting."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        #: Whether the other side has closed it.
        self.is_ended = False
        self._begun = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects in the lines that have come, and skip other lines; note the end of the pipe."""
        # A poll instead of a non-blocking descriptor: that is a property of the pipe, which others have as well.
        while not self.is_ended and select.select([self.descriptor], [], [], 0)[0]:
            content = os.read(self.descriptor, 2**16)
            self.is_ended = not content
            *lines, self._begun = (self._begun + content).split(b"\n")
            yield from filter(None, map(_object, lines))


def _object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one for any other line, such as one that the user's code wrote."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


class ProcessKeeper:
    """The keeper of one child, below a folder of its own."""

    def __init__(self, orders: Lines, reports: int, folder: Path, address: str) -> None:
        self._orders, self._reports = orders, reports
        self._known = {"folder": str(folder), "address": address, "parent": str(os.getpid())}
        self._folder = folder
        #: Command lines that are still to be run; the last one is kept running.
        self._commands: list[list[str]] = []
        self._ends_job = self._is_over = False
        #: Where to serve: as it was ordered, and where the child served last.
        self._ordered = self._listen = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._facts: Lines | None = None
        self._started_s = self._again_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def run(self) -> None:
        """Keep the child running until the input ends or the job does; then end the child.

        Raise OSError if a file of the orders cannot be written, or no process can be started.
        """
        try:
            while not self._orders.is_ended and not self._is_over:
                for orders in self._orders.read():
                    self._take(orders)
                self._hear()
                self._look(time.monotonic())
                self._wait()
        finally:
            self._end()

    def _wait(self) -> None:
        """Wait until an order or a report comes, or the child is due to be started; half a second at most."""
        pipes = [lines.descriptor for lines in (self._orders, self._facts) if lines is not None and not lines.is_ended]
        if self._child is None:
            wait_s = self._again_s - time.monotonic() if self._commands else LONGEST_WAIT_S
        else:
            # The end of its pipe comes just before its own; a grandchild that holds the pipe open only delays this.
            wait_s = LONGEST_WAIT_S if len(pipes) > 1 else _ENDING_S
        select.select(pipes, [], [], max(0.0, min(wait_s, LONGEST_WAIT_S)))

    def _take(self, orders: Mapping[str, Any]) -> None:
        """Write the files of an order, and note its other parts; raise OSError if a file cannot be written."""
        for name, content in orders.get("files", {}).items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(content.encode())
            path.chmod(0o600)
        self._commands = orders.get("commands", self._commands)
        self._ordered = orders.get("listen", self._ordered)
        self._ends_job = orders.get("ends_job", self._ends_job)

    def _hear(self) -> None:
        """Pass on what the child has reported, and note where it serves."""
        for report in self._facts.read() if self._facts is not None else ():
            self._listen = str(report.get("endpoint", self._listen))
            self._report(report)

    def _report(self, report: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # an owner that has ended is noticed by its orders
            os.write(self._reports, (json.dumps(report) + "\n").encode())

    def _look(self, now_s: float) -> None:
        """Start the child if that is due, and note its end."""
        if self._child is None:
            if self._commands and now_s >= self._again_s:
                self._start(now_s)
            return
        code = self._child.poll()
        if code is None:
            return
        self._hear()  # its last words
        self._forget()
        self._note_end(code, now_s)

    def _start(self, now_s: float) -> None:
        reading, writing = os.pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "loader_server", *self._filled(self._commands[0], str(writing))],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # standard output is for reports
                pass_fds=(writing,),
            )
        except BaseException:  # nobody reads it
            os.close(reading)
            raise
        finally:
            os.close(writing)  # with our copy open the pipe would not end with the child
        self._facts, self._started_s = Lines(reading), now_s

    def _filled(self, command: list[str], facts: str) -> list[str]:
        """Return a command line with what only this process knows in place of the names in braces."""
        known = self._known | {"facts": facts, "listen": self._listen or self._ordered}
        for name, value in known.items():
            command = [word.replace(f"{{{name}}}", value) for word in command]
        return command

    def _note_end(self, code: int, now_s: float) -> None:
        """Go on to the next command, end if the job has ended, or set when to start the child again."""
        if code == 0 and len(self._commands) > 1:
            self._commands = self._commands[1:]
            return
        self._is_over = code == 0 and self._ends_job
        was_healthy = now_s - self._started_s > _HEALTHY_S
        # Where it served before, so that trainers find it again; but that port may have been taken meanwhile.
        self._listen = self._listen if was_healthy else ""
        self._pause_s = _FIRST_PAUSE_S if was_healthy else self._pause_s
        self._again_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._report({"ended": code, "is_over": self._is_over})

    def _end(self) -> None:
        """End the child in good order, or kill it after 12 s."""
        if self._child is not None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_DRAIN_S)
            self._child.kill()
            self._child.wait()
            self._forget()

    def _forget(self) -> None:
        self._child = None
        if self._facts is not None:
            os.close(self._facts.descriptor)
            self._facts = None


def main() -> None:
    """Leave the parent, and keep a child as the orders on standard input say, until they end; then end this process.

    Raise OSError if the system refuses a folder, file or process.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Only for the reports: whatever else writes to standard output, such as a child, goes to the log.
    reports = os.dup(1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="stoker-ray-", ignore_cleanup_errors=True) as folder:
        ProcessKeeper(Lines(0), reports, Path(folder), sys.argv[1]).run()


if __name__ == "__main__":
    main()
