"""What is kept beside an index about a gzip file of records: points to unpack it from, and where its records begin.

Three files, named by the compressed file's content: the points, as indexed_gzip writes them; where each record begins
once unpacked; and facts in JSON, which is written last, so that what has them is whole. Rules: only making them needs
the library; memory does not grow with the file. Content between two points is a block, and each has a digest: what is
unpacked later is the indexed content or none.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from loader_server.sources.records.gzip_points import WINDOW_BYTES, GzipDamage, GzipPoints, unpacked_from
from loader_server.sources.records.tfrecord_file import ranges_in_parts, refuse_no_records
from shared.errors import DataError
from shared.extras import library
from shared.stores.own_files import draft_of, replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["GzipFacts", "GzipIndex", "first_bytes", "make_gzip_index", "remove_others"]

#: Unpacked bytes between two points, at least.
_LEAST_SPACING = 2**21
#: Points of a file that unpacks to eight times its size; the library holds all windows in memory while it looks.
_POINTS = 4096
_RATIO = 8
_POINTS_SUFFIX, _STARTS_SUFFIX, _FACTS_SUFFIX = ".gzidx", ".starts", ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GzipFacts:
    """The unpacked size, a digest of each block, and what is wrong with the file behind its last record, or ""."""

    bytes: int
    digests: list[str]
    broken: str


class GzipIndex:
    """What is kept about one file, mapped from the folder.

    Making it raises an OSError if a file is missing, and a ValueError, KeyError or TypeError if one is damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.facts = GzipFacts(**json.loads((folder / f"{name}{_FACTS_SUFFIX}").read_text("utf-8")))
        self.points = GzipPoints(_mapped(folder / f"{name}{_POINTS_SUFFIX}"))
        #: Where each record begins, and last where the last whole one ends.
        self.starts: NDArray[np.int64] = np.frombuffer(_mapped(folder / f"{name}{_STARTS_SUFFIX}"), "<i8")
        if len(self.points) != len(self.facts.digests) or not len(self.starts):
            raise ValueError(f"{len(self.points)} points, {len(self.facts.digests)} digests")

    @property
    def records(self) -> int:
        """Return how many whole records there are."""
        return len(self.starts) - 1

    def block_at(self, place: int) -> int:
        """Return the number of the block that holds this byte of the content; of the last one for those behind it."""
        return int(np.searchsorted(self.points.starts, place, "right")) - 1

    def bounds(self, block: int) -> tuple[int, int]:
        """Return where a block of the content begins and ends."""
        starts = self.points.starts
        stop = int(starts[block + 1]) if block + 1 < len(starts) else self.facts.bytes
        return int(starts[block]), min(stop, self.facts.bytes)  # a damaged block ends where it cannot be unpacked


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def make_gzip_index(folder: Path, name: str, packed: Path, data: mmap.mmap | bytes, where: str) -> GzipIndex:
    """Return what is kept about a file, after making it unless it is there.

    Of a file that is damaged or cut short, what comes before counts. Raise a DataError if its content does not begin
    with a record, a SettingsError if the library is missing, and an OSError if the disk is full, or fails.
    """
    # Whatever another version or a bad disk left there: then it is made anew.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return GzipIndex(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    damage = _write_points(folder / f"{name}{_POINTS_SUFFIX}", packed, len(data), where)
    points = GzipPoints(_mapped(folder / f"{name}{_POINTS_SUFFIX}"))
    blocks = _DigestedContent(data, points)
    broken, last = "", 0
    with replacing(folder / f"{name}{_STARTS_SUFFIX}") as file:
        for begin, run, records in ranges_in_parts(blocks):
            if not begin:
                refuse_no_records(run, records, where)
            file.write((begin + records.begins).astype("<i8").tobytes())
            last, broken = begin + records.stop, records.broken
        file.write(np.array([last], "<i8").tobytes())
    for _ in blocks:  # what follows a damaged header is in no record, but has digests
        pass
    if blocks.damage and not blocks.bytes:
        raise DataError(
            expected="a TFRecord file, or one that is compressed by GZIP",
            got=f"one that cannot be unpacked: {blocks.damage}",
            where=where,
            remedy="Write or copy it again, or name other files in `paths` of the stream.",
        )
    # What zlib finds says more than a record that is not whole, and that more than a checksum of all.
    broken = blocks.damage or broken or damage
    facts = GzipFacts(bytes=blocks.bytes, digests=blocks.digests, broken=broken)
    with replacing(folder / f"{name}{_FACTS_SUFFIX}") as file:
        file.write(json.dumps(asdict(facts)).encode())
    return GzipIndex(folder, name)


def _write_points(path: Path, packed: Path, nbytes: int, where: str) -> str:
    """Write the points of a file, and return what the library finds wrong with it, or "".

    Raise a SettingsError if the library is missing, and an OSError if the disk is full, or fails.
    """
    indexed_gzip = library(
        "indexed_gzip",
        extra="gzip",
        use="which finds places to read from in a compressed file",
        where=where,
        otherwise="or unpack the file (gunzip)",
    )
    spacing, damage = max(_LEAST_SPACING, _RATIO * nbytes // _POINTS), ""
    draft = draft_of(path)
    with indexed_gzip.IndexedGzipFile(str(packed), spacing=spacing, window_size=WINDOW_BYTES) as file:
        try:
            file.build_full_index()
        except indexed_gzip.ZranError:
            damage = "a checksum of the compressed file does not match"
        try:
            file.export_index(str(draft))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return damage


class _DigestedContent:
    """The content of a file, part by part, as one iterator; meanwhile blocks get their digests.

    Nothing is raised for damage: the content ends there.
    """

    def __init__(self, data: mmap.mmap | bytes, points: GzipPoints) -> None:
        self.bytes = 0
        self.digests: list[str] = []
        self.damage = ""
        self._parts = self._unpacked(data, points)

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def _unpacked(self, data: mmap.mmap | bytes, points: GzipPoints) -> Iterator[bytes]:
        # Each block is unpacked from its own point, as it will be later: a point that leads elsewhere shows here.
        for number in range(len(points)):
            digest, left = xxhash.xxh3_64(), _length(points, number)
            parts = unpacked_from(data, points[number])
            try:
                for part in first_bytes(parts, left):
                    digest.update(part)
                    self.bytes += len(part)
                    yield part
            except GzipDamage as error:
                self.damage = str(error)
            self.digests.append(digest.hexdigest())
            if self.damage:
                self.digests += [""] * (len(points) - number - 1)
                return


def _length(points: GzipPoints, number: int) -> int | None:
    starts = points.starts
    return int(starts[number + 1] - starts[number]) if number + 1 < len(starts) else None


def first_bytes(parts: Iterable[bytes], nbytes: int | None) -> Iterator[bytes]:
    """Yield the first `nbytes` bytes of what comes in parts, or all without a limit."""
    for part in parts:
        if nbytes is None:
            yield part
            continue
        yield part[:nbytes]
        nbytes -= len(part)
        if nbytes <= 0:
            return


def remove_others(folder: Path, names: Iterable[str]) -> None:
    """Remove from the folder what is kept about other files than these, and unfinished files; there may be none."""
    kept = {f"{name}{suffix}" for name in names for suffix in (_POINTS_SUFFIX, _STARTS_SUFFIX, _FACTS_SUFFIX)}
    for path in folder.glob("*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)
