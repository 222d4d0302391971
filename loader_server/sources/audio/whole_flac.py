"""FLAC files decoded whole by miniaudio, where it is installed: in three fifths of the time that libFLAC takes.

Rules: FLAC is lossless, so the samples are those of libFLAC, bit for bit. Whatever is not a plain whole file is left to
libsndfile, which words the errors. Its version counts like that of libsndfile, because the two need not agree on which
damaged files can be decoded.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.installed import version_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["flac_versions", "whole_flac"]

#: Bits of a sample that a float32 holds exactly.
_MOST_BITS = 24
#: Decoded bytes beyond which libsndfile decodes, which takes less memory beside the result.
_MOST_BYTES = 2**28


def whole_flac(raw: bytes, largest: int) -> tuple[NDArray[np.float32], int] | None:
    """Return the samples `[frames, channels]` of a FLAC file, and its rate.

    Return None without miniaudio, and for anything but a FLAC file that has as many frames as its header says, of at
    most 24 bits, and decodes to at most `largest` bytes (0: no limit of the caller's).
    """
    library = _library()
    # The stream's description has to be the first block: 34 bytes behind the mark and the block's own header.
    if library is None or raw[:4] != b"fLaC" or len(raw) < 42 or raw[4] & 127 or raw[5:8] != b"\0\0\x22":
        return None
    about = int.from_bytes(raw[18:26], "big")
    rate, channels, bits, frames = about >> 44, (about >> 41 & 7) + 1, (about >> 36 & 31) + 1, about & 2**36 - 1
    # Before decoding: a header may claim any number of frames, and memory is taken for them all.
    if not frames or bits > _MOST_BITS or 4 * frames * channels > min(largest or _MOST_BYTES, _MOST_BYTES):
        return None
    try:
        sound = library.flac_read_f32(raw)
    except library.DecodeError:
        return None
    samples = np.frombuffer(sound.samples, np.float32)
    # A frame whose checksum is wrong is left out, so that there are fewer.
    if (sound.nchannels, sound.sample_rate, len(samples)) != (channels, rate, frames * channels):
        return None
    return samples.reshape(frames, channels), rate


def flac_versions() -> dict[str, str]:
    """Return the version of miniaudio by its name; nothing if it is not installed."""
    return {} if _library() is None else {"miniaudio": version_of("miniaudio")}


@functools.cache
def _library() -> Any:
    """Return miniaudio, or None if it is not installed."""
    try:
        return importlib.import_module("miniaudio")
    except ImportError:
        return None
