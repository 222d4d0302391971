"""TFRecord files for tests, written by the book and not by the reader's own means."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["record", "write_records"]


def record(data: bytes) -> bytes:
    """One record with its checksums."""
    size = struct.pack("<Q", len(data))
    return size + _checksum(size) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    plain = google_crc32c.value(data)
    return struct.pack("<I", (((plain >> 15) | (plain << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """A file of records."""
    path.write_bytes(b"".join(map(record, records)))
    return path
