"""Recordings in Kaldi's archives, as kaldiio writes them and ESPnet dumps them: `wav.ark:12` in wav.scp.

A recording is a WAV file (`RIFF`), or `AUDIO`, the number of the bytes that its size takes, its size, and a file that
libsndfile reads, such as FLAC. Rules: of an archive only the recording is read, and all of it even if the sample is a
stretch. A file of its own counts as an archive with one recording. An archive that has changed since indexing is a
ReadError.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from loader_server.sources.audio.audio_files import AudioHeader, decoded_audio, header_of_bytes
from loader_server.sources.audio.containers import HEADER_BYTES, plain_header
from loader_server.sources.audio.stretches import WHOLE_FILE, Headers, stretch_columns
from loader_server.sources.files.archived_parts import ArchivedParts, ArchiveFacts
from loader_server.sources.remote.urls import is_url
from loader_server.sources.sample_limits import OVER_LARGEST, size_texts
from loader_server.sources.source import BadRow
from shared.errors import DataError, ReadError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.audio.stretches import AudioStretch
    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Chunk

__all__ = ["ArchivedAudioHeaders", "ArchivedRecordings", "archived_columns"]

_AUDIO, _RIFF = b"AUDIO", b"RIFF"
#: Bytes that hold what comes before a recording.
_BEFORE_BYTES = 16
#: Most bytes that the size of a recording takes.
_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class _EmbeddedHeader(AudioHeader):
    """The header of a recording in an archive, whose facts are the archive's; it has `nbytes` from `begin` on."""

    begin: int = 0
    nbytes: int = 0


class ArchivedAudioHeaders(Headers):
    """Headers of recordings in archives and of files of their own, each read once however many stretches it has."""

    def __init__(self, files: Files, channel: int, largest: int) -> None:
        super().__init__(files, channel, largest)
        self._archives = ArchiveFacts(files)

    def _look(self, path: str) -> AudioHeader | BadRow:
        """Return the header of a recording, whose path may end in `:` and a byte of an archive; or a BadRow.

        Raise a ReadError if a remote archive cannot be fetched or a local one became shorter, and an OSError if that
        cannot be read. SettingsError and MachineError of reading it pass through.
        """
        archive, _, offset = path.rpartition(":")
        if not offset.isdecimal() or not archive:
            header = super()._look(path if is_url(path) else self._files.where(path))
            # Of a file of its own all bytes are the recording.
            return header if isinstance(header, BadRow) else _embedded(header, 0, header.bytes)
        try:
            facts, content = self._archives.of(archive)
        except ReadError:  # the store cannot be reached: that says nothing about the row
            raise
        except DataError as error:
            return BadRow(path, 0, "missing_file", f"expected {error.expected}, got {error.got}: {archive}")
        try:
            begin, nbytes = self._recording_at(archive, int(offset), facts.bytes)
            frames = self._frames(archive, begin, nbytes)
        except SampleError as error:
            return BadRow(path, 0, error.reason, f"expected {error.expected}, got {error.got}")
        return _EmbeddedHeader(facts.bytes, facts.version, *frames, content, begin, nbytes)

    def _recording_at(self, archive: str, offset: int, size: int) -> tuple[int, int]:
        """Return where a recording's file begins in an archive of `size` bytes, and how many it has.

        Raise a SampleError if no recording begins at `offset`, or the archive ends within it.
        """
        raw = self._files.read(archive, offset, max(0, min(_BEFORE_BYTES, size - offset)))
        if raw.startswith(_RIFF):
            begin, nbytes = offset, int.from_bytes(raw[4:8], "little") + 8
        elif raw.startswith(_AUDIO) and len(raw) > len(_AUDIO) and raw[len(_AUDIO)] <= _SIZE_BYTES:
            width, at = raw[len(_AUDIO)], len(_AUDIO) + 1
            begin, nbytes = offset + at + width, int.from_bytes(raw[at : at + width], "little")
        else:
            raise _unusable("no_recording_there", f"RIFF or AUDIO from byte {offset} of {archive} on", repr(raw[:6]))
        if begin + nbytes > size:
            expected = f"{nbytes} bytes from byte {begin} of {archive} on"
            raise _unusable("truncated", expected, str(max(0, size - begin)))
        return begin, nbytes

    def _frames(self, archive: str, begin: int, nbytes: int) -> tuple[int, int, int]:
        """Return frames, rate and channels; raise a SampleError if they are no whole recording, or are too many."""
        if plain := plain_header(self._files.read(archive, begin, min(HEADER_BYTES, nbytes)), nbytes):
            return *plain, 1
        if self._largest and nbytes > self._largest:  # all of it is read into memory
            raise _unusable(OVER_LARGEST, *size_texts(nbytes, self._largest))
        return header_of_bytes(self._files.read(archive, begin, nbytes), archive)


def _embedded(header: AudioHeader, begin: int, nbytes: int) -> _EmbeddedHeader:
    facts = (header.bytes, header.mtime_ns, header.frames, header.rate, header.channels, header.content)
    return _EmbeddedHeader(*facts, begin, nbytes)


def _unusable(reason: str, expected: str, got: str) -> SampleError:
    return SampleError(reason=reason, expected=expected, got=got, where="", remedy="")


def archived_columns(stretches: Sequence[AudioStretch]) -> dict[str, list[int]]:
    """Return the index's columns of these stretches, whose headers are those of `ArchivedAudioHeaders`."""
    headers = [stretch.header for stretch in stretches]
    places = {"offset": list(map(attrgetter("begin"), headers)), "nbytes": list(map(attrgetter("nbytes"), headers))}
    return stretch_columns(stretches, plain=False) | places


class ArchivedRecordings(ArchivedParts):
    """Audio of an index's samples, which lies in archives.

    `numbers` has the columns of `archived_columns`. `where` is how messages name a sample, and `largest` the most bytes
    that a decoded recording may have (0: no limit).
    """

    def __init__(
        self,
        files: Files,
        numbers: Mapping[str, NDArray[np.int64]],
        path_of: Callable[[int], str],
        where: Callable[[int], str],
        largest: int,
    ) -> None:
        super().__init__(files, numbers, path_of)
        self._where = where
        self._largest = largest

    def read_chunk(self, chunk: Chunk) -> bytes:
        """Return the bytes of the sample that a chunk is cut from; raise what `read` raises."""
        return self.read(chunk.sample)

    def decode(self, sample: int, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the sample's audio and its rate.

        Raise a SampleError if the recording cannot be decoded, is too large, or has fewer frames than were indexed.
        SettingsError of `decoded_audio` passes through, as for MP3.
        """
        start, frames = int(self._numbers["start"][sample]), int(self._numbers["frames"][sample])
        return self._cut(sample, raw, max(start, 0), frames)

    def decode_all(
        self, samples: Sequence[int], raw: Sequence[bytes]
    ) -> tuple[list[NDArray[np.float32]], list[int]] | None:
        """Return None: samples are decoded one by one, because a stretch decodes its whole recording."""
        del samples, raw
        return None

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the audio of a stretch of the sample and its rate; raise what `decode` raises."""
        start = max(int(self._numbers["start"][chunk.sample]), 0)
        return self._cut(chunk.sample, raw, start + chunk.start, chunk.stop - chunk.start)

    def _cut(self, sample: int, raw: bytes, start: int, frames: int) -> tuple[NDArray[np.float32], int]:
        """Return `frames` frames of the sample's recording from `start` on, and its rate.

        Raise a SampleError if the recording cannot be decoded, is too large, or has fewer frames.
        """
        where = f"{self._path_of(sample)} ({self._where(sample)})"
        audio, rate = decoded_audio(raw, where, int(self._numbers["channel"][sample]), self._largest)
        cut = audio[start : start + frames]
        if len(cut) != frames:
            raise SampleError(
                reason="truncated",
                expected=f"{frames} frames from frame {start} on, as the recording's header says",
                got=str(len(cut)),
                where=where,
                remedy="Mend or remove the recording, then run loader-server index.",
            )
        return cut, rate

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others: its place in the archive, stretch and channel."""
        start, frames, channel = (int(self._numbers[name][sample]) for name in ("start", "frames", "channel"))
        stretch = "" if start == WHOLE_FILE else f", {frames} frames from {start}"
        return f"{super().identity(sample)}{stretch}" + ("" if channel < 0 else f", channel {channel}")
