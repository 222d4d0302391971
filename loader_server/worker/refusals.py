"""What a worker answers when it cannot or will not build: each names what was expected, what came and what to do.

Pure: what to refuse is decided in `worker`; it must not know sockets, builders or memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.building.blame import told
from shared.errors import MachineError, StokerError
from shared.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable

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

_MOST_CHARACTERS = 4000
_HELLO = "Say hello again."


def another_job(hello: m.Hello, job: str) -> m.Refused:
    """The trainer belongs to another job."""
    return m.Refused(
        code="job", expected=f"a trainer of job {job}", got=f"job {hello.job}", remedy="Connect to that job's loaders."
    )


def no_such_stream(hello: m.Hello, streams: Iterable[str]) -> m.Refused:
    """The job has no stream of this name."""
    expected = f"one of the streams {', '.join(streams)}"
    return m.Refused(code="stream", expected=expected, got=hello.stream, remedy="Correct the stream's name.")


def too_many_trainers(most: int) -> m.Refused:
    """No room for another session."""
    expected = f"at most {most} trainers"
    return m.Refused(code="busy", expected=expected, got="one more", remedy="Ask another worker, or add workers.")


def another_trainer(ticket: Ticket) -> m.Unbuilt:
    """The want is of a trainer that did not say hello to this incarnation."""
    return _unbuilt(
        ticket, "unknown", "a want of a trainer that said hello to this incarnation", "another", "worker", _HELLO
    )


def not_shared(ticket: Ticket) -> m.Unbuilt:
    """The want is to be written into memory that is not shared."""
    return _unbuilt(ticket, "unknown", "a want that comes by TCP", "one to be written in place", "worker", _HELLO)


def draining(ticket: Ticket) -> m.Unbuilt:
    """The worker leaves."""
    return _unbuilt(ticket, "draining", "a worker that stays", "one that drains", "worker", "Ask another.")


def busy(ticket: Ticket) -> m.Unbuilt:
    """The trainer asks for too much at once."""
    expected = "one open want for each slot that was offered, from a trainer that reads its answers"
    return _unbuilt(ticket, "busy", expected, f"one more, for slot {ticket.slot}", "worker", "Ask again later.")


def another_plan(want: m.Want, digest: str | None, worker: str) -> m.Unbuilt:
    """The want is of another plan than the one of this `digest`; None: the stream is not here."""
    got = digest if digest is not None else f"no stream {want.stream}"
    remedy = "Give all machines the same job file and index."
    return _unbuilt(want.ticket, "plan", f"plan {want.plan_digest}", got, f"worker {worker}", remedy)


def failed(want: m.Want, error: BaseException) -> m.Unbuilt:
    """Building raised this."""
    if isinstance(error, MachineError):
        return _unbuilt(want.ticket, "machine", error.expected, error.got, error.where, error.remedy)
    if isinstance(error, StokerError):
        return _unbuilt(want.ticket, "failed", error.expected, error.got, error.where, error.remedy)
    got, where = told(error), f"batch {want.number} of epoch {want.epoch}"
    return _unbuilt(want.ticket, "failed", "the batch to be built", got, where, "Look at the worker's log.")


def _unbuilt(  # noqa: PLR0913, PLR0917 - a message
    ticket: Ticket, code: str, expected: str, got: str, where: str, remedy: str
) -> m.Unbuilt:
    expected, got, where, remedy = (text[:_MOST_CHARACTERS] for text in (expected, got, where, remedy))
    return m.Unbuilt(ticket=ticket, code=code, expected=expected, got=got, where=where, remedy=remedy)
