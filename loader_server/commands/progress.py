"""The progress of long work, and tables, as commands show them.

Rules: the library that draws them is imported only if something is drawn, because importing takes longer than starting
a job.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console
    from rich.table import Table

__all__ = ["filled_table", "plain_console", "progress_bar", "warn_if_slow"]

#: Work that takes longer is announced. A look at files may rightly take a second.
_SLOW_S = 2.0


@contextmanager
def warn_if_slow(work: str, after_s: float = _SLOW_S) -> Iterator[None]:
    """Print a line on standard error if the block takes longer than this: a gone disk may block it for ever."""
    line = f"loader-server: {work} takes longer than {after_s:g} s; do all disks answer?"
    # From another thread, because this one may be blocked.
    timer = Timer(after_s, print, (line,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # processes may be forked next


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that draws done and total as a bar on standard error; if that is no terminal, it does nothing.

    The bar is removed at the end.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def plain_console(**settings: Any) -> Console:
    """Return a console that prints texts as they are; `settings` are rich's own."""
    from rich.console import Console

    # Names, transcripts and reasons may well have "[noise]" in them, "[/INST]" or ":smile:".
    return Console(markup=False, emoji=False, **settings)


def filled_table(columns: Iterable[str], rows: Iterable[Iterable[str]], **settings: Any) -> Table:
    """Return a table with these columns and rows; `settings` are rich's own, such as a title."""
    from rich.table import Table

    table = Table(*columns, **settings)
    for cells in rows:
        table.add_row(*cells)
    return table
