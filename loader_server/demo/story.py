"""The demo's narration: acts with a title, and lines below them, for terminals and files alike.

Rules: writes to standard output; lines are short enough to read, unless a single word is longer; text is never taken
for markup, so any path can be printed. Must not know what the story is about.
"""

from __future__ import annotations

import textwrap
import time

from rich.console import Console
from rich.text import Text

__all__ = ["Story"]

#: Columns of text, if the terminal has as many.
_WIDTH = 100


class Story:
    """The acts as they are printed, with the time since the demo began."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.console = Console(highlight=False, soft_wrap=True)

    def act(self, number: int, title: str, text: str) -> None:
        """Print the first lines of an act, wrapped, number and title in bold; from act 2 on after an empty line."""
        head, *others = self._lines(f"{number}  {title}  {text}")
        self.console.print(
            Text.assemble("\n" if number > 1 else "", (head[: len(title) + 3], "bold"), head[len(title) + 3 :])
        )
        for line in others:
            self.console.print(Text(line))

    def say(self, text: str, style: str = "") -> None:
        """Print further lines of the act, indented and wrapped."""
        for line in self._lines(f"   {text}"):
            self.console.print(Text(line, style))

    def _lines(self, text: str) -> list[str]:
        """Return lines of at most 100 columns, or a terminal's; no word is broken, so that commands can be copied."""
        width = min(_WIDTH, self.console.width) if self.console.is_terminal else _WIDTH
        return textwrap.wrap(text, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)

    def so_far_s(self) -> float:
        """Return the seconds since the demo began."""
        return time.monotonic() - self.began_s
