"""What a worker's builder fingerprint is made of, to name what differs; see messages.

Rules: pure; as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import FixedList, Many
from shared.wire.declared import Message, message
from shared.wire.parts import NAME, wire

__all__ = ["MOST_PARTS", "BuilderParts"]

#: As many as fit into a request even if all names are long.
MOST_PARTS = 128


@message("BuilderParts", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderParts(Message):
    """A worker that was refused for its builder fingerprint asks which of its parts differ, by name and value."""

    worker: str = wire(NAME)
    parts: tuple[tuple[str, str], ...] = wire(Many(FixedList((NAME, NAME)), MOST_PARTS))
