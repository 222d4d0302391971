"""Delays that can be changed while processes run: a file that each of them looks at before it sleeps.

They are seconds by name. A name with a process number behind it, as in `transform_s:123`, counts in that process only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE", "Delays", "delay_s", "write_delays"]

#: The environment variable that names the file.
FILE = "STOKER_TEST_DELAYS"


class Delays:
    """The delays in a file, read anew when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = 0
        self._delays: dict[str, float] = {}

    def get_s(self, name: str) -> float:
        """Return this process's delay, 0 if there is none."""
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns != self._changed_ns:
            self._delays, self._changed_ns = json.loads(self._path.read_text()), changed_ns
        own = self._delays.get(f"{name}:{os.getpid()}")
        return self._delays.get(name, 0.0) if own is None else own


def write_delays(path: Path, delays: Mapping[str, float]) -> None:
    """Replace the delays of all processes at once."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(delays))
    new.replace(path)


_of_this_process: list[Delays] = []


def delay_s(name: str) -> float:
    """Return the delay in the file that the environment names; 0 if it names none, as while an index is made."""
    if FILE not in os.environ:
        return 0.0
    if not _of_this_process:
        _of_this_process.append(Delays(Path(os.environ[FILE])))
    return _of_this_process[0].get_s(name)
