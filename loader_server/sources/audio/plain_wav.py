"""The commonest audio file, read without a library: WAV with the 44-byte header, one channel of 16-bit PCM.

Rules: pure; the samples are the ones that libsndfile gives, bit for bit; any other file, a damaged one included, is
left to it (None). Measured with files of 2.5 s at 8 kHz: from file to log-mel 0.40 ms of CPU, against 0.53 with
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
    """Samples from -1 to 1, and their rate; None if this is anything but the plainest of files."""
    header = plain_header(raw, len(raw))
    return header and (plain_samples(raw, HEADER_BYTES), header[1])


def plain_header(raw: bytes, size: int) -> tuple[int, int] | None:
    """Frames and rate of a file of this size that begins with these bytes; None if it is not one of the plainest."""
    if len(raw) < HEADER_BYTES:
        return None
    riff, rest, wave, fmt, fmt_size, kind, channels, rate, _, frame, bits, data, nbytes = _HEADER.unpack_from(raw)
    if (riff, wave, fmt, data) != (b"RIFF", b"WAVE", b"fmt ", b"data"):
        return None
    if (fmt_size, kind, channels, frame, bits) != (16, _PCM, 1, FRAME_BYTES, 16):
        return None
    if rest != size - 8 or nbytes != size - HEADER_BYTES or nbytes % FRAME_BYTES or not nbytes or not rate:
        return None
    return nbytes // FRAME_BYTES, rate


def plain_samples(raw: bytes, offset: int = 0) -> NDArray[np.float32]:
    """The samples of such a file, from this byte on."""
    audio = np.frombuffer(raw, _SAMPLE, offset=offset).astype(np.float32)
    audio *= _STEP  # a separate step: converting while multiplying goes through a buffer, and costs a third more
    return audio
