"""What a worker answers when it cannot or will not build: each answer says what was expected, what came, what to do.

Pure: what to refuse is decided in `reception`; this module must not know sockets, builders or memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.building.exhaustion import ExhaustedError
from loader_server.sources.blame import told
from shared.errors import MachineError, StokerError
from shared.wire.refusals import refused, unbuilt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.wire import messages as m
    from shared.wire.parts import Ticket

__all__ = [
    "another_job",
    "another_plan",
    "another_trainer",
    "busy",
    "draining",
    "failed",
    "no_such_stream",
    "not_shared",
    "too_many_trainers",
]

_HELLO = "Say hello again."


def another_job(hello: m.Hello, job: str) -> m.Refused:
    """The trainer belongs to another job."""
    return refused("job", f"a trainer of job {job}", f"job {hello.job}", "Connect to that job's loaders.")


def no_such_stream(hello: m.Hello, streams: Iterable[str]) -> m.Refused:
    """The job has no stream of this name."""
    expected = f"one of the streams {', '.join(streams)}"
    return refused("stream", expected, hello.stream, "Correct the stream's name.")


def too_many_trainers(most: int) -> m.Refused:
    """No room for another session."""
    expected = f"at most {most} trainers"
    return refused("busy", expected, "one more", "Ask another worker, or add workers.")


def another_trainer(ticket: Ticket) -> m.Unbuilt:
    """The want comes from a trainer that did not say hello to this incarnation."""
    return unbuilt(
        ticket, "unknown", "a want of a trainer that said hello to this incarnation", "another", "worker", _HELLO
    )


def not_shared(ticket: Ticket) -> m.Unbuilt:
    """The want is to be written into memory that is not shared."""
    return unbuilt(ticket, "unknown", "a want that comes by TCP", "one to be written in place", "worker", _HELLO)


def draining(ticket: Ticket) -> m.Unbuilt:
    """The worker is leaving."""
    return unbuilt(ticket, "draining", "a worker that stays", "one that drains", "worker", "Ask another.")


def busy(ticket: Ticket) -> m.Unbuilt:
    """The trainer asks for too much at once."""
    expected = "one open want for each slot that was offered, from a trainer that reads its answers"
    return unbuilt(ticket, "busy", expected, f"one more, for slot {ticket.slot}", "worker", "Ask again later.")


def another_plan(want: m.Want, digest: str | None, worker: str) -> m.Unbuilt:
    """The want belongs to another plan than that of this `digest`; None if the stream is not here."""
    got = digest if digest is not None else f"no stream {want.stream}"
    remedy = "Give all machines the same job file and index."
    return unbuilt(want.ticket, "plan", f"plan {want.plan_digest}", got, f"worker {worker}", remedy)


def failed(want: m.Want, error: BaseException) -> m.Unbuilt:
    """Building it raised this error."""
    if isinstance(error, ExhaustedError):
        return unbuilt(want.ticket, "exhausted", error.expected, error.got, error.where, error.remedy)
    if isinstance(error, MachineError):
        return unbuilt(want.ticket, "machine", error.expected, error.got, error.where, error.remedy)
    if isinstance(error, StokerError):
        return unbuilt(want.ticket, "failed", error.expected, error.got, error.where, error.remedy)
    got, where = told(error), f"batch {want.number} of epoch {want.epoch}"
    return unbuilt(want.ticket, "failed", "the batch to be built", got, where, "Look at the worker's log.")
