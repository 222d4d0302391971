"""Answers to probes: whether a process is alive (`/healthz`), and whether it should get work (`/readyz`).

An orchestrator restarts a process that is not alive, so liveness must never fail for something that a restart does not
mend: a missing coordinator, a full disk, or a transform that holds the interpreter for seconds. Readiness may fail for
all of these.

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

#: A process whose main loop turned longer ago is not ready.
LOOP_S = 5.0

#: Reasons for not being ready, and their meaning.
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
    """Questions that a process answers; each takes the time and returns a reason, or "" if all is well."""

    is_dead: Callable[[float], str]
    is_unready: Callable[[float], str]
    #: Lists the job's scrape targets for Prometheus' HTTP service discovery, if this process knows them. Takes the host
    #: of the request and its own port.
    targets: Callable[[str, int], list[dict[str, Any]]] | None = None


def dead(turned_s: float, most_s: float, now_s: float) -> str:
    """Return "loop" if the main loop last turned more than `most_s` ago, so that the process must restart; else ""."""
    return "loop" if now_s - turned_s > most_s else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Facts that decide a worker's readiness."""

    #: Time of its main loop's last turn.
    turned_s: float
    is_draining: bool
    #: Whether its machine has the data of any stream.
    has_data: bool
    #: Whether the coordinator has ever registered it, and whether it is a member now.
    was_registered: bool
    is_registered: bool
    #: Whether the coordinator refuses it because their protocols or bytes differ.
    is_refused: bool
    #: Time of the coordinator's last message.
    heard_s: float
    heartbeat_timeout_s: float


def unready_worker(worker: WorkerView, now_s: float) -> str:
    """Return the reason, a word of REASONS, for sending a worker no trainers, or "" if it serves.

    Of several the first counts: draining, loop, no_data, refused, starting (never registered), or coordinator (silent
    for longer than the heartbeat timeout, or the worker is no member now).
    """
    is_silent = now_s - worker.heard_s > worker.heartbeat_timeout_s
    # In this order: a worker that drains is meant to end, and one whose loop hangs knows nothing of the rest.
    return _first_reason(
        draining=worker.is_draining,
        loop=now_s - worker.turned_s > LOOP_S,
        no_data=not worker.has_data,
        refused=worker.is_refused,
        starting=not worker.was_registered,
        coordinator=is_silent or not worker.is_registered,
    )


def _first_reason(**reasons: bool) -> str:
    """Return the first reason that holds, or "" if none does."""
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """Facts that decide a coordinator's readiness."""

    turned_s: float
    is_stopping: bool
    #: Facts that still wait because the journal could not be written.
    facts_waiting: int
    #: Whether the journal's files are gone.
    is_journal_lost: bool


def unready_coordinator(coordinator: CoordinatorView, now_s: float) -> str:
    """Return the reason, a word of REASONS, why a coordinator is not to be relied on, or "" if it serves.

    Of several the first counts: draining, loop, or journal (facts wait, or its files are gone).
    """
    return _first_reason(
        draining=coordinator.is_stopping,
        loop=now_s - coordinator.turned_s > LOOP_S,
        # Facts that are not in the journal are lost if the coordinator is killed now.
        journal=coordinator.facts_waiting > 0 or coordinator.is_journal_lost,
    )
