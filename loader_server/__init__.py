"""Stoker's loader side: sources, the planner, workers, the coordinator, the commands."""

import shared

if getattr(shared, "DISTRIBUTION", None) != "stoker":
    raise ImportError(
        f"expected stoker's own package `shared`, got {getattr(shared, '__file__', None) or list(shared.__path__)}. "
        "Another folder of that name comes first on sys.path: rename it, or start from another directory."
    )

__all__: list[str] = []
