"""Points inside of compressed files: whatever compressed them, what follows a point is what gzip gives from there."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

import indexed_gzip
import pytest

from loader_server.sources.records.gzip_points import (
    GZIP,
    WINDOW_BYTES,
    GzipDamage,
    GzipPoint,
    GzipPoints,
    _empty_blocks,
    unpacked_from,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DRAW = random.Random(11)
#: Some of it repeats soon, some after 30 KiB, some never.
CONTENT = b"".join(
    bytes(DRAW.choices(range(60), k=DRAW.randrange(1, 3000))) * DRAW.randrange(1, 14) + DRAW.randbytes(500)
    for _ in range(90)
)
BEGIN = GzipPoint(0, 0, is_header=True)


def by_strategy(level: int, strategy: int, flush: int = zlib.Z_NO_FLUSH) -> Callable[[bytes], bytes]:
    def packed(content: bytes) -> bytes:
        made = zlib.compressobj(level, zlib.DEFLATED, 31, 8, strategy)
        parts = [
            made.compress(content[at : at + 50_000]) + (made.flush(flush) if flush else b"")
            for at in range(0, len(content), 50_000)
        ]
        return b"".join(parts) + made.flush()

    return packed


def in_members(content: bytes) -> bytes:
    cuts = [0, 1, 200_000, 200_000, 700_001, len(content)]
    return b"".join(gzip.compress(content[a:b]) for a, b in pairwise(cuts))


def with_name(content: bytes) -> bytes:
    raw = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = raw.compress(content) + raw.flush()
    trailer = struct.pack("<II", zlib.crc32(content), len(content) % 2**32)
    return GZIP + b"\x08" + bytes(6) + b"name.tfrecord\0" + body + trailer


HOW = {
    "fast": by_strategy(1, zlib.Z_DEFAULT_STRATEGY),
    "usual": by_strategy(6, zlib.Z_DEFAULT_STRATEGY),
    "best": by_strategy(9, zlib.Z_DEFAULT_STRATEGY),
    "stored": by_strategy(0, zlib.Z_DEFAULT_STRATEGY),
    "fixed codes": by_strategy(6, zlib.Z_FIXED),
    "codes alone": by_strategy(6, zlib.Z_HUFFMAN_ONLY),
    "flushed": by_strategy(6, zlib.Z_DEFAULT_STRATEGY, zlib.Z_SYNC_FLUSH),
    "begun anew": by_strategy(6, zlib.Z_DEFAULT_STRATEGY, zlib.Z_FULL_FLUSH),
    "members": in_members,
    "named": with_name,
}


def points_of(folder: Path, packed: bytes, spacing: int = WINDOW_BYTES + 1) -> GzipPoints:
    (folder / "x.gz").write_bytes(packed)
    with indexed_gzip.IndexedGzipFile(str(folder / "x.gz"), spacing=spacing, window_size=WINDOW_BYTES) as file:
        file.build_full_index()
        file.export_index(str(folder / "x.gzidx"))
    return GzipPoints((folder / "x.gzidx").read_bytes())


@pytest.mark.parametrize("how", HOW)
def test_what_follows_a_point_is_the_content_from_there(tmp_path: Path, how: str) -> None:
    packed = HOW[how](CONTENT)
    points = points_of(tmp_path, packed)
    assert len(points) > 4
    assert points[0] == BEGIN
    assert points.starts.tolist() == sorted(set(points.starts.tolist()))
    for number in range(len(points)):
        assert b"".join(unpacked_from(packed, points[number])) == CONTENT[points[number].unpacked :]


def test_points_lie_at_every_bit_of_a_byte(tmp_path: Path) -> None:
    """Else the test above would not try all."""
    points = [points_of(tmp_path, HOW[how](CONTENT)) for how in ("fast", "usual", "best", "codes alone")]
    assert {of[number].bits for of in points for number in range(len(of))} == set(range(8))


@pytest.mark.parametrize("bits", range(1, 8))
def test_empty_blocks_hold_nothing_and_end_at_their_bit(bits: int) -> None:
    # The end of the stream follows: a last block of fixed codes, which is 10 bits.
    blocks = _empty_blocks(bits)
    number = int.from_bytes(blocks, "little")
    end = 0b011 << (8 * len(blocks) - 8 + bits)
    stream = zlib.decompressobj(-15)
    assert stream.decompress((number | end).to_bytes(len(blocks) + 2, "little")) == b""
    assert stream.eof
    assert number >> (8 * len(blocks) - 8 + bits) == 0


def test_parts_are_small_however_well_the_content_is_packed() -> None:
    sizes = [len(part) for part in unpacked_from(gzip.compress(bytes(50_000_000)), BEGIN)]
    assert (sum(sizes), max(sizes)) == (50_000_000, 2**20)


def test_nothing_is_unpacked_before_it_is_taken() -> None:
    parts = unpacked_from(gzip.compress(DRAW.randbytes(2**20))[:-2000], BEGIN)
    assert next(parts)
    with pytest.raises(GzipDamage, match="ends too early"):
        list(parts)


@pytest.mark.parametrize("lost", [1, 7, 8, 9, 1000])
def test_the_end_of_a_file_inside_of_a_member_is_damage(tmp_path: Path, lost: int) -> None:
    packed = HOW["members"](CONTENT)
    points = points_of(tmp_path, packed)
    for point in (points[0], points[len(points) - 1]):
        found = list[bytes]()
        with pytest.raises(GzipDamage, match="the compressed file ends"):
            found.extend(unpacked_from(packed[:-lost], point))


def test_damaged_bytes_are_damage_and_what_comes_before_is_there() -> None:
    packed = HOW["usual"](CONTENT)
    middle = len(packed) // 2
    found = bytearray()
    with pytest.raises(GzipDamage, match=r"damaged \(Error -3"):  # noqa: PT012 the parts before are kept
        for part in unpacked_from(packed[:middle] + random.Random(2).randbytes(middle), BEGIN):
            found += part
    assert CONTENT.startswith(found[: len(CONTENT) // 4])
    assert len(found) > len(CONTENT) // 4


@pytest.mark.parametrize("behind", [bytes(700), b"other bytes", b"\x1f"])
def test_what_stands_behind_the_last_member_is_left_out(behind: bytes) -> None:
    assert b"".join(unpacked_from(gzip.compress(b"content") + behind, BEGIN)) == b"content"


def test_a_file_too_short_for_a_point_has_its_beginning(tmp_path: Path) -> None:
    for content in (b"", b"short"):
        packed = gzip.compress(content)
        points = points_of(tmp_path, packed)
        assert (len(points), points[0]) == (1, BEGIN)
        assert b"".join(unpacked_from(packed, points[0])) == content


def test_a_table_of_another_format_or_cut_short_is_refused(tmp_path: Path) -> None:
    points_of(tmp_path, HOW["usual"](CONTENT))
    table = (tmp_path / "x.gzidx").read_bytes()
    for wrong in (table[:20], table[:40], table[:-1], b"OTHER" + table[5:], table[:5] + b"\x02" + table[6:]):
        with pytest.raises(ValueError, match=r"the table of points|the windows"):
            GzipPoints(wrong)
