"""Decoding a sample whose bytes are complete: whatever goes wrong is an error of ours, which says whose fault it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.sources.blame import undecoded
from shared.errors import StokerError

if TYPE_CHECKING:
    from loader_server.sources.source import Source

__all__ = ["decoded"]


def decoded(source: Source, sample: int, raw: bytes) -> dict[str, Any]:
    """The raw sample; raises SampleError if it cannot be used."""
    try:
        return source.decode(sample, raw)
    except (StokerError, MemoryError):
        raise
    except BaseException as error:  # a decoder may raise anything, and a panic in Rust is no Exception
        raise undecoded(error, source.name(sample)) from error
