"""Messages by which a joining host fetches what a job needs; see messages.

Rules: pure; as there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.declared import Message, message
from shared.wire.parts import BUNDLE_BYTES, BUNDLE_PIECE, MANIFEST_BYTES, NAME, wire

__all__ = ["BundlePiece", "BundleWanted"]


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
