"""Cuts that Lhotse makes, found while an index is made: the parts of files that they are made of.

Rules: no audio is read, and Lhotse is not needed: lengths are those that manifests promise, rates and lengths of files
are compared with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any

from loader_server.installed import version_of
from loader_server.sources.audio.stretches import Headers, Stretch
from loader_server.sources.cuts.plain_cuts import UnusableCut, refused_if_malformed
from loader_server.sources.cuts.recipes import (
    holders_in,
    is_recording,
    original_frames,
    planned_frames,
    rate_of,
    recipe_of,
    width_of,
)
from loader_server.sources.cuts.stored_places import SHAR, ArrayPlaces, refuse_placeholder
from loader_server.sources.files.archived_parts import ArchiveFacts
from loader_server.sources.files.file_facts import FileFacts
from loader_server.sources.remote.urls import is_url
from loader_server.sources.sample_limits import OVER_LARGEST, size_texts
from loader_server.sources.source import BadRow
from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loader_server.sources.cuts.plain_cuts import CutSample
    from loader_server.sources.cuts.stored_places import RootedPaths, StoredArray
    from loader_server.sources.files.opening import Files

__all__ = ["MadeCut", "MadeCutPlaces", "MadePart", "made_columns", "version_or_none"]

#: Recordings of more bytes are not read whole: Lhotse seeks in them.
_MOST_READ_BYTES = 2**24
#: How much shorter than its manifest says a recording may be, as in Lhotse.
_SHORTER_S = 0.05
#: The first version of torchaudio without the effects of SoX.
_WITHOUT_SOX = (2, 9)


@dataclass(frozen=True, slots=True)
class MadePart:
    """A part of a file: its version or 0, the digest of a local one or 0, and for an array what is there.

    It is an array if `packing` is not empty.
    """

    path: str
    bytes: int
    version: int
    content: int
    offset: int
    nbytes: int
    packing: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    chunks: str = ""

    @property
    def facts(self) -> FileFacts:
        """Return the size and version of the file."""
        return FileFacts(bytes=self.bytes, version=self.version)

    @property
    def is_sought_in(self) -> bool:
        """Return whether it is a recording that is too large to be read whole."""
        return not self.packing and self.nbytes == self.bytes > _MOST_READ_BYTES

    def to_json(self) -> list[Any]:
        """Return the part as the index keeps it."""
        place = [self.path, self.bytes, self.version, self.content, self.offset, self.nbytes]
        return [*place, self.packing, self.dtype, list(self.shape), self.chunks] if self.packing else place

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> MadePart:
        """Return the part that `to_json` gave these values of."""
        path, size, version, content, offset, nbytes, *array = values
        if not array:
            return cls(path, size, version, content, offset, nbytes)
        packing, dtype, shape, chunks = array
        return cls(path, size, version, content, offset, nbytes, packing, dtype, tuple(shape), chunks)


@dataclass(frozen=True, slots=True)
class MadeCut:
    """A sample that Lhotse makes: its recipe, the parts of files that it is made of, and what it will be.

    That are its frames, its sampling rate, and the numbers of a frame.
    """

    recipe: dict[str, Any]
    parts: tuple[MadePart, ...]
    frames: int
    rate: int
    columns: int


class MadeCutPlaces:
    """Finds the parts of files that cuts are made of, for their "audio" or their "features", as `values` says.

    A sample that is more than `largest` bytes once made is a bad row (0: no limit). Close it after use.
    """

    def __init__(self, files: Files, paths: RootedPaths, values: str, largest: int) -> None:
        self._files = files
        self._paths = paths
        self._values = values
        self._largest = largest
        self._headers = Headers(files, largest=0)
        self._arrays = ArrayPlaces(files, paths, largest)
        self._archives = ArchiveFacts(files)

    def close(self) -> None:
        """Close the files that are open."""
        self._arrays.close()

    def find(self, part: CutSample, where: tuple[str, int]) -> MadeCut | BadRow:
        """Return what a part of a cut is made of; a BadRow at `where` if a recording cannot be used.

        Raise an UnusableCut if the cut cannot be made alike at each loading, has not what is wanted, or needs a file
        that cannot be used; a ReadError if a remote file cannot be fetched, and an OSError if a local one cannot be
        read. SettingsError and MachineError of looking at files pass through.
        """
        recipe = recipe_of(part, self._values)
        frames, parts = planned_frames(part, recipe, self._values), list[MadePart]()
        for holder in holders_in(recipe):
            if not is_recording(holder):
                parts.append(self._array_part(self._arrays.whole(holder)))
                continue
            with refused_if_malformed():
                _refuse_without_sox(holder)
            for source in holder["sources"]:
                found = self._shard_part(source) if source["type"] == SHAR else self._file_part(holder, source, where)
                if isinstance(found, BadRow):
                    return found
                parts.append(found)
        made = MadeCut(recipe, tuple(parts), frames, rate_of(recipe), width_of(recipe))
        if self._largest and 4 * frames * made.columns > self._largest:
            texts = size_texts(4 * frames * made.columns, self._largest)
            raise UnusableCut(OVER_LARGEST, "expected {}, got {}".format(*texts))
        return made

    def _array_part(self, array: StoredArray) -> MadePart:
        """Return the part of a file that has stored features."""
        return MadePart(
            path=array.path,
            bytes=array.facts.bytes,
            version=array.facts.version if is_url(array.path) else 0,
            content=array.content,
            offset=array.offset,
            nbytes=array.nbytes,
            packing=array.packing,
            dtype=array.dtype,
            shape=array.shape,
            chunks=",".join(map(str, array.chunks)),
        )

    def _file_part(
        self, recording: Mapping[str, Any], source: Mapping[str, Any], where: tuple[str, int]
    ) -> MadePart | BadRow:
        """Return the file of a recording; a BadRow if it cannot be used, or has another rate or length."""
        path = self._paths.below_root(source["source"])
        # Without a limit on their size: only what a cut needs of them is decoded.
        found = self._headers.find(self._paths.here(source["source"]), Stretch(), where)
        if isinstance(found, BadRow):
            return found
        header = found.header
        with refused_if_malformed():
            frames, rate = original_frames(recording)
        if header.rate != rate:
            detail = f"expected {rate} Hz, as the recording's manifest says, got {header.rate}: {source['source']}"
            raise UnusableCut("other_rate", detail)
        if header.frames < frames - _SHORTER_S * rate:
            detail = f"expected about {frames:.0f} frames, as the recording's manifest says, got {header.frames}"
            raise UnusableCut("outside_recording", f"{detail}: {source['source']}")
        version = header.mtime_ns if is_url(path) else 0
        return MadePart(path, header.bytes, version, header.content, 0, header.bytes)

    def _shard_part(self, source: Mapping[str, Any]) -> MadePart:
        """Return the member of a tar file that has a recording; raise an UnusableCut if the file ends before it."""
        refuse_placeholder(source["source"])
        with refused_if_malformed():
            path, offset, nbytes, _ = source["source"].rsplit(":", 3)
            begin, size = int(offset), int(nbytes)
        try:
            facts, content = self._archives.of(path)
        except ReadError:  # the store cannot be reached: that says nothing about the row
            raise
        except DataError as error:
            raise UnusableCut("missing_file", f"expected {error.expected}, got {error.got}: {path}") from None
        if begin + size > facts.bytes:
            raise UnusableCut("truncated", f"expected {size} bytes from byte {begin} of {path} on, got fewer")
        return MadePart(path, facts.bytes, facts.version if is_url(path) else 0, content, begin, size)


def _refuse_without_sox(recording: Mapping[str, Any]) -> None:
    """Raise an UnusableCut for a change of tempo if torchaudio is missing, or has no effects of SoX any more."""
    if any(transform["name"] == "Tempo" for transform in recording.get("transforms") or ()):
        version = version_or_none("torchaudio")
        if version is None or tuple(map(int, version.split(".")[:2])) >= _WITHOUT_SOX:
            expected = "expected torchaudio before 2.9, whose SoX changes the tempo"
            remedy = "install it, or make whole recordings with save_audios()"
            raise UnusableCut("no_sox", f"{expected}, got {version or 'none'}: {remedy}")


def made_columns(cuts: Sequence[MadeCut]) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """Return the index's numbers and strings of these cuts, besides their lengths."""
    recipes = [json.dumps(cut.recipe, separators=(",", ":")) for cut in cuts]
    parts = [json.dumps([part.to_json() for part in cut.parts], separators=(",", ":")) for cut in cuts]
    strings = {"path": [cut.parts[0].path if cut.parts else "" for cut in cuts], "recipe": recipes, "parts": parts}
    return {"parts": [len(cut.parts) for cut in cuts], "rate": [cut.rate for cut in cuts]}, strings


def version_or_none(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version_of(package)
    except PackageNotFoundError:
        return None
