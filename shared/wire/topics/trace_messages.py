"""Messages by which a job's processes are asked for the stamps of batches.

Rules: pure; as for all messages. Trainers listen nowhere, so the coordinator passes questions and answers on.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import Blob, Integer, Many, Maybe, record
from shared.wire.message_parts import COUNT, EPOCH, FLAG, ID, MS, NAME, ROLES, Message, TraceProcess, message, wire

__all__ = ["MOST_ASKED", "MOST_LISTED", "MOST_STAMP_BYTES", "TracePage", "TraceProcesses", "TraceQuery", "TraceWanted"]

#: Limit of processes in one list, so that it fits in a frame; and in one question.
MOST_LISTED = 2000
MOST_ASKED = 256

#: Limit of a page's stamps: a request to the coordinator has to stay below `MAXMSGSIZE`.
MOST_STAMP_BYTES = 45_056
_NS = Integer(0, 2**63 - 1)


@message("TraceQuery", to="coordinator", by=ROLES)
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery(Message):
    """Question for stamps of these processes; without any, for the list of processes."""

    serial: int = wire(COUNT)
    processes: tuple[int, ...] = wire(Many(ID, MOST_ASKED))
    first_row: int = wire(COUNT)
    last_ms: int = wire(MS)
    stream: str = wire(NAME)
    epoch: int | None = wire(Maybe(EPOCH))
    number: int | None = wire(Maybe(COUNT))


@message("TraceProcesses")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProcesses(Message):
    """Answer to a `TraceQuery` without processes: the job's trainers and workers."""

    serial: int = wire(COUNT)
    processes: tuple[TraceProcess, ...] = wire(Many(record(TraceProcess), MOST_LISTED))
    left_out: int = wire(COUNT)


@message("TraceWanted")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWanted(Message):
    """The coordinator's request to a process for a page of its stamps."""

    serial: int = wire(COUNT)
    first_row: int = wire(COUNT)
    last_ms: int = wire(MS)
    stream: str = wire(NAME)
    epoch: int | None = wire(Maybe(EPOCH))
    number: int | None = wire(Maybe(COUNT))


@message("TracePage", to="coordinator", by=("trainer", "worker"))
@dataclass(frozen=True, slots=True, kw_only=True)
class TracePage(Message):
    """Page of a process's stamps, oldest first; passed on by the coordinator under the serial of who asked."""

    serial: int = wire(COUNT)
    process: int = wire(ID)
    gone: bool = wire(FLAG)
    boot_id: str = wire(NAME)
    now_ns: int = wire(_NS)
    oldest_ns: int = wire(_NS)
    streams: tuple[str, ...] = wire(Many(NAME, 64))
    stamps: bytes = wire(Blob(MOST_STAMP_BYTES))
    next_row: int | None = wire(Maybe(COUNT))
    overwritten: int = wire(COUNT)
