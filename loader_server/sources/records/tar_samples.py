"""Members of a tar file as samples, grouped as WebDataset groups them. Pure.

Rules: the key of `a/b.seg.png` is `a/b`, its suffix `seg.png` in lower case; consecutive members of one key are a
sample. A member that cannot be used makes its sample a bad one, and the unreadable rest of a file is one bad sample at
the end; WebDataset's own notes on a shard (`__…__`) are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loader_server.sources.records.tar_members import BrokenTar, members_of
from shared.errors import DataError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

    from loader_server.sources.records.tar_members import TarMember

__all__ = ["TarSample", "refuse_no_tar", "samples_of"]

#: Key and suffix: the suffix begins behind the first dot in the last part of the path; if that part begins with a dot,
#: there is no suffix.
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
#: Names of WebDataset's own notes.
_OF_THE_SHARD = re.compile(r"__[^/]*__(?:$|/)")
#: First bytes of compressed files.
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


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


def samples_of(data: mmap.mmap | bytes, at: int = 0) -> Iterator[TarSample]:
    """Yield all samples from the header at `at` on; a damaged rest of the file is one unusable sample."""
    sample: TarSample | None = None
    try:
        for member in members_of(data, at):
            if _OF_THE_SHARD.match(member.name):
                continue
            key, suffix = _parted(member.name)
            if sample is None or sample.key != key:
                if sample is not None:
                    yield sample
                sample = TarSample(key, member.header)
            _add(sample, suffix, member)
    except BrokenTar as error:
        # The damage may have cost this sample some members: a caller that needs one finds it missing.
        if sample is not None:
            yield sample
        sample = TarSample("", error.at)
        sample.refuse("broken_file", f"{error}: nothing from byte {error.at} on can be read")
    if sample is not None:
        yield sample


def _parted(name: str) -> tuple[str, str]:
    """Split a name into key and suffix; the suffix is empty if the name has none."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2].lower()) if found else (name, "")


def _add(sample: TarSample, suffix: str, member: TarMember) -> None:
    """Add a member to a sample, and mark the sample as unusable if the member is."""
    name = ascii(member.name)
    if member.kind:
        sample.refuse(member.kind, f"expected a plain file, got {name}")
    elif member.name.startswith("/") or ".." in member.name.split("/"):
        sample.refuse("unsafe_name", f"expected a name inside of the archive, got {name}")
    elif not _is_utf8(member.name):
        sample.refuse("not_utf8", f"expected a name in UTF-8, got {name}")
    elif not suffix:
        sample.refuse("no_suffix", f"expected a name such as 000017.flac, got {name}")
    elif suffix in sample.members:
        sample.refuse("duplicate_member", f"expected one member with this suffix, got {name} again")
    sample.members[suffix] = member


def _is_utf8(name: str) -> bool:
    """Tell whether a name was valid UTF-8: other bytes were decoded to surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def refuse_no_tar(data: mmap.mmap | bytes, where: str) -> None:
    """Raise a DataError if the file does not even begin like a tar file, and name its compression if known."""
    try:
        next(members_of(data), None)
    except BrokenTar as error:
        if error.cut:
            return  # a tar file that was cut short: its whole samples can be used
        kind = next((kind for start, kind in _COMPRESSED.items() if data[: len(start)] == start), "")
        raise DataError(
            expected="a tar file that is not compressed" if kind else "a tar file",
            got=f"one that is compressed by {kind}" if kind else f"another one: {error}",
            where=where,
            remedy="Members of a compressed file cannot be read in any order: unpack it once (gunzip, zstd -d)."
            if kind
            else "Name tar shards in `paths` of the stream.",
        ) from None
