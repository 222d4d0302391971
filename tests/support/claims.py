"""Files whose headers claim more than they hold."""

from __future__ import annotations

__all__ = ["MOST_FLAC_SAMPLES", "flac_that_claims"]

#: What the 36 bits of a FLAC header can say.
MOST_FLAC_SAMPLES = 2**36 - 1

#: Where a FLAC file has its rate, channels, bits and number of samples, 64 bits together.
_SAMPLES = slice(18, 26)


def flac_that_claims(samples: int, raw: bytes) -> bytes:
    """The same FLAC file with another number of samples in its header."""
    assert raw.startswith(b"fLaC")
    packed = int.from_bytes(raw[_SAMPLES], "big") & ~MOST_FLAC_SAMPLES | samples
    return raw[: _SAMPLES.start] + packed.to_bytes(8, "big") + raw[_SAMPLES.stop :]
