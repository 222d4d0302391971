"""The download of a bundle: the next request, and checks of what comes.

Rules: pure; the manifest first, then file after file, one piece at a time. No content is accepted unless its SHA-256 is
in the manifest, and no manifest unless the bundle's digest is its SHA-256. If the coordinator has another bundle now,
the download starts again with that one. Pieces that are wrong again and again are an error: a file there was changed in
place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.fleet.manifest import BundleFile, Manifest, sha256
from shared.errors import DataError
from shared.wire import messages as m
from shared.wire.message_parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Fetching", "FilePiece"]

#: This many wrong pieces of one bundle are no accident.
_MOST_WRONG = 3


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Checked bytes, and the file and piece number that they belong to."""

    file: BundleFile
    number: int
    content: bytes

    @property
    def start(self) -> int:
        """Return the offset in the file at which they begin."""
        return self.number * BUNDLE_PIECE_BYTES


class Fetching:
    """The download of one bundle: send `wanted()`, hand what comes to `take`, and name the missing pieces by `need`."""

    def __init__(self) -> None:
        #: The bundle's manifest, once it is here.
        self.manifest: Manifest | None = None
        self._digest = ""
        self._begun = b""
        self._manifest_nbytes = 0
        self._left: deque[tuple[BundleFile, int]] = deque()
        self._wrong = 0
        #: Bytes of files that are still to come.
        self.left_nbytes = 0

    def wanted(self) -> m.BundleWanted | None:
        """Return the next request; None if everything is here, or if `need` was not called yet."""
        if self.manifest is None:
            return m.BundleWanted(digest=self._digest, offset=len(self._begun))
        if not self._left:
            return None
        file, number = self._left[0]
        return m.BundleWanted(digest=self._digest, offset=self._offset(file) + number * BUNDLE_PIECE_BYTES)

    def wanted_after(self) -> m.BundleWanted:
        """Return the request that is answered once there is another bundle; needs this one's manifest."""
        assert self.manifest is not None
        return m.BundleWanted(digest=self._digest, offset=self.manifest.end)

    def need(self, pieces: Mapping[str, int]) -> None:
        """Fetch these files, each from this piece on; to be called once the manifest is here."""
        assert self.manifest is not None
        needed = [(file, pieces[file.name]) for file in self.manifest.files if file.name in pieces]
        self._left = deque((file, number) for file, first in needed for number in range(first, file.count))
        self.left_nbytes = sum(file.piece_nbytes(number) for file, number in self._left)

    def take(self, piece: m.BundlePiece) -> FilePiece | None:
        """Take in an answer; return the checked bytes of a file if it brings the ones that are due.

        Raises DataError after too many pieces with a wrong checksum.
        """
        if piece.digest != self._digest or (self.manifest is None and piece.manifest_nbytes != self._manifest_nbytes):
            self._begin_anew(piece)
        if self.manifest is None:
            self._take_manifest(piece)
            return None
        if not self._left:
            return None
        file, number = self._left[0]
        if piece.offset != self._offset(file) + number * BUNDLE_PIECE_BYTES:
            return None
        if not file.has_piece(number, piece.content):
            self._note_wrong(file.name)
            return None
        self._left.popleft()
        self.left_nbytes -= len(piece.content)
        return FilePiece(file, number, piece.content)

    def _begin_anew(self, piece: m.BundlePiece) -> None:
        self.manifest, self._begun, self._left, self.left_nbytes = None, b"", deque(), 0
        if piece.digest != self._digest:
            self._wrong = 0
        self._digest, self._manifest_nbytes = piece.digest, piece.manifest_nbytes

    def _take_manifest(self, piece: m.BundlePiece) -> None:
        if piece.offset != len(self._begun) or not piece.content:
            return
        self._begun += piece.content
        if len(self._begun) < self._manifest_nbytes:
            return
        content, self._begun = self._begun, b""
        if sha256(content).hex() == self._digest:
            self.manifest = Manifest.decode(content)
        else:
            self._note_wrong("the manifest")

    def _note_wrong(self, what: str) -> None:
        self._wrong += 1
        if self._wrong >= _MOST_WRONG:
            raise DataError(
                expected=f"the bytes of {what} that the bundle's checksum names",
                got=f"others, {self._wrong} times",
                where="coordinator",
                remedy="A file that the job names was changed in place: start the coordinator again.",
            )

    def _offset(self, file: BundleFile) -> int:
        assert self.manifest is not None
        return self.manifest.offset_of(file)
