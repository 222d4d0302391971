"""A second look at a sample if memory or descriptors run out over it while an index is made.

Rules: it is looked at twice at most. If something ran out both times although as much was free as a sample may take, it
is the sample's own fault, and a bad row; otherwise the machine is at fault, and the index is not made. While a job is
served, trials in child processes decide the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from loader_server.machine.free_room import free_room
from loader_server.machine.room import NEEDED_DESCRIPTORS, Room, shown_room
from loader_server.sources.blame import find_exhaustion, told
from shared.errors import MachineError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["look_twice"]

T = TypeVar("T")


def look_twice(look: Callable[[], T], largest: int, where: Callable[[], str]) -> T:
    """Return what `look` returns; where memory or descriptors run out, look again, and say whose fault that is.

    Raises:
        SampleError: it ran out both times, with the `largest` sample's memory free.
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
        found = find_exhaustion(error)
        if found is None:
            raise
        raise _verdict(found, room, largest, where()) from error


def _verdict(found: BaseException, room: Room, largest: int, where: str) -> SampleError | MachineError:
    needed = Room(memory=largest, descriptors=NEEDED_DESCRIPTORS)
    words = {
        "expected": "a sample that leaves memory and descriptors to others",
        "got": f"{told(found)}, twice, with {shown_room(room)} free, of which {shown_room(needed)} are needed",
        "where": where,
        "remedy": "Look at memory and open files on this machine, or at that sample; then run loader-server index.",
    }
    return SampleError(reason="exhausts", **words) if room.holds(needed) else MachineError(**words)
