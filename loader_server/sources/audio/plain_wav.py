"""Decoder of the commonest audio file without a library: WAV, 44-byte header, one channel of 16-bit PCM.

Rules: pure; the samples are bit for bit those of libsndfile; any other file, a damaged one included, gives None and is
left to libsndfile. Measured with files of 2.5 s at 8 kHz: from file to log-mel 0.40 ms of CPU, against 0.53 with
libsndfile, which calls back into Python for every piece.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FRAME_BYTES", "HEADER_BYTES", "plain_header", "plain_samples", "plain_wav"]

#: RIFF, its size, WAVE; fmt, its size, format, channels, rate, bytes a second, bytes a frame, bits; data, its size.
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_PCM = 1
_SAMPLE = np.dtype("<i2")
_STEP = np.float32(1 / 32768)

HEADER_BYTES = _HEADER.size
FRAME_BYTES = _SAMPLE.itemsize


def plain_wav(raw: bytes) -> tuple[NDArray[np.float32], int] | None:
    """Return the samples of a plain WAV file, from -1 to 1, and their rate; None for any other file."""
    header = plain_header(raw, len(raw))
    return header and (plain_samples(raw, HEADER_BYTES), header[1])


def plain_header(raw: bytes, size: int) -> tuple[int, int] | None:
    """Return frames and rate of a plain WAV file of `size` bytes that begins with `raw`.

    Return None for any other file, including one whose sizes disagree with `size` and one without audio.
    """
    if len(raw) < HEADER_BYTES:
        return None
    riff, rest, wave, fmt, fmt_size, kind, channels, rate, _, frame, bits, data, nbytes = _HEADER.unpack_from(raw)
    if (riff, wave, fmt, data) != (b"RIFF", b"WAVE", b"fmt ", b"data"):
        return None
    if (fmt_size, kind, channels, frame, bits) != (16, _PCM, 1, FRAME_BYTES, 16):
        return None
    # Both sizes have to match the file exactly. A cut file, extra chunks or a size left open by a pipe is for
    # libsndfile and `containers`, which tell those cases apart.
    if rest != size - 8 or nbytes != size - HEADER_BYTES or nbytes % FRAME_BYTES or not nbytes or not rate:
        return None
    return nbytes // FRAME_BYTES, rate


def plain_samples(raw: bytes, offset: int = 0) -> NDArray[np.float32]:
    """Return the 16-bit samples from byte `offset` on, as floats from -1 to 1."""
    audio = np.frombuffer(raw, _SAMPLE, offset=offset).astype(np.float32)
    audio *= _STEP  # a step of its own: converting while multiplying goes through a buffer, and costs a third more
    return audio
