"""The refusals of a worker: what was expected, what came and what to do.

Pure: the facts come as arguments, and `reception` sends the answers; this module must not know sockets, builders or
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.building.exhaustion import ExhaustedError
from loader_server.sources.blame import told
from loader_server.wants.tickets import Verdict
from shared.errors import MachineError, StokerError
from shared.wire.refusing import refused, unbuilt

if TYPE_CHECKING:
    from collections.abc import Collection

    from loader_server.wants.session import Session
    from shared.wire import messages as m
    from shared.wire.message_parts import Ticket

__all__ = ["another_trainer", "draining", "failed", "objection_to_hello", "objection_to_want"]

_HELLO = "Say hello again."


def objection_to_hello(hello: m.Hello, job: str, streams: Collection[str], others: int, most: int) -> m.Refused | None:
    """Return why a trainer is not served, or None if it is; `others` are the trainers here, at most `most`."""
    if hello.job != job:
        return refused("job", f"a trainer of job {job}", f"job {hello.job}", "Connect to that job's loaders.")
    if hello.stream not in streams:
        expected = f"one of the streams {', '.join(streams)}"
        return refused("stream", expected, hello.stream, "Correct the stream's name.")
    if others >= most:
        return refused("busy", f"at most {most} trainers", "one more", "Ask another worker, or add workers.")
    return None


def objection_to_want(
    want: m.Want, session: Session, verdict: Verdict, digest: str | None, worker: str
) -> m.Unbuilt | None:
    """Return why a want is not built, or None if it is.

    `digest` is that of the plan of the stream that the want names; None if there is no such stream.
    """
    ticket = want.ticket
    if want.in_slot and session.shared is None:
        return unbuilt(ticket, "unknown", "a want that comes by TCP", "one to be written in place", "worker", _HELLO)
    if digest is None or want.stream != session.stream or want.plan_digest != digest:
        got = digest if digest is not None else f"no stream {want.stream}"
        remedy = "Give all machines the same job file and index."
        return unbuilt(ticket, "plan", f"plan {want.plan_digest}", got, f"worker {worker}", remedy)
    if verdict is Verdict.BUSY:
        expected = "one open want for each slot that was offered, from a trainer that reads its answers"
        return unbuilt(ticket, "busy", expected, f"one more, for slot {ticket.slot}", "worker", "Ask again later.")
    return None


def another_trainer(ticket: Ticket) -> m.Unbuilt:
    """Refuse a want whose sender did not say hello to this incarnation of the worker."""
    return unbuilt(
        ticket, "unknown", "a want of a trainer that said hello to this incarnation", "another", "worker", _HELLO
    )


def draining(ticket: Ticket) -> m.Unbuilt:
    """Refuse a want because the worker is leaving."""
    return unbuilt(ticket, "draining", "a worker that stays", "one that drains", "worker", "Ask another.")


def failed(want: m.Want, error: BaseException) -> m.Unbuilt:
    """Answer a want with the error that building it raised."""
    if isinstance(error, ExhaustedError):
        return unbuilt(want.ticket, "exhausted", error.expected, error.got, error.where, error.remedy)
    if isinstance(error, MachineError):
        return unbuilt(want.ticket, "machine", error.expected, error.got, error.where, error.remedy)
    if isinstance(error, StokerError):
        return unbuilt(want.ticket, "failed", error.expected, error.got, error.where, error.remedy)
    got, where = told(error), f"batch {want.number} of epoch {want.epoch}"
    return unbuilt(want.ticket, "failed", "the batch to be built", got, where, "Look at the worker's log.")
