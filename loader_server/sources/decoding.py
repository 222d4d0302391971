"""Decoding a sample whose bytes are complete: any failure becomes an error of ours, which says whose fault it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.sources.blame import undecoded
from shared.errors import StokerError

if TYPE_CHECKING:
    from loader_server.sources.source import Source

__all__ = ["decoded"]


def decoded(source: Source, sample: int, raw: bytes) -> dict[str, Any]:
    """Return the raw sample; raise a SampleError if the sample cannot be used, or a ReadError if the machine failed.

    A MemoryError passes through.
    """
    try:
        return source.decode(sample, raw)
    except (StokerError, MemoryError):
        raise
    except BaseException as error:  # a decoder may raise anything; a panic in Rust is a BaseException
        raise undecoded(error, source.name(sample)) from error
