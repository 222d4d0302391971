"""How large a sample may be once it is decoded, `largest_sample` in [job], and what is said of one that is larger.

Rules: pure. A header may claim anything, so sizes are compared before memory is taken for them. 0 bytes stand for no
limit.
"""

from __future__ import annotations

from loader_server.machine.room import shown_bytes
from shared.errors import SampleError
from shared.settings.job import LARGEST_SAMPLE

__all__ = ["LARGEST_SAMPLE", "OVER_LARGEST", "refuse_larger", "said_of_larger"]

#: Why a sample or a row is left out.
OVER_LARGEST = "over_largest_sample"


def said_of_larger(nbytes: int, largest: int) -> tuple[str, str]:
    """Return what was expected of a sample of this size, and what came."""
    return f"at most {shown_bytes(largest)} decoded, as largest_sample in [job] says", shown_bytes(nbytes)


def refuse_larger(nbytes: int, largest: int, where: str) -> None:
    """Raise a SampleError if a sample would have more bytes than it may."""
    if not largest or nbytes <= largest:
        return
    expected, got = said_of_larger(nbytes, largest)
    remedy = "Raise largest_sample if it is what it should be; else mend or remove it. Then run loader-server index."
    raise SampleError(reason=OVER_LARGEST, expected=expected, got=got, where=where, remedy=remedy)
