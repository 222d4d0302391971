"""TFRecord and ArrayRecord files for tests, not written by the reader's own means."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import google_crc32c
from array_record.python import array_record_module

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["damage", "record", "write_array_records", "write_records"]


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


def write_array_records(path: Path, records: Iterable[bytes]) -> Path:
    """A file of records that are not compressed, as the format's own library writes it."""
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for content in records:
        writer.write(content)
    writer.close()
    return path


def damage(path: Path, content: bytes) -> None:
    """Turn a bit in the first of these bytes."""
    raw = bytearray(path.read_bytes())
    raw[raw.index(content)] ^= 1
    path.write_bytes(raw)
