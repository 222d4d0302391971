"""Reading and decoding of the recordings that an index names: whole files, or stretches of them.

Rules: only what a sample needs is read and decoded. A whole file is read in one go. A stretch of a plain WAV file is a
range of bytes; in other files libsndfile seeks to it, which also reads, so that happens while decoding. A file that is
no longer the indexed one is a ReadError (see sample_files).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.audio.audio_files import AVERAGED, decoded_audio, decoded_stretch
from loader_server.sources.audio.containers import FRAME_BYTES, HEADER_BYTES, plain_header, plain_samples, plain_wav
from loader_server.sources.audio.stretches import WHOLE_FILE
from loader_server.sources.files.local import bytes_at
from loader_server.sources.files.sample_files import SampleFiles
from loader_server.sources.remote.urls import is_url
from shared.errors import ReadError, SampleError
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Chunk

__all__ = ["Recordings", "audio_field", "common_rate"]


#: Limit in frames on decoding samples together: four minutes at 16 kHz, which any format decodes in less than half a
#: second. They are in memory at once, and share the time limit that one sample has otherwise.
_MOST_AT_ONCE = 4_000_000


def audio_field(rate: int) -> Field:
    """Return the field of audio, counted in frames; a `rate` of 0 (files differ) gives it no time."""
    return Field(key="audio", dtype="float32", shape=(None,), per_second=float(rate) or None)


def common_rate(rates: NDArray[np.int64]) -> int:
    """Return the rate of all files, of which there is at least one, if they have the same, else 0."""
    return int(rates[0]) if (rates == rates[0]).all() else 0


@dataclass(frozen=True, slots=True)
class _Extent:
    """Part of a sample's file that is read: `frames` frames from `start` on, or the whole file."""

    sample: int
    #: WHOLE_FILE, or a frame of the file.
    start: int
    frames: int

    @property
    def is_whole_file(self) -> bool:
        """Return whether the sample has no start in its file and so is all of it, rather than a stretch."""
        return self.start == WHOLE_FILE


class Recordings(SampleFiles):
    """Audio of an index's samples.

    `columns` are those of `stretch_columns`. `path_of` returns a sample's path or URL, and `where` how messages name
    the sample. `largest` is the most bytes that one decoded file or stretch may have (0: no limit).
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[np.int64]],
        path_of: Callable[[int], str],
        where: Callable[[int], str],
        files: Files,
        largest: int,
    ) -> None:
        super().__init__(columns, path_of, where, files)
        #: Limit on decoded bytes; 0 if there is none.
        self._largest = largest
        # Without these columns all samples are whole files with all channels.
        self._start = columns.get("start", np.broadcast_to(WHOLE_FILE, columns["bytes"].shape))
        self._channel = columns.get("channel", np.broadcast_to(AVERAGED, columns["bytes"].shape))

    def read(self, sample: int) -> bytes:
        """Return the bytes of the sample's file or stretch; empty bytes if decoding has to seek.

        Raise a ReadError if the file is no longer the indexed one or a remote one cannot be fetched, and an OSError if
        it cannot be opened or read. SettingsError and MachineError of `_read` pass through.
        """
        return self._read(self._extent(sample))

    def read_chunk(self, chunk: Chunk) -> bytes:
        """Return the bytes of a stretch of the sample, as `read` does; raise what `read` raises."""
        return self._read(self._extent_of(chunk))

    def _read(self, extent: _Extent) -> bytes:
        """Return the bytes that decoding an extent needs; empty bytes if it has to seek.

        Raise a ReadError if the file is no longer the indexed one or a remote one cannot be fetched, and an OSError if
        it cannot be opened or read. SettingsError and MachineError of `_read_remote` pass through.
        """
        sample = extent.sample
        if extent.is_whole_file:
            return self.read_whole(sample)
        if is_url(path := self._path_of(sample)):
            return self._read_remote(path, extent)
        handle = os.open(path, os.O_RDONLY)
        try:
            offset, nbytes = self._range(extent, os.pread(handle, HEADER_BYTES, 0))
            raw = bytes_at(handle, offset, nbytes)
            if len(raw) != nbytes:
                raise self._changed(sample, f"one of {len(raw)} bytes, changed since")
            self._refuse_other_content(sample, handle, None)
        finally:
            os.close(handle)
        return raw

    def _read_remote(self, url: str, extent: _Extent) -> bytes:
        """Return the bytes that decoding a stretch of a remote file needs, in its indexed version.

        If decoding has to seek, fetch the file to this machine and return empty bytes. Raise a ReadError if that
        version cannot be fetched. Errors of the cache pass through, such as a MachineError, OSError or SettingsError.
        """
        facts = self._facts(extent.sample)
        header = self._files.part(url, facts, 0, min(HEADER_BYTES, facts.bytes))
        offset, nbytes = self._range(extent, header)
        if not nbytes:
            self._files.local(url, facts).close()  # fetch the whole file now: decoding seeks in the local copy
        return self._files.part(url, facts, offset, nbytes)

    def _open(self, sample: int) -> int:
        """Return a descriptor of the sample's file, to be closed by the caller.

        Raise a ReadError if a local file has another size than the indexed one, or a remote one cannot be fetched; its
        content is not compared here. Raise an OSError if it cannot be opened. Other errors of `Files.local` pass
        through.
        """
        if is_url(path := self._path_of(sample)):
            with self._files.local(path, self._facts(sample)) as place:
                return os.open(place, os.O_RDONLY)
        # The content is compared after decoding: a look before it would miss what is written in between.
        handle = os.open(path, os.O_RDONLY)
        try:
            self._refuse_other(sample, os.fstat(handle))
        except ReadError:
            os.close(handle)
            raise
        return handle

    def _range(self, extent: _Extent, header: bytes) -> tuple[int, int]:
        """Return offset and number of the bytes that decoding a stretch needs, given the file's first bytes.

        No bytes if the file is anything but a plain WAV file: decoding seeks there itself.
        """
        nbytes = int(self._columns["bytes"][extent.sample])
        if plain_header(header, nbytes) is None:
            return 0, 0
        return HEADER_BYTES + extent.start * FRAME_BYTES, extent.frames * FRAME_BYTES

    def decode(self, sample: int, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the sample's audio and its rate.

        Raise a SampleError if it cannot be decoded, is too large, or has other than the indexed number of frames. If
        decoding seeks in the file, raise a ReadError if that is no longer the indexed one or cannot be fetched, or an
        OSError if it cannot be opened or read. SettingsError, as for MP3, and MachineError of `_decode` pass through.
        """
        return self._decode(self._extent(sample), raw)

    def decode_all(
        self, samples: Sequence[int], raw: Sequence[bytes]
    ) -> tuple[list[NDArray[np.float32]], list[int]] | None:
        """Return the audio and the rates of these samples, each as `decode` does.

        Return None if decoding has to seek in any file, or if they hold more than `_MOST_AT_ONCE` frames together.
        Raise what `decode` raises.
        """
        # Without bytes, decoding seeks in the file and reads there, and that may take any time.
        if not all(raw) or int(self._columns["frames"][samples].sum()) > _MOST_AT_ONCE:
            return None
        decoded = [self.decode(sample, part) for sample, part in zip(samples, raw, strict=True)]
        return [audio for audio, _ in decoded], [rate for _, rate in decoded]

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the audio of a stretch of the sample and its rate, as `decode` does; raise what `decode` raises."""
        return self._decode(self._extent_of(chunk), raw)

    def _decode(self, extent: _Extent, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the audio of an extent and its rate; raise a SampleError if it has another number of frames.

        Raise besides what `_decoded` raises.
        """
        audio, rate = self._decoded(extent, raw)
        if len(audio) != extent.frames:
            raise SampleError(
                reason="truncated",
                expected=f"{extent.frames} frames, as the file's header says",
                got=str(len(audio)),
                where=self._named(extent.sample),
                remedy="Mend or remove the file, then run loader-server index.",
            )
        return audio, rate

    def _decoded(self, extent: _Extent, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the audio of an extent and its rate, however many frames there are.

        Raise a SampleError if it cannot be decoded or is too large. If it seeks in the file, raise a ReadError if that
        is another one or cannot be fetched, or an OSError if it cannot be opened or read. ValueError of `plain_samples`
        and SettingsError and MachineError of `_open` and of decoding pass through.
        """
        sample = extent.sample
        if extent.is_whole_file:
            # plain_wav first: it needs no name for messages, so none is built for most files.
            return plain_wav(raw) or decoded_audio(raw, self._named(sample), int(self._channel[sample]), self._largest)
        rate = int(self._columns["rate"][sample])
        if raw:
            return plain_samples(raw), rate
        handle = self._open(sample)
        try:
            return self._decoded_by_seeking(extent, handle), rate
        finally:
            os.close(handle)

    def _decoded_by_seeking(self, extent: _Extent, handle: int) -> NDArray[np.float32]:
        """Return the audio of an extent of an open file.

        Raise a ReadError if a local file is no longer the indexed one, whether decoding failed or not; otherwise a
        SampleError if it cannot be decoded or is too large, or a SettingsError as `decoded_stretch` does. An OSError of
        the disk passes.
        """
        sample = extent.sample
        where, channel = self._named(sample), int(self._channel[sample])
        try:
            return decoded_stretch(handle, extent.start, extent.frames, where, channel, self._largest)
        finally:  # also after an error: a file that was written over is a ReadError, not a bad sample
            if not is_url(self._path_of(sample)):
                self._refuse_other_content(sample, handle, None)

    def _extent(self, sample: int) -> _Extent:
        """Return the sample's start frame in its file, or WHOLE_FILE, and its number of frames, from the index."""
        return _Extent(sample, int(self._start[sample]), int(self._columns["frames"][sample]))

    def _extent_of(self, chunk: Chunk) -> _Extent:
        """Return what is read for a chunk: frames counted from where the sample begins in its file."""
        whole = self._extent(chunk.sample)
        frames = chunk.stop - chunk.start
        return whole if frames == whole.frames else _Extent(chunk.sample, max(whole.start, 0) + chunk.start, frames)

    def is_whole(self, sample: int) -> bool:
        """Return whether the sample is all of its file, which the index marks by a start of WHOLE_FILE."""
        return int(self._start[sample]) == WHOLE_FILE

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others, without the path.

        That is the file's size, time of change and digest, and the stretch and channel if it is not all of the file.
        """
        start, channel = int(self._start[sample]), int(self._channel[sample])
        stretch = "" if start == WHOLE_FILE else f", {self._columns['frames'][sample]} frames from {start}"
        chosen = "" if channel == AVERAGED else f", channel {channel}"
        return f"{super().identity(sample)}{stretch}{chosen}"
