"""Message about a worker that does not come up; see messages.

Rules: pure; as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.declared import Message, message
from shared.wire.parts import NAME, PROSE, wire

__all__ = ["Failing"]


@message("Failing", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(Message):
    """Report that a worker cannot serve, and has ended or waits: to the coordinator, and from there to trainers."""

    worker: str = wire(NAME)
    expected: str = wire(PROSE)
    got: str = wire(PROSE)
    where: str = wire(PROSE)
    remedy: str = wire(PROSE)
