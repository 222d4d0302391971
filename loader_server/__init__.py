"""Stoker's loader side: sources, the planner, workers, the coordinator, the commands.

`open` is for notebooks and tests: it opens a job, to look at its batches and samples without servers.
"""

from __future__ import annotations

import shared

#: As in `typing`, which takes as long to import as all that a command imports before it handles signals.
TYPE_CHECKING = False

if getattr(shared, "DISTRIBUTION", None) != "stoker":
    raise ImportError(
        f"expected stoker's own package `shared`, got {getattr(shared, '__file__', None) or list(shared.__path__)}. "
        "Another folder of that name comes first on sys.path: rename it, or start from another directory."
    )

if TYPE_CHECKING:
    from typing import Any

    from loader_server.commands.showing.opened_job import open_job as open  # noqa: A004 - like tarfile.open

__all__ = ["open"]


def __getattr__(name: str) -> Any:
    """Return `open`, imported when it is first used: the commands have no use for it.

    Raise AttributeError for any other name; errors of the import pass through.
    """
    from importlib import import_module  # not above, for the same reason as `typing`

    if name == "open":
        return import_module("loader_server.commands.showing.opened_job").open_job
    raise AttributeError(f"module 'loader_server' has no attribute {name!r}")
