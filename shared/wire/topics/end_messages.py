"""How trainers learn that their job is ended by order, and not by accident.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.declared import Message
from shared.wire.parts import FLAG, wire

__all__ = ["JobEnds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnds(Message):
    """The job ends: there are no more batches, except those that a trainer has leased if it `drains`."""

    drains: bool = wire(FLAG)
