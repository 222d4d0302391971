"""A tar file that lies in memory: its members, where their bytes are, and the samples that they make. Pure.

Rules: nothing is unpacked. All common dialects are read: ustar with its prefix, long names of GNU tar and of pax, sizes
of 8 GiB and more. Members other than plain files are reported with their kind. A header with a wrong checksum, or a
file that ends before its end mark, ends the walk with an error. Following headers costs 2 µs a member, a tenth of what
`tarfile` takes.

Members are grouped as WebDataset groups them: the key of `a/b.seg.png` is `a/b`, its suffix `seg.png` in lower case;
consecutive members of one key are a sample. A member that cannot be used makes its sample a bad one, and the unreadable
rest of a file is one bad sample at the end; WebDataset's own notes on a shard (`__…__`) are left out.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import DataError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

__all__ = ["BLOCK", "BrokenTar", "TarMember", "TarSample", "members_of", "refuse_no_tar", "samples_of"]

BLOCK = 512
_END = bytes(BLOCK)

#: Kinds of members by the type flag in the header; "" is a plain file.
_KINDS = {
    **dict.fromkeys(b"07\0", ""),
    ord("1"): "link",
    ord("2"): "link",
    ord("5"): "folder",
    ord("S"): "sparse_file",
    **dict.fromkeys(b"346", "device"),
}
_GNU_NAME, _GNU_LINK, _PAX, _PAX_FOR_ALL = b"LKxg"
#: A checksum is the sum of a header's bytes, with the checksum's own eight bytes counted as spaces.
_SPACES = 8 * ord(" ")
#: The modulus of Adler-32: sums are compared modulo this.
_ADLER_BASE = 65521

#: Key and suffix: the suffix begins behind the first dot in the last part of the path; if that part begins with a dot,
#: there is no suffix.
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
#: Names of WebDataset's own notes.
_OF_THE_SHARD = re.compile(r"__[^/]*__(?:$|/)")
#: First bytes of compressed files.
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class BrokenTar(ValueError):
    """Damage in a tar file: nothing from byte `at` on can be read."""

    def __init__(self, at: int, damage: str, *, cut: bool = False) -> None:
        super().__init__(damage)
        self.at = at
        #: Whether headers were valid so far and the file just ends too early, so it may well be a tar file.
        self.cut = cut


@dataclass(slots=True)
class TarMember:
    """Member of a tar file: its headers begin at `header`, its bytes at `offset`; `kind` is "" for a plain file."""

    name: str
    kind: str
    header: int
    offset: int
    size: int

    @property
    def stop(self) -> int:
        """Return the byte at which the next member begins: sizes are padded to whole blocks."""
        return self.offset + -(-self.size // BLOCK) * BLOCK


def members_of(data: mmap.mmap | bytes, at: int = 0) -> Iterator[TarMember]:
    """Yield all members from the header at `at` on, except folders.

    Raise BrokenTar if a header is damaged, a member is cut off, or the end mark is missing.
    """
    while (block := data[at : at + BLOCK]) != _END:
        member = _member(data, at, block)
        if member.kind != "folder":
            yield member
        at = member.stop


def _member(data: mmap.mmap | bytes, at: int, block: bytes) -> TarMember:
    """Return the member at `at`, after applying the GNU and pax headers that precede its own.

    Raise BrokenTar if a header is damaged, or the file ends before the member does.
    """
    begin, extended = at, dict[str, str]()
    while True:
        flag, size = _flag_and_size(block, at)
        if flag not in (_GNU_NAME, _GNU_LINK, _PAX, _PAX_FOR_ALL):
            break
        # Names and sizes that the member's own header has no room for. GNU's long link names and pax headers for the
        # whole archive are skipped.
        content = data[at + BLOCK : at + BLOCK + size]
        if flag == _GNU_NAME:
            extended["path"] = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif flag == _PAX:
            extended |= _pax(content, at)
        at += BLOCK + -(-size // BLOCK) * BLOCK
        block = data[at : at + BLOCK]
    kind = "sparse_file" if any(key.startswith("GNU.sparse") for key in extended) else _KINDS.get(flag, "unknown_kind")
    size = int(extended.get("size", size)) if kind in ("", "sparse_file") else 0
    # Without this check, a slice of a file that was cut would silently give fewer bytes.
    if at + BLOCK + size > len(data):
        damage = f"a member has {size} bytes, but the file ends after {max(len(data) - at - BLOCK, 0)} of them"
        raise BrokenTar(begin, damage, cut=True)
    return TarMember(extended.get("path") or _name(block), kind, begin, at + BLOCK, size)


def _flag_and_size(block: bytes, at: int) -> tuple[int, int]:
    """Return the type flag and the size in a header.

    Raise BrokenTar if the file ends within it, or if its checksum is wrong or cannot be read, or its size cannot.
    """
    if len(block) < BLOCK:
        raise BrokenTar(at, "the file ends without the mark of its end", cut=at > 0)
    written, size = _octal(block[148:156]), _octal(block[124:136])
    # The stored sum counts its own field as spaces; the field's bytes are added to it, instead of changing a copy.
    if written is None or size is None or _sum(block) != (written + sum(block[148:156]) - _SPACES) % _ADLER_BASE:
        raise BrokenTar(at, "the checksum of a header does not match")
    return block[156], size


def _sum(block: bytes) -> int:
    """Return the sum of the bytes modulo a prime.

    This is the lower half of Adler-32 (minus its start value 1), which zlib computes in a tenth of the time of `sum`.
    """
    return ((zlib.adler32(block) & 0xFFFF) - 1) % _ADLER_BASE


def _octal(digits: bytes) -> int | None:
    """Return a number in a header, 0 if it is blank, or None if it is malformed or negative.

    Numbers are octal digits; those too large for the digits are big-endian bytes behind a marked first byte.
    """
    if digits[0] & 0x80:
        return int.from_bytes(digits[1:], "big")
    try:
        number = int(digits.strip(b" \0") or b"0", 8)
    except ValueError:
        return None
    return number if number >= 0 else None  # a negative size would lead back to an earlier header, in an endless loop


def _name(block: bytes) -> str:
    """Return the member's name from its own header, with the prefix of the ustar format.

    Bytes that are not UTF-8 become surrogates.
    """
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _pax(content: bytes, at: int) -> dict[str, str]:
    """Return the records of a pax header by key; raise BrokenTar if it is malformed.

    A record is "SIZE KEY=VALUE" and a newline, where SIZE counts the whole record.
    """
    records, place = dict[str, str](), 0
    try:
        while place < len(content):
            size, _, _ = content[place:].partition(b" ")
            # A record holds at least its size field; with a size of 0 or less the walk would not advance.
            if int(size) <= len(size):
                raise ValueError(size)
            key, _, value = content[place + len(size) + 1 : place + int(size) - 1].partition(b"=")
            records[key.decode()] = value.decode("utf-8", "surrogateescape")
            place += int(size)
        if not records.get("size", "0").isdecimal():
            raise ValueError(records["size"])
    except ValueError:
        raise BrokenTar(at, "a pax header cannot be read") from None
    return records


@dataclass(slots=True)
class TarSample:
    """Sample of a tar file: its members by suffix, and the byte `at` which its first header begins.

    If the sample cannot be used, `reason` (one word) and `detail` say why; otherwise both are empty.
    """

    key: str
    at: int
    members: dict[str, TarMember] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""

    def refuse(self, reason: str, detail: str) -> None:
        """Mark the sample as unusable, unless an earlier reason has done so."""
        if not self.reason:
            self.reason, self.detail = reason, detail

    def add(self, suffix: str, member: TarMember) -> None:
        """Add a member, and mark the sample as unusable if the member is.

        A member is unusable if it is no plain file, leads out of the archive, is not named in UTF-8 or has no suffix. A
        second member of a suffix makes the sample unusable, too, and replaces the first.
        """
        name = ascii(member.name)
        if member.kind:
            self.refuse(member.kind, f"expected a plain file, got {name}")
        elif member.name.startswith("/") or ".." in member.name.split("/"):
            self.refuse("unsafe_name", f"expected a name inside of the archive, got {name}")
        elif not _is_utf8(member.name):
            self.refuse("not_utf8", f"expected a name in UTF-8, got {name}")
        elif not suffix:
            self.refuse("no_suffix", f"expected a name such as 000017.flac, got {name}")
        elif suffix in self.members:
            self.refuse("duplicate_member", f"expected one member with this suffix, got {name} again")
        self.members[suffix] = member


def samples_of(data: mmap.mmap | bytes, at: int = 0) -> Iterator[TarSample]:
    """Yield all samples from the header at `at` on; a damaged rest of the file is one unusable sample.

    Consecutive members of one key are a sample; WebDataset's notes on the shard are left out.
    """
    # The sample whose members are being collected: it is whole once a member of another key follows, or the file ends.
    held: list[TarSample] = []
    try:
        for member in members_of(data, at):
            if _OF_THE_SHARD.match(member.name):
                continue
            key, suffix = _parted(member.name)
            if not held or held[0].key != key:
                yield from held
                held = [TarSample(key, member.header)]
            held[0].add(suffix, member)
    except BrokenTar as error:
        # The damage may have cost this sample some members: a caller that needs one finds it missing.
        yield from held
        held = [TarSample("", error.at)]
        held[0].refuse("broken_file", f"{error}: nothing from byte {error.at} on can be read")
    yield from held


def _parted(name: str) -> tuple[str, str]:
    """Split a name into key and suffix (in lower case); if there is no suffix, it is empty and the key is the name."""
    parts = _NAME.fullmatch(name)
    return (parts[1], parts[2].lower()) if parts else (name, "")


def _is_utf8(name: str) -> bool:
    """Return whether a name was valid UTF-8: other bytes were decoded to surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def refuse_no_tar(data: mmap.mmap | bytes, where: str) -> None:
    """Raise a DataError if the file does not even begin like a tar file, and name its compression if known.

    A file that is cut short after a whole header passes, and so does damage behind the first member that is no folder.
    """
    try:
        next(members_of(data), None)
    except BrokenTar as error:
        if error.cut:
            return  # a tar file that was cut short: the samples before the cut can be used
        for start, kind in _COMPRESSED.items():
            if data[: len(start)] == start:
                raise DataError(
                    expected="a tar file that is not compressed",
                    got=f"one that is compressed by {kind}",
                    where=where,
                    remedy="Members of a compressed file cannot be read in any order: unpack it once (gunzip, "
                    "zstd -d).",
                ) from None
        raise DataError(
            expected="a tar file",
            got=f"another one: {error}",
            where=where,
            remedy="Name tar shards in `paths` of the stream.",
        ) from None
