"""Errors that say that memory or descriptors ran out: perhaps of this process, perhaps through one sample's own fault.

Rules: pure. The causes of an error count as well. Which of the two it was is for trials to find out (see trial_rule);
until then such an error speaks against nobody, and the want loses one of its few attempts.
"""

from __future__ import annotations

from loader_server.sources.blame import find_exhaustion, told
from shared.errors import MachineError

__all__ = ["ExhaustedError", "exhausted"]


class ExhaustedError(MachineError):
    """Memory or descriptors ran out while something was in hand, which the error names."""


def exhausted(error: BaseException, in_hand: str, where: str) -> ExhaustedError | None:
    """Return the error that names what was in hand when memory or descriptors ran out; None for any other error."""
    if isinstance(error, ExhaustedError):
        return error
    found = find_exhaustion(error)
    if found is None:
        return None
    if isinstance(error, MachineError):  # which names it already
        return ExhaustedError(**error.words())
    return ExhaustedError(
        expected="enough memory and descriptors to build a batch",
        got=f"{in_hand} in hand: {told(found)}",
        where=where,
        remedy="Look at that sample, and at memory and open files on that machine: no sample was judged.",
    )
