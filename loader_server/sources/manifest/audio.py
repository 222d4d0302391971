"""Recordings: what a file's header says of it, and its bytes decoded: WAV, FLAC, OGG, MP3, and all else that libsndfile
reads.

Rules: decoding here is decoding everywhere; a file that cannot be used is a SampleError that says why.
"""

from __future__ import annotations

import io
import os
import stat
from typing import TYPE_CHECKING

import numpy as np
import soundfile

from loader_server.sources.manifest.plain_wav import plain_wav
from shared.errors import SampleError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Header", "decoded_audio", "header_of"]

#: What soundfile raises for bytes that are no audio.
_UNREADABLE = (soundfile.SoundFileError, ValueError)

#: Bytes, time of change in nanoseconds, frames, and their rate.
Header = tuple[int, int, int, int]


def decoded_audio(raw: bytes, where: str) -> tuple[NDArray[np.float32], int]:
    """The audio of a file's bytes, its channels averaged, and its rate."""
    plain = plain_wav(raw)
    if plain is not None:
        return plain
    try:
        audio, rate = soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)
    except _UNREADABLE as error:
        raise _undecodable(where, error) from None
    mono = audio[:, 0] if audio.shape[1] == 1 else audio.mean(axis=1, dtype=np.float32)
    return mono, int(rate)


def header_of(path: str) -> Header:
    """What the index has to know of a file, without decoding it."""
    # soundfile reads headers from a descriptor in half the time that it takes from a Python file.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # so that a pipe is refused and not waited for
    try:
        status = os.fstat(handle)
        return status.st_size, status.st_mtime_ns, *_frames(handle, status, path)
    finally:
        os.close(handle)


def _frames(handle: int, status: os.stat_result, path: str) -> tuple[int, int]:
    if not stat.S_ISREG(status.st_mode):
        raise _unusable("not_a_file", "a file", "something else", path)
    if status.st_size == 0:
        raise _unusable("empty_file", "audio", "an empty file", path)
    try:
        with soundfile.SoundFile(handle, closefd=False) as sound:
            frames, rate = int(sound.frames), int(sound.samplerate)
    except _UNREADABLE as error:
        raise _undecodable(path, error) from None
    if frames == 0:
        raise _unusable("empty_audio", "audio", "a file of zero samples", path)
    return frames, rate


def _undecodable(where: str, error: Exception) -> SampleError:
    # Its text begins with what was opened, here a number or an address; the reason alone is the same each time.
    got = getattr(error, "error_string", str(error))
    return SampleError(
        reason="undecodable",
        expected="WAV, FLAC, OGG or MP3",
        got=got,
        where=where,
        remedy="Mend or remove the file, then run loader-server index.",
    )


def _unusable(reason: str, expected: str, got: str, path: str) -> SampleError:
    return SampleError(reason=reason, expected=expected, got=f"{got}: {path}", where=path, remedy="Remove the row.")
