"""Conductor of a load test: starts crews, has all trainers begin at the same moment, and combines their results.

Rules: crews are new processes that get their orders in JSON; the only place where we wait is `Interrupts.wait`, so
Ctrl-C ends everything in good order at any moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from shared.commands import Terminated
from shared.errors import StokerError
from trainer_client.core.heard_limits import limit_of_span
from trainer_client.load_test.delivery_audit import Lap, audited
from trainer_client.load_test.report.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType

    from trainer_client.load_test.delivery_audit import Discrepancies
    from trainer_client.load_test.thin_trainer import ThinRun

__all__ = ["AttachError", "CrewError", "Interrupts", "Measured", "conduct"]

#: Time between the order to begin and the beginning, so that all crews have received it.
_LEAD_S = 0.3

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class AttachError(StokerError):
    """Some trainers could not attach, so there is nothing to measure; the exit code is that of the first error."""

    def __init__(self, *, exit_code: int, expected: str, got: str, where: str, remedy: str) -> None:
        super().__init__(expected=expected, got=got, where=where, remedy=remedy)
        self.exit_code = exit_code


class CrewError(StokerError):
    """A process of the test ended early."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """Measurements of all trainers together."""

    steps: int = 0
    rows: int = 0
    nbytes: int = 0
    wall_s: float = 0.0
    #: Processor time of crews and conductor, and of the loaders (None: they are not ours).
    harness_cpu_s: float = 0.0
    loader_cpu_s: float | None = None
    audit: Discrepancies | None = None
    errors: list[str] = field(default_factory=list)
    #: Exit codes that belong to the errors.
    exit_codes: list[int] = field(default_factory=list)
    waits: Histogram = field(default_factory=Histogram)
    by_second: dict[int, Histogram] = field(default_factory=dict)
    #: Compute time over total time of each trainer, by rank; empty if there was no compute.
    utilisations: dict[int, float] = field(default_factory=dict)
    compute_s: float = 0.0
    total_s: float = 0.0
    #: By limit: for how many seconds trainers heard it, all together, and in words what it is and what would help.
    limits: dict[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """Return in words what limited the test for longest and what would help; "unknown" if no trainer heard it."""
        if not self.limits:
            return "unknown"
        return self.limits[limit_of_span({limit: seconds for limit, (seconds, _) in self.limits.items()})][1]

    @property
    def utilisation(self) -> float | None:
        """Return compute time over total time of all trainers together, or None if nothing was computed."""
        return self.compute_s / self.total_s if self.compute_s else None


class _Process:
    """One crew's process, as the conductor sees it.

    Making it raises CrewError if it ends at once, and OSError if it cannot be started.
    """

    def __init__(self, run: ThinRun, ranks: Sequence[int]) -> None:
        self.ranks = ranks
        self.ready = False
        #: Errors of trainers that could not attach, with exit codes.
        self.failed: list[tuple[str, int]] = []
        self.result: dict[str, Any] | None = None
        #: Batches that its trainers have got so far.
        self.progress = 0
        #: The beginning of a message whose end has not come yet.
        self._partial = b""
        command = [sys.executable, "-m", "trainer_client.load_test.crew"]
        # In a session of its own: a terminal's Ctrl-C comes to us alone, and we end the crews in good order.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        #: The descriptor of its output.
        self.file = self._output.fileno()
        self.tell(run=asdict(run), ranks=list(ranks))

    def tell(self, **line: object) -> None:
        """Send it a message; raise CrewError if it has ended."""
        try:
            self._input.write((json.dumps(line) + "\n").encode())
            self._input.flush()
        except BrokenPipeError:
            raise self._make_end_error() from None

    def hear(self) -> None:
        """Wait for its next messages and note what they say; raise CrewError if it ended without a result.

        A message that is cut at its end waits for the next call.
        """
        received = os.read(self.file, 2**20)
        if not received and self.result is None:
            raise self._make_end_error()
        *lines, self._partial = (self._partial + received).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            self.ready = self.ready or "ready" in message
            self.failed += message.get("failed", [])
            self.progress = message.get("progress", self.progress)
            self.result = message.get("result", self.result)

    def _make_end_error(self) -> CrewError:
        return CrewError(
            expected=f"the process of trainers {self.ranks[0]} to {self.ranks[-1]} to go on",
            got=f"its end, with exit code {self.process.wait()}",
            where="load test",
            remedy="See its own error above. If it was killed, memory may be short: use fewer trainers.",
        )

    def close(self) -> None:
        """End the process, which exits when its input ends; kill it after 5 s."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()


def conduct(
    run: ThinRun,
    processes: int,
    interrupts: Interrupts,
    loader_cpu_s: Callable[[], float] | None,
    on_progress: Callable[[int], None],
) -> Measured:
    """Run the test once, with all ranks in so many processes, tell how many batches came, and return the measurements.

    Raise AttachError if a trainer cannot attach, CrewError if a process ends early, ValueError if the world exceeds the
    group, and KeyboardInterrupt (or Terminated) at a signal; all processes are ended in any case. OSError of `_Process`
    passes through.
    """
    crews: list[_Process] = []
    try:
        for share in range(processes):
            # Consecutive ranks, divided as evenly as possible. Appended one at a time, so that `finally` closes those
            # that were started.
            ranks = range(run.world * share // processes, run.world * (share + 1) // processes)
            crews.append(_Process(run, ranks))
        _listen(crews, interrupts, lambda crew: crew.ready, on_progress)
        _refuse_if_some_failed(crews)
        # Everyone begins at the same moment of the monotonic clock, which all processes of a machine share.
        began_s = time.monotonic() + _LEAD_S
        for crew in crews:
            crew.tell(begin_s=began_s)
        own_s, loader_s = time.process_time(), loader_cpu_s() if loader_cpu_s else 0.0
        _listen(crews, interrupts, lambda crew: crew.result is not None, on_progress)
        measured = _combined(crews, run.world)
        measured.harness_cpu_s += time.process_time() - own_s
        if loader_cpu_s is not None:
            measured.loader_cpu_s = loader_cpu_s() - loader_s
        return measured
    finally:
        for crew in crews:
            crew.close()


def _listen(
    crews: list[_Process],
    interrupts: Interrupts,
    is_done: Callable[[_Process], bool],
    on_progress: Callable[[int], None],
) -> None:
    """Read messages of the crews until each is done, and tell how many batches came; raise CrewError if one ends early.

    Raise KeyboardInterrupt (or Terminated) at a signal.
    """
    while waiting := {crew.file: crew for crew in crews if not is_done(crew)}:
        for file in interrupts.wait(list(waiting), None):
            waiting[file].hear()
        on_progress(sum(crew.progress for crew in crews))


def _refuse_if_some_failed(crews: list[_Process]) -> None:
    """Raise AttachError with the first error and its exit code if any trainer could not attach."""
    failures = [failure for crew in crews for failure in crew.failed]
    if failures:
        error, exit_code = failures[0]
        raise AttachError(
            exit_code=exit_code,
            expected=f"{sum(len(crew.ranks) for crew in crews)} trainers to attach",
            got=f"{len(failures)} that could not, the first: {error.rstrip('.')}",
            where="load test",
            remedy="Fix the first error, then run the test again.",
        )


def _combined(crews: list[_Process], world: int) -> Measured:
    """Return the combined measurements of all crews, with the audit; each crew must have its result.

    Raise ValueError if the world exceeds the group of a lap.
    """
    measured, laps = Measured(), list[Lap]()
    for crew in crews:
        assert crew.result is not None
        measured.wall_s = max(measured.wall_s, crew.result["wall_s"])
        measured.harness_cpu_s += crew.result["cpu_s"]
        measured.waits.merge(Histogram.of(crew.result["waits"]))
        for second, histogram in crew.result["seconds"].items():
            measured.by_second.setdefault(int(second), Histogram()).merge(Histogram.of(histogram))
        for trainer in crew.result["trainers"]:
            _add(measured, trainer)
            laps.extend(Lap(**{**lap, "numbers": tuple(lap["numbers"])}) for lap in trainer["laps"])
    measured.audit = audited(laps, world)
    return measured


def _add(measured: Measured, trainer: dict[str, Any]) -> None:
    """Add one trainer's counts and limits, its utilisation if it computed, and its error if it has one."""
    measured.steps += trainer["steps"]
    measured.rows += trainer["rows"]
    measured.nbytes += trainer["nbytes"]
    measured.compute_s += trainer["compute_s"]
    measured.total_s += trainer["total_s"]
    for limit, (seconds, text) in trainer["limits"].items():
        measured.limits[limit] = (measured.limits.get(limit, (0.0, ""))[0] + seconds, text)
    if trainer["compute_s"]:
        measured.utilisations[trainer["rank"]] = trainer["compute_s"] / trainer["total_s"]
    if trainer["error"]:
        measured.errors.append(trainer["error"])
        measured.exit_codes.append(trainer["exit_code"])


class Interrupts:
    """Context that holds back Ctrl-C and SIGTERM while the block lasts; for the main thread.

    An interruption is raised where we wait, and nowhere else. So whatever was begun between two waits (a process, a
    folder) is known to the code that has to end it. A signal that comes after the last wait is raised at the end of the
    block.
    """

    def __enter__(self) -> Self:
        self._receiving, self._sending = socket.socketpair()
        self._sending.setblocking(False)  # noqa: FBT003 - its only parameter
        self._interruption: type[KeyboardInterrupt] | None = None
        self._before: list[Any] = [signal.signal(number, self._note) for number in _SIGNALS]
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._interruption = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        with contextlib.suppress(BlockingIOError):
            self._sending.send(b"!")

    def wait(self, files: Sequence[int], timeout_s: float | None) -> list[int]:
        """Return the readable files once there are any, or none after the timeout (None: wait for ever).

        Raise KeyboardInterrupt (or Terminated) as soon as a signal comes, or if one came before.
        """
        ours = self._receiving.fileno()
        # Our socket beside the files: a handler that only sets a flag would not end a `select` that Python resumes.
        ready, _, _ = select.select([*files, ours], [], [], timeout_s)
        if self._interruption is not None:
            raise self._interruption
        return [file for file in ready if file != ours]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)
        self._receiving.close()
        self._sending.close()
        if self._interruption is not None and error is None:
            raise self._interruption
