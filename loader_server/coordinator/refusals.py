"""Whom the coordinator turns away: each refusal names what was expected, what came and what to do.

Pure: what to refuse is decided in `state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.errors import SettingsError

__all__ = [
    "another_builder",
    "another_cursor",
    "another_job",
    "another_plan",
    "another_world",
    "group_misfit",
    "no_such_batch",
    "no_such_rank",
    "no_such_stream",
    "superseded",
    "too_large_a_world",
    "unknown_trainer",
    "unknown_worker",
]


def another_job(attach: m.Attach, job: str) -> m.Refused:
    """The trainer belongs to another job."""
    remedy = "Connect to that job's coordinator, or leave job= out."
    return _refused("job", f"a trainer of job {job}", f"job {attach.job}", remedy)


def no_such_stream(attach: m.Attach, streams: Iterable[str]) -> m.Refused:
    """The job has no stream of this name."""
    names = ", ".join(f'"{name}"' for name in streams)
    remedy = "Correct stream=, or add it to the job file."
    return _refused("stream", f"one of the streams {names}", f'"{attach.stream}"', remedy)


def no_such_rank(attach: m.Attach) -> m.Refused:
    """Its ranks lie outside its own world."""
    got = f"{attach.rank} + {attach.replicas} > {attach.world}"
    return _refused("rank", "rank + replicas <= world", got, "Correct rank= or world=.")


def another_plan(cursor: m.Cursor, digest: str) -> m.Refused:
    """Its cursor counts the batches of another plan than the one of this digest."""
    remedy = "Data, job file or seed changed since that checkpoint: restore them, or start without it."
    return _refused("plan", f"a cursor of plan {digest}", f"one of plan {cursor.plan_digest}", remedy)


def too_large_a_world(attach: m.Attach, cursor: m.Cursor) -> m.Refused:
    """A round has no batch for each of its ranks."""
    remedy = (
        f"Write group = {attach.world} in [job] and restart the loaders: it takes effect with the next epoch. "
        "Until then use fewer ranks."
    )
    expected = f"a world of at most group = {cursor.group} ranks"
    return _refused("world", expected, f"a world of {attach.world}", remedy)


def group_misfit(objection: SettingsError) -> m.Refused:
    """The data makes too few groups as large as its world."""
    return _refused("world", objection.expected, f"{objection.got} ({objection.where})", objection.remedy)


def no_such_batch(cursor: m.Cursor, batches: int) -> m.Refused:
    """The epoch ends before its cursor."""
    expected = f"a batch number of at most {batches} in epoch {cursor.epoch}"
    return _refused("cursor", expected, str(cursor.number), "Restore another checkpoint.")


def another_world(attach: m.Attach, other: m.Attach) -> m.Refused:
    """A live rank is of another world."""
    expected, got = f"a world of {other.world}, as {_who(other)} says", f"a world of {attach.world} from {_who(attach)}"
    return _refused("world", expected, got, "Give all ranks the same world=, or stop the ones of the old world.")


def another_cursor(attach: m.Attach, cursor: m.Cursor, other: m.Attach, theirs: m.Cursor) -> m.Refused:
    """A live rank stands elsewhere."""
    expected = f"epoch {theirs.epoch}, batch {theirs.number}, where {_who(other)} started"
    got = f"epoch {cursor.epoch}, batch {cursor.number} from {_who(attach)}"
    return _refused("cursor", expected, got, "Restore the same checkpoint on all ranks, and restart them together.")


def superseded(rank: int, newer: m.Attach | None) -> m.Refused:
    """Another incarnation has taken the rank over."""
    got = f"a newer one, {newer.name}" if newer is not None else "a newer one"
    return _refused("superseded", f"to be the only trainer of rank {rank}", got, "Stop one of them.")


def unknown_trainer() -> m.Refused:
    """It attached to a coordinator before this one, or has been silent for long."""
    return _refused("unknown", "a trainer that is attached", "one that this coordinator has not seen", "Attach again.")


def unknown_worker() -> m.Refused:
    """It registered with a coordinator before this one, or has been silent for long."""
    return _refused("unknown", "a registered worker", "one that this coordinator has not seen", "Register again.")


def another_builder(register: m.Register, builder: str) -> m.Refused:
    """The worker would build other bytes."""
    remedy = (
        "Give every loader machine the same job file, index and own transforms, and the same releases of "
        "stoker, numpy, soundfile and soxr."
    )
    expected = f"a worker that builds the same bytes ({builder})"
    return _refused("builder", expected, f"{register.worker} with {register.builder}", remedy)


def _who(attach: m.Attach) -> str:
    return f"rank {attach.rank} ({attach.name})"


def _refused(code: str, expected: str, got: str, remedy: str) -> m.Refused:
    return m.Refused(code=code, expected=expected, got=got, remedy=remedy)
