"""A worker's process and the link to it, as the simulated world has them: they keep what the real ones promise.

A connection keeps its order and loses what is on it when it is cut, a stopped process keeps what it holds, a dead one
writes nowhere. `Tickets` and `WantQueue` are the real ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader_server.tickets import Tickets
from loader_server.want_queue import WantQueue
from shared.messages import Ticket

if TYPE_CHECKING:
    from trainer_client import want_events as e

__all__ = ["BUILD_STEPS", "Link", "Process", "Stamp"]

#: A build writes its slot in so many pieces, one a step.
BUILD_STEPS = 3

Stamp = tuple[int, Ticket] | None


@dataclass(slots=True, eq=False)
class _Job:
    want: e.SendWant
    written: int = 0
    pause: int = 0
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """A worker as `loader_server.worker` behaves."""

    incarnation: int
    endpoint: int
    in_slot: bool
    memory: list[list[Stamp]]
    alive: bool = True
    stopped: bool = False
    hung_steps: int = 0
    draining: bool = False
    wrong: bool = False
    refusing: bool = False
    #: Extra steps for each piece.
    slow: int = 0
    #: Steps that each build holds the interpreter's lock: nothing of the process turns meanwhile.
    hogging: int = 0
    session: bool = False
    tickets: Tickets = field(default_factory=Tickets)
    jobs: dict[Ticket, _Job] = field(default_factory=dict)
    queue: WantQueue[str, _Job] = field(default_factory=WantQueue)
    building: _Job | None = None

    @property
    def turns(self) -> bool:
        return self.alive and not self.stopped and not self.hung_steps

    @property
    def locked(self) -> bool:
        """Whether it holds its lock on the trainer's memory: the proof of life."""
        return self.alive and self.in_slot and self.session

    def step(self, link: Link) -> None:
        if self.alive and not self.stopped and self.hung_steps:
            self.hung_steps -= 1
        if not self.turns:
            return
        while link.up and not link.held and link.to_worker:
            self._receive(link, *link.to_worker.popleft())
        self._build(link)

    def _receive(self, link: Link, kind: str, body: Any) -> None:
        if kind == "hello":
            self.session = True
            link.answer("welcome", (self.incarnation, self.in_slot))
        elif kind == "want":
            self._want(link, body)
        elif kind == "cancel":
            self._cancel(link, body)
        elif kind == "ping":
            link.answer("pong", (body, self.tickets.held() if self.session else ()))

    def _want(self, link: Link, want: e.SendWant) -> None:
        if not self.session or want.worker != self.incarnation:
            link.answer("unbuilt", (want.ticket, "unknown"))
        elif self.draining:
            link.answer("unbuilt", (want.ticket, "draining"))
        elif self.tickets.accept(want.ticket):
            job = self.jobs[want.ticket] = _Job(want)
            self.queue.put("trainer", job, urgent=want.urgent)

    def _cancel(self, link: Link, ticket: Ticket) -> None:
        job = self.jobs.get(ticket)
        if job is not None:
            job.cancelled = True
            if self.queue.remove("trainer", job):
                self._end(job)
                link.answer("cancelled", ticket)

    def _end(self, job: _Job) -> None:
        self.tickets.answer(job.want.ticket)
        del self.jobs[job.want.ticket]

    def _build(self, link: Link) -> None:
        if self.building is None:
            self.building = self.queue.take()
            self.hung_steps = self.hogging if self.building is not None else 0
        job = self.building
        if job is None:
            return
        if job.pause:
            job.pause -= 1
        elif not self.refusing and not job.cancelled and job.written < BUILD_STEPS:
            self._write(job)
        else:
            self.building = None
            self._answer(link, job)

    def _write(self, job: _Job) -> None:
        if job.want.in_slot:
            self.memory[job.want.ticket.slot][job.written] = (self.incarnation, job.want.ticket)
        job.written += 1
        job.pause = self.slow

    def _answer(self, link: Link, job: _Job) -> None:
        self._end(job)
        if job.cancelled:
            link.answer("cancelled", job.want.ticket)
        elif self.refusing:
            link.answer("unbuilt", (job.want.ticket, "failed"))
        else:
            link.answer("pushed", (job.want, self.incarnation, not self.wrong))

    def drain(self, link: Link) -> None:
        """SIGTERM: what is built is finished, the rest refused."""
        self.draining = True
        while (job := self.queue.take()) is not None:
            self._end(job)
            link.answer("unbuilt", (job.want.ticket, "draining"))

    def forget(self) -> None:
        """It heard nothing of the trainer for long: the session is over, if nothing of ours can still write."""
        for job in self.queue.drop("trainer"):
            self._end(job)
        if self.building is not None:
            self.building.cancelled = True
        else:
            self.session, self.tickets = False, Tickets()


@dataclass(slots=True, eq=False)
class Link:
    """The connection to one endpoint, and what the trainer knows of it."""

    endpoint: int
    up: bool = False
    held: bool = False
    to_worker: deque[tuple[str, Any]] = field(default_factory=deque)
    to_trainer: deque[tuple[str, Any]] = field(default_factory=deque)
    incarnation: int | None = None
    shared: bool = False
    left: bool = False

    def answer(self, kind: str, body: Any) -> None:
        if self.up:
            self.to_trainer.append((kind, body))

    def send(self, kind: str, body: Any) -> bool:
        if self.up:
            self.to_worker.append((kind, body))
        return self.up

    def cut(self, *, after: str) -> None:
        """What was on the way to the worker is lost; what comes from it is `lost`, or read before or after the news."""
        pending = [] if after == "lost" else [one for one in self.to_trainer if one[0] != "news"]
        self.up = False
        self.to_worker.clear()
        self.to_trainer.clear()
        self.to_trainer.extend(pending if after == "read before" else ())
        self.to_trainer.append(("news", False))
        self.to_trainer.extend(pending if after == "read after" else ())

    def connect(self) -> None:
        self.up = True
        self.to_trainer.append(("news", True))
