"""The workers of a job: who they are, where they listen, and when they were last heard.

Rules: pure. A worker is identified by its incarnation; its name is for people, and two workers may share one. An
endpoint has one worker, the latest that registered there. All trainers get the same list under one version; if it is
too long for a message, they get a subset that changes little while others come and go. Anybody may report that a worker
cannot begin to serve, since such a worker is not registered; the number of these reports and their rate are therefore
limited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from loader_server.coordinator.pace.lately import WORKER_COUNTS, Lately
from shared.endpoints import scrape_address
from shared.wire import messages as m
from shared.wire.message_parts import WorkerAddress

__all__ = ["RegisteredWorker", "Workers"]

#: Limits of the list in `Members` and `Attached`; the message's other bytes are for the fields and shapes in
#: `Attached`.
_MOST_WORKERS = 4096
_MOST_BYTES = 3 * 2**18

#: Limit of failing workers that are remembered, and the least time between two announcements of the same one.
_MOST_FAILING = 256
_FAILING_PAUSE_S = 0.5
#: Reports of failing workers are forgotten after this long; a worker that still fails is restarted and reports again
#: within seconds.
_FAILING_S = 60.0


@dataclass(slots=True, kw_only=True)
class RegisteredWorker:
    """A registered worker, with its last heartbeat."""

    peer: bytes
    address: WorkerAddress
    heard_s: float
    #: Address of its metrics as seen from other hosts; empty if there is none.
    metrics: str = ""
    beat: m.Beat | None = None
    lately: Lately = field(default_factory=partial(Lately, WORKER_COUNTS))

    def hear(self, beat: m.Beat, now_s: float) -> None:
        """Take in a heartbeat."""
        self.heard_s, self.beat = now_s, beat
        self.lately.note([getattr(beat, name) for name in WORKER_COUNTS], now_s)


@dataclass(frozen=True, slots=True)
class FailingWorker:
    """The last report that a worker cannot serve, and whether the worker still serves part of the streams."""

    why: m.Failing
    announced_s: float
    in_part: bool


class Workers:
    """The workers that are registered now, and those that failed or were refused."""

    def __init__(self, first_version: int) -> None:
        self._workers: dict[int, RegisteredWorker] = {}
        #: The incarnation that listens at each endpoint.
        self._at: dict[str, int] = {}
        #: The bytes of all addresses in a message; counted and not summed up anew, as a fleet registers one by one.
        self._nbytes = 0
        #: Unique to each list, even across runs of the coordinator.
        self._version = first_version
        self._members: m.Members | None = None
        #: Workers that could not begin to serve, or only in part, by name.
        self._failing: dict[str, FailingWorker] = {}
        #: Fingerprints of workers that were refused because they would build other bytes, by name.
        self._refused: dict[str, str] = {}
        #: How many workers another one at their endpoint has replaced: they died, and nobody had missed them yet.
        self.replaced = 0

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def members(self) -> m.Members:
        """Return the list of workers as trainers get it, by name; if it is too long for a message, a subset."""
        if self._members is None:
            self._members = m.Members(version=self._version, workers=tuple(self._listed()))
        return self._members

    @property
    def left_out(self) -> int:
        """Return how many workers the list does not name, because it would be too long for a message."""
        return len(self._workers) - len(self.members.workers)

    def get(self, incarnation: int) -> RegisteredWorker | None:
        """Return the worker of this incarnation; None if it is not registered."""
        return self._workers.get(incarnation)

    def sorted(self) -> list[RegisteredWorker]:
        """Return all workers, by name and then by incarnation."""
        return sorted(self._workers.values(), key=lambda worker: (worker.address.worker, worker.address.incarnation))

    def speaks(self, peer: bytes) -> bool:
        """Return whether a registered worker has this connection, on which it registered last."""
        return any(worker.peer == peer for worker in self._workers.values())

    def peers(self) -> list[bytes]:
        """Return the connections of all workers, by the workers' names."""
        return [worker.peer for worker in self.sorted()]

    def register(self, peer: bytes, register: m.Register, now_s: float, host: str = "") -> bool:
        """Add a worker, replacing any at its endpoint, which counts in `replaced`; return whether the list has changed.

        A worker that registers again with the same address only refreshes its entry. What was noted of a failing or
        refused worker of its name is forgotten. `host` is where its connection comes from, if that is known.
        """
        address = WorkerAddress(
            register.worker, register.incarnation, register.endpoint, register.boot_id, register.uid
        )
        known = self._workers.get(register.incarnation)
        metrics = scrape_address(register.metrics, host)
        # A registration withdraws what the worker reported before.
        self._failing.pop(register.worker, None)
        self._refused.pop(register.worker, None)
        if known is not None and known.address == address:
            known.peer, known.heard_s, known.metrics = peer, now_s, metrics
            return False
        # Its own former entry goes, because it may have moved, and so does the former worker at its endpoint, where
        # only one can listen.
        former = {register.incarnation, self._at.get(register.endpoint, register.incarnation)}
        for incarnation in former & self._workers.keys():
            self._drop(self._workers[incarnation])
            self.replaced += incarnation != register.incarnation
        self._workers[register.incarnation] = RegisteredWorker(
            peer=peer, address=address, heard_s=now_s, metrics=metrics
        )
        self._at[register.endpoint] = register.incarnation
        self._nbytes += _size(address)
        self._count_change()
        return True

    def remove(self, incarnation: int) -> None:
        """Remove a worker that left; raise a KeyError if it is not registered."""
        self._drop(self._workers[incarnation])
        self._count_change()

    def note_refused(self, register: m.Register) -> bool:
        """Record that a worker would build other bytes; return whether to log it, as the worker keeps asking.

        Return False if the worker of this name was last refused with the same fingerprint, as far as is remembered.
        """
        if self._refused.get(register.worker) == register.builder:
            return False
        if len(self._refused) >= _MOST_FAILING:
            self._refused.clear()
        self._refused[register.worker] = register.builder
        return True

    @property
    def failing(self) -> dict[str, m.Failing]:
        """Return the reports of workers that cannot serve, or only in part, and have not registered since, latest last.

        By name; reports that `forget_failing` forgot are missing.
        """
        return {worker: failing.why for worker, failing in self._failing.items()}

    def failing_report(self) -> list[dict[str, Any]]:
        """Return the reports of failing workers, each with whether it serves in part, for people and scripts."""
        return [
            {name: getattr(failing.why, name) for name in failing.why.checks} | {"in_part": failing.in_part}
            for failing in self._failing.values()
        ]

    def note_failing(self, peer: bytes, failing: m.Failing, now_s: float) -> bool:
        """Record that a worker could not begin to serve; return whether to announce it to trainers now.

        Return False and drop the report if a worker of this name was announced less than half a second ago, or is new
        and too many workers fail already. If its connection has registered a worker, that worker serves in part. Going
        by the connection, not the name, keeps a dead worker of the same name, which nobody has missed yet, from passing
        for the sender.
        """
        known = self._failing.get(failing.worker)
        if len(self._failing) >= _MOST_FAILING if known is None else now_s - known.announced_s < _FAILING_PAUSE_S:
            return False
        self._failing.pop(failing.worker, None)
        self._failing[failing.worker] = FailingWorker(failing, now_s, self.speaks(peer))
        return True

    def forget_failing(self, now_s: float) -> None:
        """Forget reports that are older than a minute: nobody restarts those workers any more."""
        since_s = now_s - _FAILING_S
        self._failing = {name: failing for name, failing in self._failing.items() if failing.announced_s >= since_s}

    def remove_silent(self, since_s: float) -> int:
        """Remove workers that were last heard before this time; return how many."""
        silent = [worker for worker in self._workers.values() if worker.heard_s < since_s]
        for worker in silent:
            self._drop(worker)
        if silent:
            self._count_change()
        return len(silent)

    def _drop(self, worker: RegisteredWorker) -> None:
        del self._workers[worker.address.incarnation]
        del self._at[worker.address.endpoint]
        self._nbytes -= _size(worker.address)

    def _count_change(self) -> None:
        self._version, self._members = self._version + 1, None

    def _listed(self) -> list[WorkerAddress]:
        addresses = [worker.address for worker in self.sorted()]
        if len(addresses) <= _MOST_WORKERS and self._nbytes <= _MOST_BYTES:
            return addresses
        # Incarnations are random, so the lowest ones are a fair sample that one more worker changes little.
        incarnations = sorted(self._workers)[:_MOST_WORKERS]
        nbytes = accumulate(_size(self._workers[incarnation].address) for incarnation in incarnations)
        named = {known for known, up_to in zip(incarnations, nbytes, strict=True) if up_to <= _MOST_BYTES}
        return [address for address in addresses if address.incarnation in named]


def _size(address: WorkerAddress) -> int:
    """Return an upper bound of the address's bytes in a message: three strings, two integers and all prefixes."""
    return 28 + sum(len(text.encode()) for text in (address.worker, address.endpoint, address.boot_id))
