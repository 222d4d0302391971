"""The manifest of a bundle: which files a joining host needs, and the checksum of every piece of them.

Rules: pure. A bundle's digest is the SHA-256 of its manifest, so equal digests mean equal bytes. A manifest that came
from elsewhere is checked completely before it is used: no name leads out of the bundle's folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgpack

from shared.errors import DataError
from shared.wire.message_parts import BUNDLE_PIECE_BYTES, MOST_MANIFEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CODE", "GRAPHS", "INDEX", "JOB_FILE", "BundleFile", "BundlePlace", "Manifest", "is_safe_name", "sha256"]

_FORMAT = 1
_DIGEST_BYTES = 32

#: Names in a bundle: of the job file, and of the folders of indexes, the user's own modules, and graphs that trainers
#: sent.
JOB_FILE = "job.toml"
INDEX = "index"
CODE = "code"
GRAPHS = "graphs"

_MOST_FILES = 65_536
_MOST_PARTS = 8
_MOST_BYTES = 2**40
_LONGEST_PART = 255


def sha256(content: bytes | memoryview) -> bytes:
    """Return the SHA-256 digest of these bytes, as 32 bytes and not in hexadecimal."""
    return hashlib.sha256(content).digest()


def is_safe_name(name: str) -> bool:
    """Return whether a file of this name is sure to lie below the bundle's folder.

    It may have at most eight parts, and each must be a visible name: not empty or too long, without a dot in front, a
    backslash or unprintable characters.
    """
    parts = name.split("/")
    return len(parts) <= _MOST_PARTS and all(map(_is_safe_part, parts))


def _is_safe_part(part: str) -> bool:
    """Return whether it is a visible name within a folder, of at most 255 bytes, without dot in front or backslash.

    Other characters may be in it if they are printable, as columns have whatever names users gave.
    """
    is_named = bool(part) and not part.startswith(".") and part.isprintable() and "\\" not in part
    return is_named and len(part.encode("utf-8", "replace")) <= _LONGEST_PART


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file: its name in the bundle, size, SHA-256, and the SHA-256 of each of its pieces, concatenated."""

    name: str
    nbytes: int
    digest: bytes
    pieces: bytes

    @property
    def count(self) -> int:
        """Return how many pieces of BUNDLE_PIECE_BYTES the file has, the last one perhaps shorter; 0 if it is empty."""
        return -(-self.nbytes // BUNDLE_PIECE_BYTES)

    def piece_nbytes(self, number: int) -> int:
        """Return the size of a piece in bytes: a full piece, or what is left for the last one.

        The number must be below `count`, which nothing checks.
        """
        return min(BUNDLE_PIECE_BYTES, self.nbytes - number * BUNDLE_PIECE_BYTES)

    def has_piece(self, number: int, content: bytes | memoryview) -> bool:
        """Return whether these bytes have the checksum of a piece; False if the file has no piece of this number."""
        start = number * _DIGEST_BYTES
        return sha256(content) == self.pieces[start : start + _DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class BundlePlace:
    """The place of an offset: the file (None: the manifest), the offset there, and the size of a piece from there."""

    file: BundleFile | None
    start: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a bundle; see the protocol for each field."""

    job: str
    folder: str
    limit: int
    files: tuple[BundleFile, ...]
    named: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> bytes:
        """Return the manifest as it is sent: in msgpack, with sorted tables."""
        packed: bytes = msgpack.packb(
            {
                "format": _FORMAT,
                "job": self.job,
                "folder": self.folder,
                "limit": self.limit,
                "files": [[file.name, file.nbytes, file.digest, file.pieces] for file in self.files],
                "named": dict(sorted(self.named.items())),
                "indexes": dict(sorted(self.indexes.items())),
            }
        )
        return packed

    @cached_property
    def digest(self) -> str:
        """Return the bundle's digest, which is its name: the SHA-256 of the encoded manifest in hexadecimal."""
        # Of the manifest, which has the checksum of each piece: so a piece can be checked before it is written, and a
        # cut costs one piece.
        return sha256(self.encoded).hex()

    def names_below(self, folder: str) -> frozenset[str]:
        """Return the names of the files in a folder and the folders below it; maybe none."""
        return frozenset(file.name for file in self.files if file.name.startswith(f"{folder}/"))

    def without(self, names: frozenset[str]) -> Manifest:
        """Return the manifest of a bundle that lacks the files of these names; its other fields stay as they are."""
        return dataclasses.replace(self, files=tuple(file for file in self.files if file.name not in names))

    @property
    def nbytes(self) -> int:
        """Return the size of all files in bytes, without the manifest."""
        return self.end - len(self.encoded)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return where each file begins, counted from the manifest's first byte, and where the last one ends."""
        return tuple(accumulate((file.nbytes for file in self.files), initial=len(self.encoded)))

    @property
    def end(self) -> int:
        """Return the offset after the last byte of the last file, counted from the manifest's first byte."""
        return self.offsets[-1]

    def offset_of(self, file: BundleFile) -> int:
        """Return where one of its files begins, counted from the manifest's first byte.

        Raise KeyError for a file whose name the bundle lacks.
        """
        return self._begins[file.name]

    @cached_property
    def _begins(self) -> dict[str, int]:
        # Computed once, because a host asks for an offset with each piece that it fetches.
        return {file.name: offset for file, offset in zip(self.files, self.offsets, strict=False)}

    def place_of(self, offset: int) -> BundlePlace | None:
        """Return the place of an offset, which must not be negative; None at the end and beyond."""
        own = len(self.encoded)
        if offset < own:
            return BundlePlace(None, offset, min(BUNDLE_PIECE_BYTES, own - offset))
        if offset >= self.end:
            return None
        number = bisect_right(self.offsets, offset) - 1  # empty files begin where the next one does: take the last
        file, start = self.files[number], offset - self.offsets[number]
        return BundlePlace(file, start, min(BUNDLE_PIECE_BYTES, file.nbytes - start))

    @cached_property
    def refused(self) -> frozenset[str]:
        """Return the files that the coordinator does not send, because they lie beyond the job's size limit.

        Return none if all fit.
        """
        ends = zip(self.files, self.offsets[1:], strict=True)
        return frozenset(file.name for file, end in ends if end - len(self.encoded) > self.limit)

    @staticmethod
    def decode(content: bytes) -> Manifest:
        """Return the manifest in these bytes; raise DataError if they are malformed, or the manifest is unsafe."""
        try:
            manifest = _read(msgpack.unpackb(content))
        except Exception as error:  # malformed bytes raise many kinds of errors
            raise DataError(
                expected="the manifest of a bundle",
                got=str(error) or type(error).__name__,
                where="coordinator",
                remedy="Run the same release of Stoker on both hosts.",
            ) from None
        return manifest


#: Fields of a manifest's encoded form.
_FIELDS = {"format", "job", "folder", "limit", "files", "named", "indexes"}


def _read(fields: Any) -> Manifest:
    """Return the manifest with these decoded fields; raise ValueError, or another error, for a malformed or unsafe one.

    Everything is checked before anything is used: the bytes may come from anybody who poses as the coordinator.
    """
    if not isinstance(fields, dict) or set(fields) != _FIELDS or fields["format"] != _FORMAT:
        raise ValueError(f"other fields than those of format {_FORMAT}")
    if not isinstance(fields["files"], list) or len(fields["files"]) > _MOST_FILES:
        raise ValueError("no list of files, or too many")
    files = tuple(_file(entry) for entry in fields["files"])
    refuse_clashes(file.name for file in files)
    manifest = Manifest(
        job=_job_name(fields["job"]),
        folder=_absolute(fields["folder"]),
        limit=_whole(fields["limit"]),
        files=files,
        named=_texts(fields["named"]),
        indexes=_texts(fields["indexes"]),
    )
    _refuse_strange_names(manifest)
    if len(manifest.encoded) > MOST_MANIFEST_BYTES or manifest.end > _MOST_BYTES:
        raise ValueError("more bytes than a bundle may have")
    return manifest


def _job_name(value: Any) -> str:
    """Return the name of a job; raise ValueError if it is no string, or not safe as the name of a folder."""
    # It becomes the name of a folder.
    if not isinstance(value, str) or not is_safe_name(value) or "/" in value:
        raise ValueError("no name of a job")
    return value


def _absolute(value: Any) -> str:
    """Return the path of a folder; raise ValueError if it is no string, or not absolute."""
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError("no absolute folder of the job")
    return value


def _refuse_strange_names(manifest: Manifest) -> None:
    """Raise ValueError if the job file is missing, a named file is none of the bundle, or an index's name is unsafe."""
    names = {file.name for file in manifest.files}
    if JOB_FILE not in names:
        raise ValueError(f"no {JOB_FILE}")
    if not set(manifest.named.values()) <= names:
        raise ValueError("a named file that the bundle lacks")
    if not all(map(is_safe_name, manifest.indexes)):
        raise ValueError("an index in a folder elsewhere")


def _file(entry: Any) -> BundleFile:
    """Return the file of an entry; raise ValueError if its name is unsafe, or its checksums do not match its size.

    Raise ValueError or TypeError as well if a part has the wrong type or size, or if there are not four parts.
    """
    name, nbytes, digest, pieces = entry
    if not isinstance(name, str) or not is_safe_name(name):
        raise ValueError(f"a file called {name!r:.80}")
    if type(digest) is not bytes or len(digest) != _DIGEST_BYTES or type(pieces) is not bytes:
        raise ValueError(f"no checksums of {name}")
    file = BundleFile(name, _whole(nbytes), digest, pieces)
    if len(pieces) != file.count * _DIGEST_BYTES:
        raise ValueError(f"too few or too many checksums of {name}")
    return file


def refuse_clashes(names: Iterable[str]) -> None:
    """Raise ValueError if two files have one name, or if a file stands where another needs a folder."""
    seen: set[str] = set()
    known = list(names)
    folders = {name[:at] for name in known for at, letter in enumerate(name) if letter == "/"}
    for name in known:
        if name in seen or name in folders:
            raise ValueError(f"two things called {name}")
        seen.add(name)


def _texts(value: Any) -> dict[str, str]:
    """Return a table of strings; raise ValueError if it is none."""
    if not isinstance(value, dict) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise ValueError("no table of names")
    return value


def _whole(value: Any) -> int:
    """Return a number of bytes; raise ValueError if it is negative, too large or no integer."""
    # `isinstance` would let True pass, as a bool is an int.
    if type(value) is not int or not 0 <= value <= _MOST_BYTES:
        raise ValueError("a number out of bounds")
    return value
