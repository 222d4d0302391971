"""What one sample may take of the machine: bytes once decoded, and memory and descriptors while it is looked at.

Rules: a header may claim any size, so sizes are compared with `largest_sample` in [job] before memory is allocated; 0
bytes stand for no limit. If memory or descriptors run out over a sample while an index is made, it is looked at a
second time. If something ran out both times although as much was free as a sample may take, it is the sample's own
fault, and a bad row; otherwise the machine is at fault, and the index is not made. While a job is served, trials in
child processes decide the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from loader_server.machine.free_room import free_room
from loader_server.machine.room import NEEDED_DESCRIPTORS, Room, shown_bytes, shown_room
from loader_server.sources.blame import error_text, find_exhaustion
from shared.errors import MachineError, SampleError
from shared.settings.job import LARGEST_SAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LARGEST_SAMPLE", "OVER_LARGEST", "look_twice", "refuse_larger", "size_texts"]

#: The reason code of a sample or row that is left out for its size.
OVER_LARGEST = "over_largest_sample"

T = TypeVar("T")


def size_texts(nbytes: int, largest: int) -> tuple[str, str]:
    """Return the "expected" and "got" texts for a sample that is too large."""
    return f"at most {shown_bytes(largest)} decoded, as largest_sample in [job] says", shown_bytes(nbytes)


def refuse_larger(nbytes: int, largest: int, where: str) -> None:
    """Raise a SampleError if a sample would be larger than `largest` bytes; 0 is no limit."""
    if largest and nbytes > largest:
        expected, got = size_texts(nbytes, largest)
        raise SampleError(
            reason=OVER_LARGEST,
            expected=expected,
            got=got,
            where=where,
            remedy="Raise largest_sample if the size is right; else mend or remove it. Then run loader-server index.",
        )


def look_twice(look: Callable[[], T], largest: int, where: Callable[[], str]) -> T:
    """Return what `look` returns; if memory or descriptors run out, look again, and find whose fault that is.

    Any other error of `look` passes as it is.

    Raises:
        SampleError: it ran out both times, with the `largest` sample's memory and some descriptors free.
        MachineError: it ran out both times, with less free.

    """
    try:
        return look()
    except BaseException as error:  # running out of memory may surface as any exception
        if find_exhaustion(error) is None:
            raise
    room = free_room()  # only now, because asking for it takes longer than most samples
    try:
        return look()
    except BaseException as error:  # as above
        exhaustion = find_exhaustion(error)
        if exhaustion is None:
            raise
        raise _verdict(exhaustion, room, largest, where()) from error


def _verdict(exhaustion: BaseException, room: Room, largest: int, where: str) -> SampleError | MachineError:
    """Return the error that blames the sample if enough was free for it, otherwise the machine."""
    needed = Room(memory=largest, descriptors=NEEDED_DESCRIPTORS)
    free = f"{shown_room(room)} free, of which {shown_room(needed)} are needed"
    words = {
        "expected": "a sample that leaves memory and descriptors to others",
        "got": f"{error_text(exhaustion)}, twice, with {free}",
        "where": where,
        "remedy": "Look at memory and open files on this machine, or at that sample; then run loader-server index.",
    }
    return SampleError(reason="exhausts", **words) if room.holds(needed) else MachineError(**words)
