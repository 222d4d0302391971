"""The samples of a stream that are known to kill the process that decodes them.

Rules: pure. One thread changes them, the worker's poll loop; any other reads `keys`, which is replaced whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KnownCulprits", "key_of"]


def key_of(stream: str, identity: str) -> int:
    """What stands for a culprit on the wire."""
    return digest64(f"{stream}\0{identity}".encode("utf-8", "backslashreplace"))  # as it crosses


class KnownCulprits:
    """What the coordinator says, and what was found here and is not on its list yet."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        #: Those of all streams, as they cross the network.
        self.keys: frozenset[int] = frozenset()
        self._found: frozenset[int] = frozenset()

    def hear(self, keys: Iterable[int]) -> None:
        """The coordinator's list, which replaces its last one: what is on it no more was forgiven."""
        told = frozenset(keys)
        self._found -= told
        self.keys = told | self._found

    def find(self, identity: str) -> None:
        """A sample was convicted here; the coordinator will put it on its list."""
        self._found |= {key_of(self._stream, identity)}
        self.keys |= self._found

    def __contains__(self, identity: str) -> bool:
        return key_of(self._stream, identity) in self.keys
