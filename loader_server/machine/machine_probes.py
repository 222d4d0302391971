"""The answers of a `loader-server run` to probes: ready if all its processes are, each by its own `/readyz`.

Rules: runs in the metrics server's thread, so it reads only complete snapshots of the supervisor.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Protocol

from shared.metrics.probes import LOOP_S, REASONS, Probes, dead
from shared.metrics.server import MetricsServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.metrics.listening import Listening

__all__ = ["ProbedMachine", "probes_of", "serve_probes"]

#: Timeout of a probe; a process that misses it counts as held up.
_ANSWER_S = 1.0
_LONGEST_ANSWER = 64

#: The supervisor counts as dead after this long; no turn of its loop takes so much.
_DEAD_S = 60.0


class ProbedMachine(Protocol):
    """The parts of a supervisor that probes look at."""

    @property
    def turned_s(self) -> float:
        """Return when its main loop turned last."""

    @property
    def is_stopping(self) -> bool:
        """Return whether it was told to end."""

    @property
    def probe_addresses(self) -> Sequence[str]:
        """Return the probe addresses of coordinators and workers; empty for a process that is not running."""


def probes_of(machine: ProbedMachine) -> Probes:
    """Return the machine's answers to probes."""
    return Probes(
        lambda now_s: dead(machine.turned_s, _DEAD_S, now_s),
        lambda now_s: _unready(machine, now_s),
    )


def serve_probes(machine: ProbedMachine, listening: Listening) -> MetricsServer:
    """Start a server for the machine's probes; it has no metrics, as each of the machine's processes serves its own."""
    labels = {"role": "supervisor"}
    return MetricsServer(list, labels=labels, targets_folder=None, listening=listening, probes=probes_of(machine))


def _unready(machine: ProbedMachine, now_s: float) -> str:
    if machine.is_stopping:
        return "draining"
    if now_s - machine.turned_s > LOOP_S:
        return "loop"
    addresses = machine.probe_addresses
    if not addresses or not all(addresses):
        return "starting"
    return next(filter(None, map(_ask, addresses)), "")


def _ask(address: str) -> str:
    """Return why a process of the machine is not ready; empty if it is."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=_ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(_LONGEST_ANSWER).decode(errors="replace").strip()
        return reason if reason in REASONS else "loop"
    except ConnectionError:
        return "starting"  # it has ended, and is started again
    except OSError as error:
        return "starting" if isinstance(getattr(error, "reason", None), ConnectionError) else "loop"
