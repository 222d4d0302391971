"""Errors of a process that ran out of memory or descriptors, perhaps through one sample's own fault.

Rules: pure. The causes of an error count as well. Trials find out whether the machine or the sample is at fault (see
trial_rule); until then such an error blames no sample, and the want loses one of its few attempts.
"""

from __future__ import annotations

from loader_server.sources.blame import error_text, find_exhaustion
from shared.errors import MachineError

__all__ = ["ExhaustedError", "exhausted"]


class ExhaustedError(MachineError):
    """A shortage of memory or descriptors during a piece of work that the error names."""


def exhausted(error: BaseException, in_hand: str, where: str) -> ExhaustedError | None:
    """Return an ExhaustedError naming the work in hand if `error` is or was caused by a shortage, else None."""
    if isinstance(error, ExhaustedError):
        return error
    found = find_exhaustion(error)
    if found is None:
        return None
    if isinstance(error, MachineError):  # which names it already
        return ExhaustedError(**error.words())
    return ExhaustedError(
        expected="enough memory and descriptors to build a batch",
        got=f"{in_hand} in hand: {error_text(found)}",
        where=where,
        remedy="Look at that sample, and at memory and open files on that machine: no sample was judged.",
    )
