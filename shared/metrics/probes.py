"""What a process answers to probes: whether it lives (`/healthz`), and whether work should be sent to it (`/readyz`).

An orchestrator restarts what does not live, so that must never fail for something that a restart does not mend: a
missing coordinator, a full disk, or a transform that holds the interpreter for seconds. Readiness may fail for all of
these.

Rules: pure. An answer is one word from `REASONS`, or empty if all is well; it names nothing of the job, because anyone
who reaches the port may ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "LOOP_S",
    "REASONS",
    "CoordinatorView",
    "Probes",
    "WorkerView",
    "dead",
    "unready_coordinator",
    "unready_worker",
]

#: How long a turn of a main loop may take while its process still counts as ready.
LOOP_S = 5.0

#: Each reason for not being ready, and what it means.
REASONS = {
    "starting": "the process has not begun to serve",
    "draining": "it was told to end, and finishes what it has",
    "loop": "its main loop has not turned for long: a transform holds the interpreter, or the process was stopped",
    "no_data": "a worker's machine lacks the data of all its streams, as its log and `loader-server status` say",
    "refused": "a worker waits until it or its coordinator is replaced: they differ in protocol or in bytes",
    "coordinator": "the coordinator has not answered for longer than the heartbeat timeout",
    "journal": "the coordinator cannot write its journal",
    "workers": "not every worker of this machine serves",
}


@dataclass(frozen=True, slots=True)
class Probes:
    """The questions that a process answers; each takes the time and returns a reason, or nothing if all is well."""

    is_dead: Callable[[float], str]
    is_unready: Callable[[float], str]
    #: Where the metrics of a job are, if this process knows: for Prometheus' service discovery by HTTP. Takes the host
    #: that it was asked at and its own port.
    targets: Callable[[str, int], list[dict[str, Any]]] | None = None


def dead(turned_s: float, most_s: float, now_s: float) -> str:
    """Return why a process has to be restarted: its main loop has not turned for longer than anything may take."""
    return "loop" if now_s - turned_s > most_s else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What a worker's readiness depends on."""

    #: When its main loop turned last.
    turned_s: float
    is_draining: bool
    #: Whether there is a stream whose data are on its machine.
    has_data: bool
    #: Whether the coordinator has ever taken it in, and whether it counts as a member now.
    was_registered: bool
    is_registered: bool
    #: Whether the coordinator does not take it in because it is of a release that does not fit.
    is_refused: bool
    #: When the coordinator said something last.
    heard_s: float
    heartbeat_timeout_s: float


def unready_worker(worker: WorkerView, now_s: float) -> str:
    """Return why no trainer should be sent to a worker, or nothing if it serves."""
    if worker.is_draining:
        return "draining"
    if now_s - worker.turned_s > LOOP_S:
        return "loop"
    if not worker.has_data:
        return "no_data"
    if worker.is_refused:
        return "refused"
    if not worker.was_registered:
        return "starting"
    is_silent = now_s - worker.heard_s > worker.heartbeat_timeout_s
    return "coordinator" if is_silent or not worker.is_registered else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """What a coordinator's readiness depends on."""

    turned_s: float
    is_stopping: bool
    #: How many facts wait to be written because the journal could not be.
    facts_waiting: int
    #: Whether the journal's files are gone.
    is_journal_lost: bool


def unready_coordinator(coordinator: CoordinatorView, now_s: float) -> str:
    """Return why a coordinator is not to be relied on, or nothing if it serves."""
    if coordinator.is_stopping:
        return "draining"
    if now_s - coordinator.turned_s > LOOP_S:
        return "loop"
    return "journal" if coordinator.facts_waiting or coordinator.is_journal_lost else ""
