"""The rule that decides whose fault it is when children that try one sample, each alone, end; and what calls for it.

Rules: pure: tries in, a verdict out. A sample is at fault only if it failed twice by itself: it crashed, hung or left
the child that had it in hand, or ran out of memory or descriptors in a fresh child that had enough of both. An end that
came from outside, such as the kernel's kill for memory, convicts nobody and ends the trial; so does a fifth try without
a verdict. A child that runs out after trying other samples counts for nothing, since these may have used up what is
missing.

A worker that runs out of memory or descriptors itself cannot tell whether the machine or the sample is at fault. Until
a trial does, such an error (`ExhaustedError`) blames no sample, and the want loses one of its few attempts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from loader_server.machine.room import Room, shown_room
from loader_server.sources.blame import error_text, find_exhaustion
from shared.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MOST_TRIES",
    "ChildEnded",
    "ExhaustedError",
    "Passed",
    "RanOut",
    "TrialVerdict",
    "Try",
    "convicting_ends",
    "exhausted",
    "judge",
    "why_unjudged",
]  # fmt: skip

#: Most tries of one sample.
MOST_TRIES = 5

#: How often a sample has to fail by itself to be convicted: one failure may be chance.
_CONVICTING = 2


class TrialVerdict(enum.Enum):
    """The verdict after the tries so far."""

    AGAIN = "try it again, in another child"
    PASSED = "it can be used"
    OWN_FAULT = "it is at fault: mask it"
    UNJUDGED = "the machine is at fault, or nobody can tell: stop trying"


@dataclass(frozen=True, slots=True)
class Passed:
    """The child survived, whatever the sample raised: the worker will meet that again, and mask or report it."""


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The child ended with the sample in hand; `by_itself` if the sample can be the cause."""

    #: How it ended, for people; convictions and errors show it.
    end: str
    by_itself: bool


@dataclass(frozen=True, slots=True)
class RanOut:
    """Memory or descriptors ran out in the child; `room` was free before, and a fresh child had tried nothing else."""

    end: str
    room: Room
    is_fresh: bool


Try: TypeAlias = "Passed | ChildEnded | RanOut"


def judge(tries: Sequence[Try], needed: Room) -> TrialVerdict:
    """Return the verdict after these tries; `needed` is the room that a sample may take without being at fault.

    The sample passed if the last try did, and is at fault after two tries that count against it. It is unjudged if the
    last child was ended from outside, or after five tries; otherwise it is to be tried again.
    """
    last = tries[-1] if tries else None
    # A sample that passes once is used, whatever became of the tries before: what ended those was not the sample alone.
    if isinstance(last, Passed):
        return TrialVerdict.PASSED
    # Killed from outside, by the kernel for memory for instance: that says nothing about the sample.
    if isinstance(last, ChildEnded) and not last.by_itself:
        return TrialVerdict.UNJUDGED
    if len(convicting_ends(tries, needed)) >= _CONVICTING:
        return TrialVerdict.OWN_FAULT
    return TrialVerdict.UNJUDGED if len(tries) >= MOST_TRIES else TrialVerdict.AGAIN


def convicting_ends(tries: Sequence[Try], needed: Room) -> list[str]:
    """Return the ends of the tries that count against the sample, maybe none.

    These are children that ended by themselves, and fresh ones that ran out although `needed` was free.
    """
    return [attempt.end for attempt in tries if not isinstance(attempt, Passed) and _convicts(attempt, needed)]


def _convicts(attempt: ChildEnded | RanOut, needed: Room) -> bool:
    return attempt.by_itself if isinstance(attempt, ChildEnded) else attempt.is_fresh and attempt.room.holds(needed)


def why_unjudged(tries: Sequence[Try], needed: Room) -> str:
    """Return how the tries of an unjudged sample ended: each kind of end once, with what was free the last time."""
    ends = {attempt.end: _way(attempt, needed) for attempt in tries if not isinstance(attempt, Passed)}
    return ", ".join(ends.values())


def _way(attempt: ChildEnded | RanOut, needed: Room) -> str:
    """Return the end of a try, with the reason why it convicts nobody if it does not."""
    if isinstance(attempt, ChildEnded):
        return attempt.end if attempt.by_itself else f"{attempt.end}, which came from outside"
    if not attempt.is_fresh:
        return f"{attempt.end}, in a child that had tried others before"
    return f"{attempt.end}, with {shown_room(attempt.room)} free, of which {shown_room(needed)} are needed"


class ExhaustedError(MachineError):
    """A shortage of memory or descriptors during a piece of work that the error names."""


def exhausted(error: BaseException, in_hand: str, where: str) -> ExhaustedError | None:
    """Return an ExhaustedError naming the work in hand if `error` is or was caused by a shortage, else None.

    An ExhaustedError is returned as it is, and the words of another MachineError are kept.
    """
    if isinstance(error, ExhaustedError):
        return error
    shortage = find_exhaustion(error)
    if shortage is None:
        return None
    if isinstance(error, MachineError):  # which names it already
        return ExhaustedError(**error.words())
    return ExhaustedError(
        expected="enough memory and descriptors to build a batch",
        got=f"{in_hand} in hand: {error_text(shortage)}",
        where=where,
        remedy="Look at that sample, and at memory and open files on that machine: no sample was judged.",
    )
