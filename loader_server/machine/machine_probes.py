"""What a `loader-server run` answers to probes: it is ready if all that it runs is, each by its own `/readyz`.

Rules: asked in the metrics server's thread, so complete snapshots of the supervisor's are read.
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

#: What does not answer by then is held up.
_ANSWER_S = 1.0
_LONGEST_ANSWER = 64

#: The supervisor's loop does nothing that takes so long.
_DEAD_S = 60.0


class ProbedMachine(Protocol):
    """What a supervisor tells of itself."""

    @property
    def turned_s(self) -> float:
        """When its main loop turned last."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""

    @property
    def probe_addresses(self) -> Sequence[str]:
        """Where each coordinator and each place's worker answers probes; empty for those that are not there."""


def probes_of(machine: ProbedMachine) -> Probes:
    """Return what the machine answers."""
    return Probes(
        lambda now_s: dead(machine.turned_s, _DEAD_S, now_s),
        lambda now_s: _unready(machine, now_s),
    )


def serve_probes(machine: ProbedMachine, listening: Listening) -> MetricsServer:
    """Answer probes for the machine; the numbers are in its processes, each of which serves its own."""
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
    """Return why a process of the machine is not ready, or nothing if it is."""
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
