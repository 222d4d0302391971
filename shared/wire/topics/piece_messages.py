"""Messages that carry large contents piece by piece: a trainer's data set, and the bundle for a host that joins.

Rules: pure; as for all messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.message_parts import (
    BUNDLE_BYTES,
    BUNDLE_PIECE,
    FLAG,
    GRAPH_BYTES,
    MANIFEST_BYTES,
    NAME,
    PIECE,
    Message,
    message,
    wire,
)

__all__ = ["BundlePiece", "BundleWanted", "GraphKept", "GraphOffer", "GraphPiece", "GraphWanted"]


# --- a trainer sends its data set, piece by piece as the coordinator asks for it ---


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


# --- a joining host fetches the bundle: each piece is asked for, so a lost one is asked for again ---


@message("BundleWanted", to="coordinator", by=("worker",))
@dataclass(frozen=True, slots=True, kw_only=True)
class BundleWanted(Message):
    """Request for the piece of this bundle that begins at `offset`; without a digest, of the current bundle."""

    digest: str = wire(NAME)
    offset: int = wire(BUNDLE_BYTES)


@message("BundlePiece")
@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePiece(Message):
    """Piece of a bundle, whose first `manifest_nbytes` bytes are its manifest."""

    digest: str = wire(NAME)
    manifest_nbytes: int = wire(MANIFEST_BYTES)
    offset: int = wire(BUNDLE_BYTES)
    content: bytes = wire(BUNDLE_PIECE)
