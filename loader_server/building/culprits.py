"""Samples of a stream that are known to kill the process that decodes them.

Rules: pure. Only the worker's poll loop changes them; other threads read `keys`, which is replaced as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import SampleError
from shared.hashing import digest64

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KILLS", "KnownCulprits", "culprit_key", "kills"]

#: The reason under which a culprit is masked.
KILLS = "kills_decoder"


def kills(name: str) -> SampleError:
    """Return the SampleError, of reason KILLS, that masks a known culprit by this name."""
    return SampleError(
        reason=KILLS,
        expected="a sample that can be decoded",
        got="one that twice killed, hung or exhausted the process decoding it",
        where=name,
        remedy="Mend or remove the file; or mend the decoder, and let loader-server forgive have it tried again.",
    )


def culprit_key(stream: str, identity: str) -> int:
    """Return the 64-bit hash of stream and identity that stands for a culprit on the wire."""
    # An identity may hold bytes of a file name that are no UTF-8; on the wire they are escaped, and so here.
    return digest64(f"{stream}\0{identity}".encode("utf-8", "backslashreplace"))


class KnownCulprits:
    """The coordinator's list of culprits, and those found here that are not on it yet."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        #: Hashes of the culprits on the coordinator's list, which is for all streams, and of those found here.
        self.keys: frozenset[int] = frozenset()
        self._found: frozenset[int] = frozenset()

    def hear(self, keys: Iterable[int]) -> None:
        """Replace the coordinator's list with its new one; a sample that is missing from it was forgiven.

        Samples found here stay, until a list has had them.
        """
        listed = frozenset(keys)
        # Once the coordinator lists a find of ours, only its list counts: missing from a later list means forgiven.
        # Until then its lists were sent before it heard of the find.
        self._found -= listed
        # One assignment, because other threads read `keys` without a lock.
        self.keys = listed | self._found

    def find(self, identity: str) -> None:
        """Add a sample that was convicted here; the coordinator will add it to its list."""
        self._found |= {culprit_key(self._stream, identity)}
        self.keys |= self._found

    def __contains__(self, identity: str) -> bool:
        return culprit_key(self._stream, identity) in self.keys
