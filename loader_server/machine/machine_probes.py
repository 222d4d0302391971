"""The answers of a `loader-server run` to probes: ready if all its processes are, each by its own `/readyz`.

Its `/targets` are those of all its jobs, so that Prometheus asks one place of a machine, whatever is added or ended.

Rules: runs in the metrics server's thread, so it reads only complete snapshots of the supervisor.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from loader_server.machine.machine_targets import MachineTargets
from shared.metrics.probes import LOOP_S, REASONS, Probes, dead
from shared.metrics.server import MetricsServer

if TYPE_CHECKING:
    from loader_server.machine.supervisor import Supervisor
    from shared.metrics.listening import Listening

__all__ = ["probes_of", "serve_probes"]

#: Timeout of a probe; a process that misses it counts as held up.
_ANSWER_S = 1.0
_LONGEST_ANSWER = 64

#: The supervisor counts as dead after this long; no turn of its loop takes so much.
_DEAD_S = 60.0


def probes_of(supervisor: Supervisor, token: str = "") -> Probes:
    """Return the answers to probes of the machine: whether it lives, whether it is ready, and its jobs' targets.

    It lives while the supervisor's loop has turned within the last minute, and is ready while all its processes are. It
    is not ready before it has any, while it is ending, or while the loop stands still.
    """
    targets = MachineTargets(supervisor.jobs, token)
    return Probes(
        lambda now_s: dead(supervisor.turned_s, _DEAD_S, now_s),
        lambda now_s: _unready(supervisor, now_s),
        lambda host, _port: targets.listed(host),
    )


def serve_probes(supervisor: Supervisor, listening: Listening) -> MetricsServer:
    """Start a server for the machine's probes; it has no metrics, as each of the machine's processes serves its own.

    Raise SettingsError if its port cannot be used. MachineError of `MetricsServer` passes through.
    """
    return MetricsServer(
        list,
        labels={"role": "supervisor"},
        targets_folder=None,
        listening=listening,
        probes=probes_of(supervisor, listening.token),
    )


def _unready(supervisor: Supervisor, now_s: float) -> str:
    if supervisor.is_stopping:
        return "draining"
    if now_s - supervisor.turned_s > LOOP_S:
        return "loop"
    addresses = supervisor.probe_addresses
    if not addresses or not all(addresses):
        return "starting"
    return next(filter(None, map(_ask, addresses)), "")


def _ask(address: str) -> str:
    """Return why a process of the machine is not ready; empty if it is.

    That is the reason that it gives itself, "starting" if it refuses or drops the connection, and "loop" if it does not
    answer in time or gives an unknown reason.
    """
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=_ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(_LONGEST_ANSWER).decode(errors="replace").strip()
        return reason if reason in REASONS else "loop"
    except OSError as error:
        # urllib wraps most errors in one whose `reason` is the error itself. A refused connection means that the
        # process has ended and is started again; silence, that it is held up.
        cause = getattr(error, "reason", error)
        return "starting" if isinstance(cause, ConnectionError) else "loop"
