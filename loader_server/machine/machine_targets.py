"""The scrape targets of all jobs whose coordinators run on this machine, for Prometheus, which asks this one place.

Each coordinator knows the processes of its job, on whichever hosts, so it is asked at each request, all of them at the
same time: Prometheus would not wait for several that hang, one after another. If a coordinator does not answer, its
last list counts: otherwise a job whose coordinator hangs would vanish from Prometheus, and the alert that there is none
would never fire.

Rules: runs in the metrics server's threads, so it reads only complete snapshots of the supervisor.
"""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.machine.served_job import ServedJob

__all__ = ["MachineTargets"]

#: Timeout of a question to a coordinator.
_ANSWER_S = 1.0
#: Most coordinators that are asked at the same time.
_MOST_ASKED = 32
#: Limit of a coordinator's list of targets: some 100 000 processes.
_LONGEST_LIST = 2**24


class MachineTargets:
    """The lists of the machine's coordinators in one; `token` reads their metrics, empty if none is needed."""

    def __init__(self, jobs: Mapping[str, ServedJob], token: str) -> None:
        self._jobs = jobs
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        #: The last list by job and asked host. Replaced entry by entry, which several threads may do at a time.
        self._last: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def listed(self, host: str) -> list[dict[str, Any]]:
        """Return the targets of all jobs whose coordinator runs here; `host` is the one that Prometheus asked.

        A coordinator that does not answer counts with its last list for this host, or with none if it never answered.
        Jobs that have ended have no targets.
        """
        # A copy, because the main loop may add or end a job meanwhile.
        jobs = {name: job for name, job in list(self._jobs.items()) if job.has_own_coordinator}
        addresses = {name: job.coordinator.metrics for name, job in jobs.items() if job.coordinator.is_serving}
        asked = {name: address for name, address in addresses.items() if address}
        with ThreadPoolExecutor(_MOST_ASKED, "stoker-targets") as pool:
            answers = pool.map(partial(self._ask, host), asked.values())
            for name, answer in zip(asked, answers, strict=True):
                if answer is not None:
                    self._last[name, host] = answer
        for key in [key for key in list(self._last) if key[0] not in jobs]:
            self._last.pop(key, None)
        return [target for name in jobs for target in self._last.get((name, host), ())]

    def _ask(self, host: str, address: str) -> list[dict[str, Any]] | None:
        """Return the list of the coordinator that serves its metrics at this address; None without a whole answer."""
        # At the host that we were asked at: so the coordinator names addresses that can be reached from there.
        url = f"http://{host}:{address.rpartition(':')[2]}/targets"
        request = urllib.request.Request(url, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310 - it is http
                targets = json.loads(answer.read(_LONGEST_LIST))
        except (OSError, ValueError):
            return None
        return targets if isinstance(targets, list) else None
