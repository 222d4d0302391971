"""The download of a bundle, or of the graphs in it: the next request, and checks of what comes.

Rules: pure; the manifest first, then file after file, one piece at a time. No content is accepted unless its SHA-256 is
in the manifest, and no manifest unless the bundle's digest is its SHA-256. If the coordinator has another bundle now,
the download starts again with that one. Pieces that are wrong again and again are an error: a file there was changed in
place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.fleet.manifest import GRAPHS, INDEX, BundleFile, Manifest, sha256
from shared.errors import DataError
from shared.wire import messages as m
from shared.wire.message_parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["FetchedGraph", "Fetching", "FilePiece", "GraphFetching"]

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
        #: The bundle's digest, which the coordinator's first piece names; empty before that.
        self._digest = ""
        #: The beginning of the manifest, and how long it will be.
        self._begun = b""
        self._manifest_nbytes = 0
        #: The pieces that are still to come, in order.
        self._left: deque[tuple[BundleFile, int]] = deque()
        self._wrong = 0
        #: Bytes of files that are still to come.
        self.left_nbytes = 0

    def wanted(self) -> m.BundleWanted | None:
        """Return the next request; None if everything is here, or if `need` was not called yet."""
        if self.manifest is None:
            return m.BundleWanted(digest=self._digest, offset=len(self._begun))
        return m.BundleWanted(digest=self._digest, offset=self._next_offset()) if self._left else None

    def wanted_after(self) -> m.BundleWanted:
        """Return the request that is answered once there is another bundle; needs this one's manifest."""
        assert self.manifest is not None
        return m.BundleWanted(digest=self._digest, offset=self.manifest.end)

    def need(self, pieces: Mapping[str, int]) -> None:
        """Fetch these files, each from this piece on; to be called once the manifest is here.

        Names that are not in the manifest are ignored. What an earlier call asked for is fetched no more.
        """
        assert self.manifest is not None
        needed = [(file, pieces[file.name]) for file in self.manifest.files if file.name in pieces]
        self._left = deque((file, number) for file, first in needed for number in range(first, file.count))
        self.left_nbytes = sum(file.piece_nbytes(number) for file, number in self._left)

    def take(self, piece: m.BundlePiece) -> FilePiece | None:
        """Take in an answer; return the checked bytes of a file if it brings the piece that is due, otherwise None.

        An answer of another bundle starts the download again with that one. Raise DataError after the third piece or
        manifest of a bundle with a wrong checksum, or if the manifest is malformed.
        """
        # The coordinator answers with the beginning of its own bundle if the request names another one, as it does when
        # the coordinator was started again meanwhile.
        if piece.digest != self._digest or (self.manifest is None and piece.manifest_nbytes != self._manifest_nbytes):
            self._begin_anew(piece)
        if self.manifest is None:
            self._take_manifest(piece)
            return None
        # A request that was repeated is answered twice: the second answer is no longer due.
        if not self._left or piece.offset != self._next_offset():
            return None
        file, number = self._left[0]
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
        """Add to the manifest, if this is its next part; check it once it is complete.

        A manifest with a wrong checksum is asked for again. Raise DataError if that happens too often, or if it is
        malformed.
        """
        # A request that was repeated is answered twice.
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

    def _note_wrong(self, name: str) -> None:
        """Count a piece with a wrong checksum, which is asked for again; raise DataError at the third."""
        self._wrong += 1
        if self._wrong >= _MOST_WRONG:
            raise DataError(
                expected=f"the bytes of {name} that the bundle's checksum names",
                got=f"others, {self._wrong} times",
                where="coordinator",
                remedy="A file that the job names was changed in place: start the coordinator again.",
            )

    def _next_offset(self) -> int:
        """Return the offset in the bundle at which the next piece begins."""
        assert self.manifest is not None
        file, number = self._left[0]
        return self.manifest.offset_of(file) + number * BUNDLE_PIECE_BYTES


class FetchedGraph:
    """A graph and the files of its index, by their names there.

    Making it raises KeyError if the files lack the graph.
    """

    def __init__(self, stream: str, files: Mapping[str, bytes | bytearray]) -> None:
        self.stream = stream
        self.graph = bytes(files[f"{GRAPHS}/{stream}/graph"])
        prefix = f"{GRAPHS}/{stream}/{INDEX}/"
        self.index = {name.removeprefix(prefix): bytes(files[name]) for name in files if name.startswith(prefix)}


class GraphFetching:
    """The download of graphs that trainers sent, for a worker that lacks them.

    Send `wanted()` to the coordinator, and hand what comes to `take`. Only the files of these graphs are fetched, into
    memory, as a graph is bounded. While the bundle lacks them, the next bundle is waited for.
    """

    def __init__(self) -> None:
        self._fetching = Fetching()
        #: The content so far of the files that are being fetched, and the streams that they belong to.
        self._files: dict[str, bytearray] = {}
        self._streams: list[str] = []

    @property
    def waits(self) -> bool:
        """Return whether this bundle has nothing to fetch, so that the next one is waited for."""
        return self._fetching.manifest is not None and self._fetching.wanted() is None

    def wanted(self) -> m.BundleWanted:
        """Return the next request: for a piece that is missing or, if none is, for the next bundle."""
        return self._fetching.wanted() or self._fetching.wanted_after()

    def need(self, streams: Collection[str]) -> None:
        """Fetch the graphs of these streams that the bundle has, unless they lie beyond its size limit.

        Do nothing while others are being fetched, or while the manifest is not here.
        """
        manifest = self._fetching.manifest
        if manifest is None or not self.waits:
            return
        # Files beyond the job's size limit are never sent: a request for one would be repeated for ever.
        names = {file.name for file in manifest.files} - manifest.refused
        self._streams = [stream for stream in sorted(streams) if f"{GRAPHS}/{stream}/graph" in names]
        prefixes = tuple(f"{GRAPHS}/{stream}/" for stream in self._streams)
        self._files = {name: bytearray() for name in names if name.startswith(prefixes)}
        self._fetching.need(dict.fromkeys(self._files, 0))

    def take(self, piece: m.BundlePiece) -> list[FetchedGraph]:
        """Take in a piece; return the graphs that were wanted once all of them are complete, otherwise nothing.

        If another bundle came in between, what was fetched so far is dropped. Raise DataError if pieces are wrong again
        and again, or if the manifest is malformed.
        """
        before = self._fetching.manifest
        part = self._fetching.take(piece)
        # Another bundle has come in between: what was fetched so far may be of other graphs.
        if self._fetching.manifest is not before:
            self._streams, self._files = [], {}
        if part is None:
            return []
        self._files[part.file.name] += part.content
        if not self.waits:
            return []
        files, self._files = self._files, {}
        streams, self._streams = self._streams, []
        return [FetchedGraph(stream, files) for stream in streams]
