"""The fields by which log lines and reports of all processes name a trainer, so that they can be joined.

Rules: pure. A run is one life of a trainer, from `connect` to its end: a trainer that is started again has another. The
name alone does not tell lives apart, as process numbers are used again, and in queue mode nobody has a rank.
"""

from __future__ import annotations

__all__ = ["run_name", "trainer_fields"]


def run_name(incarnation: int) -> str:
    """Return how logs and reports name a run: the incarnation in 16 hexadecimal digits."""
    return f"{incarnation:016x}"


def trainer_fields(name: str, rank: int | None, incarnation: int) -> dict[str, object]:
    """Return the fields of each line about a trainer: its name, its rank if it has any, and its run."""
    return {"trainer": name, **({} if rank is None else {"rank": rank}), "run": run_name(incarnation)}
