"""A process that may be stopped, may hang, and dies once.

Rules: what comes to a process that does not run waits for it, in its order, and is lost when it dies. A process that
starts again is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.simulation.scheduler import Scheduler

__all__ = ["Process", "Timer"]

_NEVER_S = float("inf")


class Process:
    """`name` is the place that it has in the world, the same for those that come after it."""

    def __init__(self, scheduler: Scheduler, name: str, incarnation: int) -> None:
        self.scheduler = scheduler
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        #: Since when it is as it is: it started, went on, or died then.
        self.since_s = scheduler.now_s
        #: SIGSTOP: nothing of it runs, its sockets' threads neither.
        self.stopped = False
        #: Its Python hangs while its sockets' threads go on.
        self.hung = False
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"

    @property
    def turns(self) -> bool:
        """Whether its Python runs."""
        return self.alive and not self.stopped and not self.hung

    @property
    def answers(self) -> bool:
        """Whether its sockets' threads run."""
        return self.alive and not self.stopped

    def call(self, what: Callable[..., None], *args: Any) -> None:
        """Something is to happen in this process, as soon as it runs."""
        if self.stopped or self.hung:
            self._waiting.append((what, args))
        elif self.alive:
            what(*args)

    def call_threads(self, what: Callable[..., None], *args: Any) -> None:
        """Something is to happen in the threads of its sockets."""
        if self.stopped:
            self._waiting.append((what, args))
        elif self.alive:
            what(*args)

    def after(self, pause_s: float, what: Callable[..., None], *args: Any) -> None:
        """The same, after a while."""
        self.scheduler.after(pause_s, self.call, what, *args)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def hang(self) -> None:
        """Hold the interpreter."""
        self.hung = True

    def end_hanging(self) -> None:
        """The interpreter is free again."""
        if self.stopped:
            self.hung = False
        elif self.hung:
            self.resume()

    def resume(self) -> None:
        """SIGCONT, or the interpreter is free again."""
        self.stopped = self.hung = False
        self.since_s = self.scheduler.now_s
        waiting, self._waiting = self._waiting, []
        for what, args in waiting:
            self.scheduler.after(0.0, self.call, what, *args)

    def die(self) -> None:
        """Kill -9."""
        self.alive = False
        self.since_s = self.scheduler.now_s
        self._waiting.clear()


class Timer:
    """What a process does next, at a time that may still change: only the last one set counts.

    Most timers are set anew before they ring, so one that moves out leaves what is queued for it where it is.
    """

    __slots__ = ("_does", "_process", "_queued", "_scheduler", "due_s")

    def __init__(self, process: Process, does: Callable[[], None]) -> None:
        self.due_s = _NEVER_S
        self._process = process
        self._scheduler = process.scheduler
        self._does = does
        #: When the scheduler comes back to this, the next time last.
        self._queued: list[float] = []

    def set(self, time_s: float) -> None:
        """Let it happen at this time, and not before; infinite: never."""
        self.due_s = time_s
        if time_s < (self._queued[-1] if self._queued else _NEVER_S):
            self._queued.append(time_s)
            self._scheduler.at(time_s, self._ring)

    def _ring(self) -> None:
        self._queued.pop()
        if self.due_s <= self._scheduler.now_s:
            self._process.call(self._happen)
        else:
            self._scheduler.forget_step()
            self.set(self.due_s)

    def _happen(self) -> None:
        if self.due_s <= self._scheduler.now_s:  # else it was set anew while the process did not run
            self.due_s = _NEVER_S
            self._does()
