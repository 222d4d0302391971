"""Messages about a data set that a trainer sends; see messages.

Rules: pure; as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.declared import Message, message
from shared.wire.parts import FLAG, GRAPH_BYTES, NAME, PIECE, wire

__all__ = ["GraphKept", "GraphOffer", "GraphPiece", "GraphWanted"]


@message("GraphOffer", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOffer(Message):
    """Offer of a trainer's data set for a stream; the answer names the missing part, or says whether it runs yet."""

    job: str = wire(NAME)
    stream: str = wire(NAME)
    digest: str = wire(NAME)
    nbytes: int = wire(GRAPH_BYTES)


@message("GraphWanted")
@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWanted(Message):
    """Request for the piece that begins at `offset`."""

    stream: str = wire(NAME)
    digest: str = wire(NAME)
    offset: int = wire(GRAPH_BYTES)


@message("GraphPiece", to="coordinator", by=("trainer",))
@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPiece(Message):
    """Piece of a graph of `nbytes` bytes."""

    stream: str = wire(NAME)
    digest: str = wire(NAME)
    nbytes: int = wire(GRAPH_BYTES)
    offset: int = wire(GRAPH_BYTES)
    content: bytes = wire(PIECE)


@message("GraphKept")
@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKept(Message):
    """Confirmation that the coordinator has the whole graph; once it `runs`, its stream can be attached to."""

    stream: str = wire(NAME)
    digest: str = wire(NAME)
    runs: bool = wire(FLAG)
