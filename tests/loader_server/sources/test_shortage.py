"""Whose fault it is that memory or descriptors ran out over a sample while an index is made."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from loader_server.machine.room import Room
from loader_server.sources import shortage
from loader_server.sources.shortage import look_twice
from shared.errors import MachineError, ReadError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 2**30
ENOUGH = Room(memory=LARGEST, descriptors=64)


def raising(*errors: BaseException | None) -> Callable[[], int]:
    """Raise each in turn; None stands for an answer."""
    left = list(errors)

    def look() -> int:
        error = left.pop(0)
        if error is not None:
            raise error
        return 7

    return look


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[Room]:
    """What is free, whenever that is asked."""
    free = [ENOUGH]
    monkeypatch.setattr(shortage, "free_room", lambda: free[-1])
    return free


def look(*errors: BaseException | None) -> int:
    return look_twice(raising(*errors), LARGEST, lambda: "a.wav (list.csv, line 3)")


@pytest.mark.usefixtures("room")
def test_what_runs_out_once_is_looked_at_again() -> None:
    assert look(None) == 7
    assert look(MemoryError(), None) == 7
    assert look(OSError(errno.EMFILE, "Too many open files"), None) == 7


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_any_other_error_is_passed_on_at_once(error: BaseException) -> None:
    with pytest.raises(type(error)) as first:
        look(error)
    assert first.value is error
    with pytest.raises(type(error)) as second:
        look(MemoryError(), error)
    assert second.value is error


@pytest.mark.fault(53)
@pytest.mark.usefixtures("room")
def test_with_enough_free_it_is_the_samples_own_fault() -> None:
    read = ReadError(expected="a", got="b", where="c", remedy="d")
    read.__cause__ = OSError(errno.ENFILE, "Too many open files in system")
    with pytest.raises(SampleError, match=r"a.wav \(list.csv, line 3\): .*Too many open files in system, twice") as bad:
        look(MemoryError(), read)
    assert bad.value.reason == "exhausts"


@pytest.mark.fault(53)
@pytest.mark.parametrize(
    "left", [Room(memory=LARGEST - 1, descriptors=64), Room(memory=LARGEST, descriptors=63)], ids=["memory", "files"]
)
def test_with_less_free_it_is_the_machines(room: list[Room], left: Room) -> None:
    room.append(left)
    with pytest.raises(
        MachineError, match=r"got MemoryError: big, twice, with .* free, of which 1 GiB of memory and 64"
    ):
        look(MemoryError("big"), MemoryError("big"))
