"""What all workers of a job have in common: one fingerprint of the plans and of everything that shapes the bytes.

Rules: pure. The coordinator works it out on its own machine, and turns away workers that have another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.stream import Stream

__all__ = ["builder_fingerprint"]


def builder_fingerprint(streams: Mapping[str, Stream]) -> str:
    """The fingerprint of all streams of a job, by name."""
    return fingerprint(
        *(part for name, stream in sorted(streams.items()) for part in (name, stream.digest, stream.builder))
    )
