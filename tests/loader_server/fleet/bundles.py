"""Bundles for tests: files with their manifest, and a coordinator that answers from memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from loader_server.fleet.manifest import JOB_FILE, BundleFile, Manifest, sha256
from shared.wire import messages as m
from shared.wire.message_parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILES", "PIECE", "answered", "bundle_file", "made"]

PIECE = BUNDLE_PIECE_BYTES

FILES: Mapping[str, bytes] = {
    JOB_FILE: b"[job]\n",
    "files/0.npz": b"",
    "index/index-train/meta.json": b"{}",
    "index/index-train/columns/a%2Fb c.npy": bytes(range(256)) * (PIECE // 128) + b"tail",
}


def bundle_file(name: str, content: bytes) -> BundleFile:
    pieces = b"".join(sha256(content[at : at + PIECE]) for at in range(0, len(content), PIECE))
    return BundleFile(name, len(content), hashlib.sha256(content).digest(), pieces)


def made(files: Mapping[str, bytes] = FILES, limit: int = 2**30) -> Manifest:
    return Manifest(
        job="digits",
        folder="/data/digits",
        limit=limit,
        files=tuple(bundle_file(name, content) for name, content in files.items()),
        named={"mean.npz": "files/0.npz"} if "files/0.npz" in files else {},
        indexes={"index/index-train": "0123"},
    )


def answered(manifest: Manifest, files: Mapping[str, bytes], wanted: m.BundleWanted) -> m.BundlePiece:
    """What a coordinator that has these files answers."""
    everything = manifest.encoded + b"".join(files.values())
    offset = wanted.offset if wanted.digest == manifest.digest else 0
    place = manifest.place_of(offset)
    assert place is not None
    return m.BundlePiece(
        digest=manifest.digest,
        manifest_nbytes=len(manifest.encoded),
        offset=offset,
        content=everything[offset : offset + place.nbytes],
    )
