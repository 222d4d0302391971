"""Messages about a worker's builder fingerprint, which name the parts that differ; see messages.

Rules: pure; as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.bounds import FixedList, Many
from shared.wire.declared import Message, message
from shared.wire.parts import NAME, wire

__all__ = ["MOST_PARTS", "BuilderParts"]

#: Most parts that fit into a request even if all names are long.
MOST_PARTS = 128


@message("BuilderParts", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderParts(Message):
    """Question of a worker that was refused for its builder fingerprint: which parts differ, by name and value."""

    worker: str = wire(NAME)
    parts: tuple[tuple[str, str], ...] = wire(Many(FixedList((NAME, NAME)), MOST_PARTS))
