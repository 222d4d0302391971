"""Reading and decoding of the recordings that an index names: whole files, or stretches of them.

Rules: only what a sample needs is read and decoded. A whole file is read in one go. A stretch of a plain WAV file is a
range of bytes; in other files libsndfile seeks to it, which also reads, so that happens while decoding. A file that is
no longer the indexed one is a ReadError: its size is compared, and its content unless this machine has seen its status
with that content. Both are checked after reading, because a write changes the status before the bytes. The time of
change is not compared, because a copy has another.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.sources.audio.audio_files import AVERAGED, decoded_audio, decoded_stretch
from loader_server.sources.audio.containers import FRAME_BYTES, HEADER_BYTES, plain_header, plain_samples, plain_wav
from loader_server.sources.audio.stretches import WHOLE_FILE
from loader_server.sources.files.file_facts import OTHER_FILE_REMEDY, FileFacts
from loader_server.sources.files.local import bytes_at
from loader_server.sources.files.presence import IndexedFiles, look_at_some
from loader_server.sources.files.same_files import digest_of, digest_of_handle, digest_of_number, has_content
from loader_server.sources.remote.urls import is_url
from shared.errors import ReadError, SampleError
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Chunk

__all__ = ["Recordings", "audio_field", "common_rate", "has_recordings"]


#: Limit in frames on decoding samples together: four minutes at 16 kHz, which any format decodes in less than half a
#: second. They are in memory at once, and share the time limit that one sample has otherwise.
_MOST_AT_ONCE = 4_000_000
_OTHER_CONTENT = "one of the same size with other bytes, changed since"


def audio_field(rate: int) -> Field:
    """Return the field of audio, counted in frames; a `rate` of 0 (files differ) gives it no time."""
    return Field(key="audio", dtype="float32", shape=(None,), per_second=float(rate) or None)


def has_recordings(fields: Iterable[Field]) -> bool:
    """Return whether one of these keys is made of recordings: it has a time, or a name that only these have."""
    # Recordings of several rates have no time in common, and those in records of other programs may have none at all.
    return any(field.per_second is not None or field.key in ("audio", "waveform") for field in fields)


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


class Recordings:
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
        self._files = files
        #: Limit on decoded bytes; 0 if there is none.
        self._largest = largest
        self._columns = columns
        # Without these columns all samples are whole files with all channels.
        self._start = columns.get("start", np.broadcast_to(WHOLE_FILE, columns["bytes"].shape))
        self._channel = columns.get("channel", np.broadcast_to(AVERAGED, columns["bytes"].shape))
        #: Path or URL of a sample's file.
        self._path_of = path_of
        #: How messages name the line that lists a sample.
        self._where = where

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the files of these samples that are remote; fetches that fail are dropped.

        What `path_of` raises passes through.
        """
        self._files.expect_files((self._path_of(sample), self._facts(sample)) for sample in samples)

    def _facts(self, sample: int) -> FileFacts:
        """Return the size and version of the sample's file as indexed."""
        return FileFacts(bytes=int(self._columns["bytes"][sample]), version=int(self._columns["mtime_ns"][sample]))

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
        if is_url(path := self._path_of(sample)):
            return self._read_remote(path, extent)
        # A bare descriptor: a Python file makes twice as many system calls, which is 3 µs of 12.
        handle = os.open(path, os.O_RDONLY)
        try:
            header = b"" if extent.is_whole_file else os.pread(handle, HEADER_BYTES, 0)
            offset, nbytes = self._range(extent, header)
            raw = bytes_at(handle, offset, nbytes)
            if len(raw) != nbytes:
                raise self._changed(sample, f"one of {len(raw)} bytes, changed since")
            self._refuse_other_content(sample, handle, raw if extent.is_whole_file else None)
        finally:
            os.close(handle)
        return raw

    def _read_remote(self, url: str, extent: _Extent) -> bytes:
        """Return the bytes that decoding an extent of a remote file needs, in its indexed version.

        If decoding has to seek, fetch the file to this machine and return empty bytes. Raise a ReadError if that
        version cannot be fetched. Errors of the cache pass through, such as a MachineError, OSError or SettingsError.
        """
        facts = self._facts(extent.sample)
        if extent.is_whole_file:
            return self._files.whole(url, facts)
        header = self._files.part(url, facts, 0, min(HEADER_BYTES, facts.bytes))
        offset, nbytes = self._range(extent, header)
        if not nbytes:
            self._files.local(url, facts).close()  # fetch the whole file now: decoding seeks in the local copy
        return self._files.part(url, facts, offset, nbytes)

    def indexed_files(self) -> IndexedFiles:
        """Return the file of each sample; remote ones have an empty path."""
        return IndexedFiles(len(self._columns["bytes"]), self._file_at)

    def _file_at(self, sample: int) -> tuple[str, int]:
        """Return path (empty if the file is remote) and size of the sample's file."""
        path = self._path_of(sample)
        return "" if is_url(path) else path, int(self._columns["bytes"][sample])

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for a local file that is gone or changed since indexing.

        As many files are checked as `time_s` allows. Remote files are skipped: reading them asks for the indexed
        version.
        """
        look_at_some(len(self._columns["bytes"]), self._look_at, time_s)

    def _look_at(self, sample: int) -> None:
        """Raise a ReadError if a sample's local file is gone or has changed; remote ones are not looked at."""
        if is_url(path := self._path_of(sample)):
            return
        try:
            status = os.stat(path)  # takes a fifth of the time of Path.stat
            self._refuse_other(sample, status)
            if not has_content(path, status, self._digest(sample), self._files.seen):
                raise self._changed(sample, _OTHER_CONTENT)
        except OSError as error:
            raise self._changed(sample, error.strerror or str(error)) from None

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

    def _refuse_other(self, sample: int, status: os.stat_result) -> None:
        """Raise a ReadError if the size differs from the indexed one."""
        if status.st_size != self._columns["bytes"][sample]:
            raise self._changed(sample, f"one of {status.st_size} bytes, changed since")

    def _refuse_other_content(self, sample: int, handle: int, raw: bytes | None) -> None:
        """Raise a ReadError if an open file, which was just read, is not the indexed one.

        `raw` are all of its bytes if they were read; otherwise the digest is computed from the descriptor. Raise an
        OSError if the disk fails.
        """
        # A writer changes the status before the bytes. So if the status is taken after reading and is one that was seen
        # with the indexed content, the bytes that were read are the indexed ones.
        status, digest = os.fstat(handle), self._digest(sample)
        self._refuse_other(sample, status)
        if self._files.seen.has(status, digest):
            return
        if raw is None:
            read = digest_of_handle(handle, status, self._files.seen)
        else:
            read = digest_of(lambda start, stop: raw[start:stop], len(raw))
            self._files.seen.keep(status, read)
        if read != digest:
            raise self._changed(sample, _OTHER_CONTENT)

    def _digest(self, sample: int) -> str:
        """Return the digest of the sample's file as indexed."""
        return digest_of_number(int(self._columns["content"][sample]))

    def _range(self, extent: _Extent, header: bytes) -> tuple[int, int]:
        """Return offset and number of the bytes that decoding needs, given the file's first bytes.

        No bytes if the extent is a stretch of anything but a plain WAV file: decoding seeks there itself.
        """
        nbytes = int(self._columns["bytes"][extent.sample])
        if extent.is_whole_file:
            return 0, nbytes
        if plain_header(header, nbytes) is None:
            return 0, 0
        return HEADER_BYTES + extent.start * FRAME_BYTES, extent.frames * FRAME_BYTES

    def _changed(self, sample: int, got: str) -> ReadError:
        """Return the ReadError for a file that is not the indexed one."""
        return ReadError(
            expected=f"the file that was indexed ({self._columns['bytes'][sample]} bytes)",
            got=got,
            where=self._named(sample),
            remedy=OTHER_FILE_REMEDY,
        )

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

    def _named(self, sample: int) -> str:
        """Return how messages name the sample: its file, and where the data set lists it."""
        return f"{self._path_of(sample)} ({self._where(sample)})"

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others, without the path.

        That is the file's size, time of change and digest, and the stretch and channel if it is not all of the file.
        """
        columns, start, channel = self._columns, int(self._start[sample]), int(self._channel[sample])
        file = f"{columns['bytes'][sample]} bytes, changed at {columns['mtime_ns'][sample]} ns"
        stretch = "" if start == WHOLE_FILE else f", {columns['frames'][sample]} frames from {start}"
        chosen = "" if channel == AVERAGED else f", channel {channel}"
        return f"{file}, digest {self._digest(sample)}{stretch}{chosen}"
