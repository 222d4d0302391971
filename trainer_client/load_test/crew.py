"""A crew: one process of the load test, with some of the thin trainers in its threads.

Rules: started anew, never forked; it talks with the conductor in JSON lines over its standard input and output, and
ends when its input does: whatever happens to the conductor, no crew stays behind. Ctrl-C is the conductor's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from shared.command import allow_many_files
from shared.logs import start_logging
from trainer_client.load_test.report.histogram import Histogram
from trainer_client.load_test.thin_trainer import Run, ThinTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["main"]

_TELL_EVERY_S = 0.5

#: Trainers attach so many at a time: a coordinator has one thread, and a hundred at once only make each other wait.
_ATTACHING = 16

#: A batch that comes so much too late is an error, and no longer only a wait.
_LATE_S = 10.0

#: How long trainers that were told to stop may take to leave; those that sleep through a step are left.
_LEAVING_S = 1.0


class _Ended(Exception):  # noqa: N818 - how a crew's day ends early
    """The conductor closed our input: stop."""


class _Crew:
    """The trainers of this process."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._run = Run(**order["run"])
        self._ready = threading.Semaphore(0)
        self._trainers = [ThinTrainer(self._run, rank, self._ready) for rank in order["ranks"]]

    def attach(self) -> None:
        """Start all; they are attached, or failed, when this returns."""
        started = 0
        for done in range(len(self._trainers)):
            while started < min(len(self._trainers), done + _ATTACHING):
                self._trainers[started].start()
                started += 1
            while not self._ready.acquire(timeout=_TELL_EVERY_S):
                _hear(0)

    def errors(self) -> list[str]:
        """What kept trainers from attaching."""
        return [trainer.error for trainer in self._trainers if trainer.error]

    def train(self) -> None:
        """From the conductor's word to the end of the last trainer."""
        at_s = float(_hear(None)["begin_s"])
        for trainer in self._trainers:
            trainer.begin(at_s)
        _hear(max(0.0, at_s - time.monotonic()))
        began_cpu_s = _cpu_s()
        while any(trainer.is_alive() for trainer in self._trainers):
            _hear(_TELL_EVERY_S)
            _say(progress=sum(trainer.tally.steps for trainer in self._trainers))
            if time.monotonic() > at_s + self._run.seconds:
                self._join(at_s)
        _say(result=self._result(_cpu_s() - began_cpu_s, time.monotonic() - at_s))

    def _join(self, at_s: float) -> None:
        """Time is up: a step may end and a late batch come, but who waits in vain is not waited for."""
        until_s = at_s + self._run.seconds + 2 * self._run.step_s + _LATE_S
        for trainer in self._trainers:
            trainer.join(max(0.0, until_s - time.monotonic()))
            if trainer.is_alive():
                trainer.error = f"rank {trainer.rank}: expected a batch, got none for {_LATE_S:g} s"
                trainer.stop()

    def _result(self, cpu_s: float, wall_s: float) -> dict[str, Any]:
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
        """Let all go, in a hurry."""
        for trainer in self._trainers:
            trainer.stop()
        until_s = time.monotonic() + _LEAVING_S
        for trainer in self._trainers:
            if trainer.ident is not None:
                trainer.join(max(0.0, until_s - time.monotonic()))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _say(**line: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the conductor is gone: our input says so too
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _hear(timeout_s: float | None) -> dict[str, Any]:
    """The conductor's next word, or nothing after a while."""
    if not select.select([0], [], [], timeout_s)[0]:
        return {}
    line = sys.stdin.readline()
    if not line:
        raise _Ended
    heard: dict[str, Any] = json.loads(line)
    return heard


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_files()
    start_logging(level="warning")
    crew = None
    try:
        crew = _Crew(_hear(None))
        crew.attach()
        _say(ready=True, errors=crew.errors())
        crew.train()
    except _Ended:
        if crew is not None:
            crew.stop()
    os._exit(0)  # threads that sleep through a simulated step are not waited for


if __name__ == "__main__":
    main()
