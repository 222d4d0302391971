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


def builder_fingerprint(streams: Mapping[str, Stream], sent: Mapping[str, str]) -> str:
    """The fingerprint of all streams of a job, by name; of those whose graphs trainers send, of what else shapes them,
    for a graph may come later. The plan's digest tells graphs apart.
    """
    own = [
        part for name, one in sorted(streams.items()) if name not in sent for part in (name, one.digest, one.builder)
    ]
    return fingerprint(*own, *(part for name in sorted(sent) for part in ("graph", name, sent[name])))
