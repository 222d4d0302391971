"""A crew: one process of the load test, with some of the thin trainers in its threads.

Rules: a new process, never forked; it talks to the conductor in JSON lines over its standard input and output, and ends
when its input does, so no crew outlives the conductor. Ctrl-C is the conductor's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from shared.commands import allow_many_files
from shared.errors import LostError
from shared.logs import start_logging
from trainer_client.load_test.report.histogram import Histogram
from trainer_client.load_test.thin_trainer import ThinRun, ThinTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["main"]

_TELL_EVERY_S = 0.5

#: Trainers that attach at a time: a coordinator has one thread, and a hundred would only wait for each other.
_ATTACHING = 16

#: A batch that comes this long after the end of the run counts as an error, not as a wait.
_LATE_S = 10.0

#: How long stopped trainers together may take to leave the job; those that still sleep through a step are cut off.
_LEAVING_S = 1.0


class _Ended(Exception):  # how a crew's day ends early
    """End of our input: the conductor closed it, so the crew stops early."""


class _Crew:
    """Trainers of this process."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._run = ThinRun(**order["run"])
        self._ready = threading.Semaphore(0)
        self._trainers = [ThinTrainer(self._run, rank, self._ready) for rank in order["ranks"]]

    def attach(self) -> None:
        """Start all trainers, and return once each has attached or failed; raise _Ended if our input ends meanwhile."""
        started = 0
        for done in range(len(self._trainers)):
            while started < min(len(self._trainers), done + _ATTACHING):
                self._trainers[started].start()
                started += 1
            # A trainer may wait a minute to attach: look whether our input has ended meanwhile, or we would outlive it.
            while not self._ready.acquire(timeout=_TELL_EVERY_S):
                _hear(0)

    def failed(self) -> list[tuple[str, int]]:
        """Return error and exit code of each failed trainer; after `attach`, of each that could not attach."""
        return [(trainer.error, trainer.exit_code) for trainer in self._trainers if trainer.error]

    def train(self) -> None:
        """Train from the moment that the conductor names, report progress, and report the result at the end.

        Raise _Ended if our input ends before.
        """
        at_s = float(_hear(None)["begin_s"])
        for trainer in self._trainers:
            trainer.begin(at_s)
        # Processor time counts from the beginning on, so that figures leave out imports and attaching.
        _hear(max(0.0, at_s - time.monotonic()))
        began_cpu_s = time.process_time()
        while any(trainer.is_alive() for trainer in self._trainers):
            _hear(_TELL_EVERY_S)
            _say(progress=sum(trainer.tally.steps for trainer in self._trainers))
            if time.monotonic() > at_s + self._run.seconds:
                self._join(at_s)
        _say(result=self._result(time.process_time() - began_cpu_s, time.monotonic() - at_s))

    def _join(self, at_s: float) -> None:
        """Wait for all trainers until two steps and 10 s after the run's end; fail and stop those still alive."""
        until_s = at_s + self._run.seconds + 2 * self._run.step_s + _LATE_S
        for trainer in self._trainers:
            trainer.join(max(0.0, until_s - time.monotonic()))
            if trainer.is_alive():
                trainer.error = f"rank {trainer.rank}: expected a batch, got none for {_LATE_S:g} s"
                trainer.exit_code = LostError.exit_code
                trainer.stop()

    def _result(self, cpu_s: float, wall_s: float) -> dict[str, Any]:
        """Return the combined counts of this process's trainers, as plain values."""
        waits, seconds = Histogram(), dict[int, Histogram]()
        for trainer in self._trainers:
            waits.merge(trainer.tally.waits)
            for second, histogram in trainer.tally.by_second.items():
                seconds.setdefault(second, Histogram()).merge(histogram)
        return {
            "trainers": [trainer.result() for trainer in self._trainers],
            "waits": waits.plain(),
            "seconds": {str(second): histogram.plain() for second, histogram in seconds.items()},
            "cpu_s": cpu_s,
            "wall_s": wall_s,
        }

    def stop(self) -> None:
        """Stop all trainers, waiting for all together at most a second; those that still attach or sleep go on."""
        for trainer in self._trainers:
            trainer.stop()
        until_s = time.monotonic() + _LEAVING_S
        for trainer in self._trainers:
            if trainer.ident is not None:
                trainer.join(max(0.0, until_s - time.monotonic()))


def _say(**line: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the conductor is gone: our input has ended as well
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _hear(timeout_s: float | None) -> dict[str, Any]:
    """Return the conductor's next message, or an empty dict if none comes in time; raise _Ended when the input ends.

    Without `timeout_s` wait for as long as it takes.
    """
    if not select.select([0], [], [], timeout_s)[0]:
        return {}
    line = sys.stdin.readline()
    if not line:
        raise _Ended
    return json.loads(line)  # type: ignore[no-any-return] # the conductor sends objects only


def main() -> None:
    """Run the crew, and end the process with exit code 0; stop its trainers if the conductor closes our input.

    The first report has the trainers that could not attach. Any other exception passes through.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the conductor closes our input instead
    allow_many_files()
    start_logging(level="warning")
    crew = None
    try:
        crew = _Crew(_hear(None))
        crew.attach()
        _say(ready=True, failed=crew.failed())
        crew.train()
    except _Ended:
        if crew is not None:
            crew.stop()
    os._exit(0)  # a usual exit would wait for threads that sleep through a simulated step


if __name__ == "__main__":
    main()
