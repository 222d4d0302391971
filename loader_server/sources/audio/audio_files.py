"""Headers and decoded audio of recordings: WAV, FLAC, OGG, MP3, and whatever else libsndfile reads.

Rules: this is the only place that decodes audio. A SampleError says why a file cannot be used; that includes a file
that lost its end, which libsndfile may not notice (see containers), and one whose header claims more than a sample may
have, which is refused before memory is taken for it. Channels are averaged, or one of them is chosen.
"""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.installed import version_of
from loader_server.processor.levels import level_in
from loader_server.sources.audio.containers import HEADER_BYTES, audio_extent, is_ogg_cut, plain_header, plain_wav
from loader_server.sources.audio.whole_flac import flac_versions, whole_flac
from loader_server.sources.files.same_files import digest_of_handle, number_of_digest
from loader_server.sources.sample_limits import LARGEST_SAMPLE, refuse_larger
from shared.errors import SampleError, SettingsError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.files.seen import SeenFiles

__all__ = [
    "AVERAGED",
    "AudioHeader",
    "audio_bytes",
    "audio_lengths",
    "audio_versions",
    "decoded_audio",
    "decoded_stretch",
    "header_of",
    "header_of_bytes",
    "header_of_remote",
    "recording_of",
]

soundfile = library("soundfile", extra="loader", use="which decodes recordings")

#: In place of a channel's number: the average of all channels.
AVERAGED = -1

_AS_FLOATS = {"dtype": "float32", "always_2d": True}

#: The size of a WAV file's audio that means "all that follows"; the same in either byte order.
_SIZE_OF_ALL = b"\xff\xff\xff\xff"

#: The processor level at which there may be no AVX.
_WITHOUT_AVX = "x86-64-v2"

#: What soundfile raises for bytes that are not audio.
_UNREADABLE = (soundfile.SoundFileError, ValueError)


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """What the index stores about a recording's file."""

    bytes: int
    mtime_ns: int
    frames: int
    rate: int
    channels: int
    #: Digest of a local file's content; 0 for a remote file, whose version identifies it.
    content: int = 0


def audio_versions() -> dict[str, str]:
    """Return the versions of soundfile, libsndfile and, if installed, miniaudio: they decide what bytes decode to.

    Raise importlib's PackageNotFoundError if soundfile was not installed as a package.
    """
    versions = {"soundfile": version_of("soundfile"), "libsndfile": soundfile.__libsndfile_version__}
    return versions | flac_versions()


def decoded_audio(
    raw: bytes, where: str, channel: int = AVERAGED, largest: int = LARGEST_SAMPLE
) -> tuple[NDArray[np.float32], int]:
    """Return the decoded audio of a file's bytes, as one channel, and its rate.

    That is `channel`, which the file has to have if it has several, or the average of all. Raise a SampleError if the
    bytes are no audio or are recognizably cut short (see containers; a cut FLAC file may just give fewer frames), or if
    they would decode to more than `largest` bytes (0: no limit), which is not compared for plain WAV files (see
    containers). Raise a SettingsError for MP3 if the job keeps to a processor level without AVX.
    """
    plain = plain_wav(raw)
    if plain is not None:
        return plain
    whole = whole_flac(raw, largest)
    if whole is not None:
        return _mono(whole[0], channel), whole[1]
    try:
        is_flac = raw.startswith(b"fLaC")
        mended = None if is_flac else _whole_audio(_of_bytes(raw), len(raw), where)
        # FLAC needs no check of its end: its header counts frames, so a cut file decodes to fewer of them.
        opened = _FlacReadThrough if is_flac else soundfile.SoundFile
        with opened(mended or io.BytesIO(raw)) as sound:
            # Before reading: a header may claim any number of frames, and reading allocates them all.
            refuse_larger(audio_bytes(sound.frames, sound.channels), largest, where)
            _refuse_other_loops(sound, where)
            audio, rate = _all_of(sound), sound.samplerate
    except _UNREADABLE as error:
        raise _undecodable(where, error) from None
    return _mono(audio, channel), int(rate)


def recording_of(raw: bytes, where: str, frames: int, largest: int) -> tuple[NDArray[np.float32], int]:
    """Return the decoded audio of a file's bytes, as the average of all channels, and its rate.

    Raise a SampleError if it has another number of frames than its header said when it was indexed, and besides what
    `decoded_audio` raises.
    """
    audio, rate = decoded_audio(raw, where, AVERAGED, largest)
    if len(audio) != frames:
        raise _cut_short(f"{frames} frames, as the recording's header says", str(len(audio)), where)
    return audio, rate


def audio_bytes(frames: int, channels: int) -> int:
    """Return how many bytes so many frames decode to, at 4 for each value, before channels are averaged."""
    return 4 * frames * channels


def _all_of(sound: Any) -> NDArray[np.float32]:
    """Return all frames of all channels, seeking to the start first as `soundfile.read` does.

    The seek decides the last bits of decoded MP3, so leaving it out would change samples. Errors of soundfile pass.
    """
    if sound.seekable():
        sound.seek(0)
    return sound.read(sound.frames, **_AS_FLOATS)  # type: ignore[no-any-return] # no types


class _FlacReadThrough(soundfile.SoundFile):  # type: ignore[misc, name-defined] # no types
    """A FLAC file that is read once, from beginning to end, without seeking.

    soundfile seeks before and after reading to where it is already, and libFLAC decodes again for each seek: a
    fifteenth of the time. Other formats keep the seeks, which the last bits of MP3 depend on.
    """

    def seekable(self) -> bool:
        """Return False, so that soundfile does not seek."""
        return False


def decoded_stretch(  # noqa: PLR0913, PLR0917 - a stretch, and which channel of it, and its limit
    handle: int, start: int, frames: int, where: str, channel: int = AVERAGED, largest: int = LARGEST_SAMPLE
) -> NDArray[np.float32]:
    """Return up to `frames` frames of an open file from frame `start` on, as one channel.

    That is `channel`, which the file has to have if it has several, or the average of all. Only these frames are
    decoded; fewer come back if the file ends before. Raise a SampleError if the file is no audio, is recognizably cut
    short or ends before `start`, or if the stretch would decode to more than `largest` bytes (0: no limit); an OSError
    if it cannot be read; a SettingsError for MP3 if the job keeps to a processor level without AVX.
    """
    try:
        mended = _whole_audio(_of_handle(handle), os.fstat(handle).st_size, where)
        with soundfile.SoundFile(mended or handle, closefd=False) as sound:
            refuse_larger(audio_bytes(min(frames, sound.frames), sound.channels), largest, where)
            _refuse_other_loops(sound, where)
            sound.seek(start)
            audio = sound.read(frames, dtype="float32", always_2d=True)
    except _UNREADABLE as error:
        raise _undecodable(where, error) from None
    return _mono(audio, channel)


def _mono(audio: NDArray[np.float32], channel: int) -> NDArray[np.float32]:
    """Return the chosen channel, or the average of all; a single channel is returned as it is.

    Raise an IndexError if there is no such channel among several.
    """
    if audio.shape[1] == 1:
        return audio[:, 0]
    if channel != AVERAGED:
        return np.ascontiguousarray(audio[:, channel])
    averaged: NDArray[np.float32] = audio.mean(axis=1, dtype=np.float32)
    return averaged


def header_of(path: str, seen: SeenFiles) -> AudioHeader:
    """Return the header of a local file without decoding it, and note its content's digest in `seen`.

    Raise a SampleError if it is no regular file, is empty, no audio, without samples, or recognizably cut short (see
    containers); an OSError if it cannot be opened or read, or a chunk before its audio leads beyond its end; a
    SettingsError for MP3 if the job keeps to a processor level without AVX.
    """
    # soundfile reads headers from a descriptor in half the time that it takes from a Python file.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # O_NONBLOCK: opening a pipe must not wait
    try:
        status = os.fstat(handle)
        sound = _frames(handle, status, path)
        # The status was taken before the bytes are read: a write in between gives the file another status, so `seen`
        # never pairs the new status with the digest of old bytes.
        content = number_of_digest(digest_of_handle(handle, status, seen))
        return AudioHeader(status.st_size, status.st_mtime_ns, *sound, content)
    finally:
        os.close(handle)


def header_of_remote(url: str, files: Files) -> AudioHeader:
    """Return the header of a remote file without decoding it.

    Only the first bytes of a plain WAV file are fetched, but all of any other file. Raise a SampleError if it is empty,
    no audio, without samples, or recognizably cut short; a DataError if it is missing; a ReadError if it cannot be
    fetched; a SettingsError for MP3 if the job keeps to a processor level without AVX. Raise besides what `header_of`
    and the cache of remote files raise: an OSError, a MachineError, or a SettingsError without a store's library.
    """
    facts = files.facts(url)
    if facts.bytes == 0:
        raise _unusable("empty_file", "audio", "an empty file", url)
    if plain := plain_header(files.part(url, facts, 0, min(HEADER_BYTES, facts.bytes)), facts.bytes):
        return AudioHeader(facts.bytes, facts.version, *plain, 1)
    # Fetched to disk first: libsndfile would take a failing store for the end of the file.
    with files.local(url, facts) as path, path.open("rb") as file:
        return AudioHeader(
            facts.bytes, facts.version, *_header(file.fileno(), _of_handle(file.fileno()), facts.bytes, url)
        )


def _frames(handle: int, status: os.stat_result, path: str) -> tuple[int, int, int]:
    """Return frames, rate and channels of an open local file.

    Raise a SampleError if it is no regular file, is empty, no audio, without samples, or recognizably cut short; an
    OSError if it cannot be read; a SettingsError as `header_of` does.
    """
    if not stat.S_ISREG(status.st_mode):
        raise _unusable("not_a_file", "a file", "something else", path)
    if status.st_size == 0:
        raise _unusable("empty_file", "audio", "an empty file", path)
    return _header(handle, _of_handle(handle), status.st_size, path)


def header_of_bytes(raw: bytes, where: str) -> tuple[int, int, int]:
    """Return frames, rate and channels of a file whose bytes are given.

    Raise a SampleError if they are no audio, recognizably cut short, or a recording without samples; a SettingsError
    for MP3 if the job keeps to a processor level without AVX.
    """
    return _header(io.BytesIO(raw), _of_bytes(raw), len(raw), where)


def audio_lengths(raw: bytes, where: str, largest: int) -> tuple[int, int]:
    """Return frames and rate of a recording whose file's bytes are given, from its header.

    Raise a SampleError for bytes that are no audio, are recognizably cut short or without samples, or would have more
    than `largest` bytes decoded (0: no limit). SettingsError of `header_of_bytes` passes through.
    """
    frames, rate, channels = header_of_bytes(raw, where)
    refuse_larger(audio_bytes(frames, channels), largest, where)
    return frames, rate


def _header(file: int | io.BytesIO, read: Callable[[int, int], bytes], size: int, where: str) -> tuple[int, int, int]:
    """Return frames, rate and channels of a file that `read` reads; raise what `header_of_bytes` does.

    Errors of `read` pass, which may be asked for a negative number of bytes if a chunk leads beyond the file's end.
    """
    if plain := plain_header(read(0, min(HEADER_BYTES, size)), size):
        return *plain, 1
    # libsndfile opens the file itself, or the copy whose header was mended.
    return _header_by_libsndfile(_whole_audio(read, size, where) or file, where)


def _of_bytes(raw: bytes) -> Callable[[int, int], bytes]:
    """Return a function that reads bytes of a file in memory."""
    return lambda offset, nbytes: raw[offset : offset + nbytes]


def _of_handle(handle: int) -> Callable[[int, int], bytes]:
    """Return a function that reads bytes of an open file, wherever it stands.

    The function raises an OSError if the disk fails, or the number of bytes is negative.
    """
    return lambda offset, nbytes: os.pread(handle, nbytes, offset)


def _whole_audio(read: Callable[[int, int], bytes], size: int, where: str) -> io.BytesIO | None:
    """Raise a SampleError if a file lost its end; return a mended copy if its header gives a size of 0.

    A program that writes into a pipe leaves 0 there, which libsndfile takes for an empty recording; the copy has the
    size that means "all that follows". Return None for any other file, which is decoded as it is. Errors of `read`
    pass, as for a negative number of bytes (see `audio_extent`).
    """
    extent = audio_extent(read, size)
    if extent is not None and extent.is_cut(size):
        promised, held = extent.blocks_promised() * extent.block, extent.blocks_held(size) * extent.block
        raise _cut_short(f"{promised} bytes of audio, as the file's header says", str(held), where)
    if is_ogg_cut(read, size):
        raise _cut_short("OGG up to the page that is marked as its last", "a file that ends before it", where)
    if extent is None or extent.zero_at is None or size == extent.begin:
        return None
    raw = bytearray(read(0, size))
    raw[extent.zero_at : extent.begin] = _SIZE_OF_ALL
    return io.BytesIO(raw)


def _cut_short(expected: str, got: str, where: str) -> SampleError:
    """Return the SampleError, of reason "truncated", for a file that lost its end."""
    return SampleError(
        reason="truncated",
        expected=expected,
        got=got,
        where=where,
        remedy="It was cut short: mend or remove the file, then run loader-server index.",
    )


def _header_by_libsndfile(file: int | io.BytesIO, where: str) -> tuple[int, int, int]:
    """Return frames, rate and channels as libsndfile reports them; raise a SampleError for no audio or no samples.

    Raise a SettingsError for MP3 if the job keeps to a processor level without AVX.
    """
    try:
        with soundfile.SoundFile(file, closefd=False) as sound:
            frames, rate, channels = int(sound.frames), int(sound.samplerate), int(sound.channels)
            _refuse_other_loops(sound, where)
    except _UNREADABLE as error:
        raise _undecodable(where, error) from None
    if frames == 0:
        raise _unusable("empty_audio", "audio", "a file of zero samples", where)
    return frames, rate, channels


def _refuse_other_loops(sound: Any, where: str) -> None:
    """Raise a SettingsError for MP3 if the job keeps to a processor level without AVX.

    libmpg123 decodes stereo with AVX where there is any, and otherwise to other last bits; no setting of it changes
    that.
    """
    if sound.subtype.startswith("MPEG") and level_in(os.environ) == _WITHOUT_AVX:
        raise SettingsError(
            expected=f"recordings that are decoded alike on all processors of {_WITHOUT_AVX}",
            got="MP3, which libmpg123 decodes otherwise where there is AVX",
            where=where,
            remedy='Write processor = "x86-64-v3" in [job], or convert the recordings to FLAC.',
        )


def _undecodable(where: str, error: Exception) -> SampleError:
    """Return the SampleError for bytes that libsndfile cannot read."""
    # str(error) begins with what was opened, here a descriptor or a memory address; the reason alone is the same in
    # every run.
    return SampleError(
        reason="undecodable",
        expected="WAV, FLAC, OGG or MP3",
        got=getattr(error, "error_string", str(error)),
        where=where,
        remedy="Mend or remove the file, then run loader-server index.",
    )


def _unusable(reason: str, expected: str, got: str, path: str) -> SampleError:
    """Return the SampleError, with the path in it, by which a recording's row is masked or becomes a bad row."""
    return SampleError(reason=reason, expected=expected, got=f"{got}: {path}", where=path, remedy="Remove the row.")
