"""What the coordinator answers to those it turns away: what was expected, what came and what to do.

Pure: what to refuse is decided in `state`. The refusal of an attach names its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire.refusals import not_attached, refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader_server.coordinator.stream_trainers import AttachedTrainer
    from shared.errors import SettingsError
    from shared.wire import messages as m
    from shared.wire.parts import Cursor

__all__ = [
    "another_builder",
    "another_cursor",
    "another_job",
    "another_plan",
    "another_world",
    "group_misfit",
    "no_endpoint",
    "no_such_batch",
    "no_such_rank",
    "no_such_stream",
    "not_kept",
    "superseded",
    "superseded_attach",
    "too_large_a_world",
    "unknown_trainer",
    "unknown_worker",
]


# --- an attach ---


def another_job(attach: m.Attach, job: str) -> m.NotAttached:
    """The trainer belongs to another job."""
    remedy = "Connect to that job's coordinator, or leave job= out."
    return _not_attached(attach, "job", f"a trainer of job {job}", f"job {attach.job}", remedy)


def no_such_stream(attach: m.Attach, streams: Iterable[str]) -> m.NotAttached:
    """The job has no stream of this name."""
    names = ", ".join(f'"{name}"' for name in streams)
    remedy = "Correct stream=, or add it to the job file."
    return _not_attached(attach, "stream", f"one of the streams {names}", f'"{attach.stream}"', remedy)


def no_such_rank(attach: m.Attach) -> m.NotAttached:
    """Its ranks lie outside its own world."""
    got = f"{attach.rank} + {attach.replicas} > {attach.world}"
    return _not_attached(attach, "rank", "rank + replicas <= world", got, "Correct rank= or world=.")


def another_plan(attach: m.Attach, cursor: Cursor, digest: str) -> m.NotAttached:
    """Its cursor belongs to another plan than that of this digest."""
    remedy = "Data, job file or seed changed since that checkpoint: restore them, or start without it."
    return _not_attached(attach, "plan", f"a cursor of plan {digest}", f"one of plan {cursor.plan_digest}", remedy)


def too_large_a_world(attach: m.Attach, cursor: Cursor) -> m.NotAttached:
    """Its world has more ranks than a round can have batches."""
    remedy = (
        f"Write group = {attach.world} in [job] and restart the loaders: it takes effect with the next epoch. "
        "Until then use fewer ranks."
    )
    expected = f"a world of at most group = {cursor.group} ranks"
    return _not_attached(attach, "world", expected, f"a world of {attach.world}", remedy)


def group_misfit(attach: m.Attach, objection: SettingsError) -> m.NotAttached:
    """The data yields too few groups as large as its world."""
    return _not_attached(attach, "world", objection.expected, f"{objection.got} ({objection.where})", objection.remedy)


def no_such_batch(attach: m.Attach, cursor: Cursor, batches: int) -> m.NotAttached:
    """Its cursor is past the end of the epoch."""
    expected = f"a batch number of at most {batches} in epoch {cursor.epoch}"
    return _not_attached(attach, "cursor", expected, str(cursor.number), "Restore another checkpoint.")


def another_world(attach: m.Attach, other: m.Attach) -> m.NotAttached:
    """A rank that is alive belongs to another world."""
    expected, got = f"a world of {other.world}, as {_who(other)} says", f"a world of {attach.world} from {_who(attach)}"
    remedy = "Give all ranks the same world=, or stop the ones of the old world."
    return _not_attached(attach, "world", expected, got, remedy)


def another_cursor(attach: m.Attach, cursor: Cursor, other: m.Attach, theirs: Cursor) -> m.NotAttached:
    """A rank that is alive is at another position."""
    expected = f"epoch {theirs.epoch}, batch {theirs.number}, where {_who(other)} started"
    got = f"epoch {cursor.epoch}, batch {cursor.number} from {_who(attach)}"
    remedy = "Restore the same checkpoint on all ranks, and restart them together."
    return _not_attached(attach, "cursor", expected, got, remedy)


def superseded_attach(attach: m.Attach, newer: AttachedTrainer | None) -> m.NotAttached:
    """It comes back after another incarnation has taken over its rank."""
    return not_attached(attach.serial, superseded(attach.rank, newer))


# --- whoever is attached or registered, or was ---


def superseded(rank: int, newer: AttachedTrainer | None) -> m.Refused:
    """Another incarnation has taken over the rank: `newer`, or None if it is not there now."""
    got = f"a newer one, {newer.attach.name}" if newer is not None else "a newer one"
    return refused("superseded", f"to be the only trainer of rank {rank}", got, "Stop one of them.")


def unknown_trainer() -> m.Refused:
    """It attached to an earlier coordinator, or has been silent for long."""
    return refused("unknown", "a trainer that is attached", "one that this coordinator has not seen", "Attach again.")


def unknown_worker() -> m.Refused:
    """It registered with an earlier coordinator, or has been silent for long."""
    return refused("unknown", "a registered worker", "one that this coordinator has not seen", "Register again.")


# --- workers, and people ---


def no_endpoint(register: m.Register) -> m.Refused:
    """No trainer could connect to its endpoint."""
    remedy = "Start the worker with --listen and an address of its machine that trainers can reach."
    expected = "an endpoint like tcp://10.0.0.7:7410"
    return refused("endpoint", expected, f"{register.endpoint!r} from {register.worker}", remedy)


def another_builder(register: m.Register) -> m.Refused:
    """The worker would build other bytes. Neither fingerprint is told: ours would let it in, its own it knows."""
    remedy = (
        "Give every loader machine the same job file, index and own transforms, and the same releases of stoker, "
        "numpy, soundfile, soxr and what own transforms import or declare. The coordinator's log has both fingerprints."
    )
    expected = "a worker that builds the same bytes as the coordinator's machine would"
    return refused("builder", expected, f"another builder fingerprint from {register.worker}", remedy)


def not_kept(count: int) -> m.Refused:
    """Convictions were forgotten, but the journal cannot be written."""
    got = f"{count} convictions that are forgotten until the coordinator restarts: its journal cannot be written"
    return refused("journal", "to forget convictions for good", got, "Make room on the disk of the state folder.")


def _who(attach: m.Attach) -> str:
    return f"rank {attach.rank} ({attach.name})"


def _not_attached(attach: m.Attach, code: str, expected: str, got: str, remedy: str) -> m.NotAttached:
    return not_attached(attach.serial, refused(code, expected, got, remedy))
