"""The limit on a decoded sample's size, `largest_sample` in [job], and the error for larger ones.

Rules: pure. A header may claim any size, so sizes are compared before memory is allocated. 0 bytes stand for no limit.
"""

from __future__ import annotations

from loader_server.machine.room import shown_bytes
from shared.errors import SampleError
from shared.settings.job import LARGEST_SAMPLE

__all__ = ["LARGEST_SAMPLE", "OVER_LARGEST", "refuse_larger", "size_texts"]

#: The reason code of a sample or row that is left out for its size.
OVER_LARGEST = "over_largest_sample"


def size_texts(nbytes: int, largest: int) -> tuple[str, str]:
    """Return the "expected" and "got" texts for a sample that is too large."""
    return f"at most {shown_bytes(largest)} decoded, as largest_sample in [job] says", shown_bytes(nbytes)


def refuse_larger(nbytes: int, largest: int, where: str) -> None:
    """Raise a SampleError if a sample would be larger than `largest` bytes."""
    if not largest or nbytes <= largest:
        return
    expected, got = size_texts(nbytes, largest)
    remedy = "Raise largest_sample if it is what it should be; else mend or remove it. Then run loader-server index."
    raise SampleError(reason=OVER_LARGEST, expected=expected, got=got, where=where, remedy=remedy)
