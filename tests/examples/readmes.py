"""What an example's README shows: commands in fenced blocks, each behind a `$`, and the lines that they print.

Rules: a quoted line has to be printed, but for its numbers; an ellipsis stands for anything in a line.
Lines that the page leaves out are not looked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Shown", "not_printed", "shown_in"]

_HEADING = re.compile(r"^#+ (.+)$")
_NUMBER = re.compile(r"\d[\d.,:]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command under a heading, and what the page says that it prints."""

    heading: str
    command: str
    lines: Sequence[str]


def shown_in(readme: Path) -> list[Shown]:
    """The commands of a page, in order."""
    found: list[Shown] = []
    heading, is_fenced = "", False
    for line in readme.read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced:
            heading = match[1] if (match := _HEADING.match(line)) else heading
        elif line.startswith("$ "):
            found.append(Shown(heading=heading, command=" ".join(line[2:].split()), lines=[]))
        elif found and found[-1].heading == heading:
            found[-1].lines.append(line)
    return found


def not_printed(quoted: Sequence[str], printed: str) -> list[str]:
    """The quoted lines that were not printed, in this order."""
    lines = iter(printed.splitlines())
    wanted = [line for line in quoted if line.strip() not in ("", "…")]
    return [line for line in wanted if not any(_pattern(line).fullmatch(one.strip()) for one in lines)]


def _pattern(line: str) -> re.Pattern[str]:
    parts = (re.escape(_NUMBER.sub("0", part)) for part in line.strip().split("…"))
    return re.compile(".*".join(part.replace("0", _NUMBER.pattern) for part in parts))
