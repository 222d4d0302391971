"""A wall clock that a test moves, in the processes that it starts.

`clock_in(folder)` puts a `sitecustomize` there: a Python that has the folder on its path adds the seconds in the file
`clock` to whatever time of day it is asked for. Clocks that only count up stay as they are, as they do when somebody
sets a machine's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["clock_in"]

_SITE = """
import pathlib, time

clock, time_ns = pathlib.Path(__file__).with_name("clock"), time.time_ns

def moved_ns():
    return time_ns() + int(clock.read_text()) * 10**9

time.time_ns, time.time = moved_ns, lambda: moved_ns() / 1e9
"""


def clock_in(folder: Path) -> Callable[[int], None]:
    """Moves the clock of all processes with this folder on their path to so many seconds from the true time."""

    def move(offset_s: int) -> None:
        draft = folder / "clock.new"
        draft.write_text(str(offset_s))
        draft.replace(folder / "clock")

    move(0)
    (folder / "sitecustomize.py").write_text(_SITE)
    return move
