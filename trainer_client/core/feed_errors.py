"""Wording of the errors that end a feed or a connection: expected, got, where, and what to do.

Pure: when an error is due is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import (
    DataError,
    EndedError,
    LostError,
    MachineError,
    PeerError,
    RefusedError,
    StokerError,
    WorldChangedError,
)

if TYPE_CHECKING:
    from shared.wire.messages import Failing
    from trainer_client.core.upcoming import Entry, UpcomingBatch

__all__ = [
    "book_lost", "failing_machines", "job_ended", "leases_withheld", "nobody_left", "other_plan", "refused_by_all",
    "world_over", "wrong_bytes",
]  # fmt: skip


def job_ended() -> EndedError:
    """Return the EndedError for a job that was ended on purpose."""
    return EndedError(
        expected="more batches",
        got="the coordinator's word that the job was ended",
        where="job",
        remedy="Nothing is wrong. To go on, start its loaders again; training resumes at the last checkpoint.",
    )


def wrong_bytes(worker: str, batch: UpcomingBatch) -> StokerError:
    """Return the PeerError for a batch whose bytes, layout or number are not those that were asked for."""
    return PeerError(
        expected="a batch with the digest and layout that its header names",
        got="other bytes, from every worker that was asked",
        where=f"batch {batch.number} of epoch {batch.position.epoch}, last from worker {worker}",
        remedy="Look at that machine's memory and network; run with one worker to see which is at fault.",
    )


def failing_machines(entry: Entry, last: StokerError) -> StokerError:
    """Return the MachineError for a batch that several machines failed at, through no fault of the data.

    It names every reason once, with its machines, in up to 4000 characters; what was expected, and what to do, come
    from the last failure.
    """
    return MachineError(
        expected=last.expected,
        got="; ".join(_once_each(entry.failures))[:4000],
        where=f"batch {entry.batch.number} of epoch {entry.batch.position.epoch}",
        remedy=last.remedy,
    )


def _once_each(failures: list[str]) -> list[str]:
    """Return the failures, each "worker: reason", merged to one entry per reason with all its workers in front.

    A reason that came more than once has the number of times behind it.
    """
    workers: dict[str, list[str]] = {}
    for failure in failures:
        worker, _, reason = failure.partition(": ")
        workers.setdefault(reason, []).append(worker)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}{_times(len(names))}" for reason, names in workers.items()]


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def other_plan(ours: str, theirs: str) -> StokerError:
    """Return the RefusedError, code "plan", for a coordinator whose plan is not the one that this run is trained on."""
    return RefusedError(
        code="plan",
        expected=f"plan {ours}, which this run is trained on",
        got=f"plan {theirs}",
        where="coordinator",
        remedy="Job file or data changed under a running job: restart the trainer, from a checkpoint of the same plan.",
    )


def refused_by_all(last: StokerError, refused: int, listed: int) -> StokerError:
    """Return the last refusal again, an error of its class, with the number of workers that refused in its `where`."""
    where = f"{last.where} (refused by {refused} of {listed} workers)"
    if isinstance(last, RefusedError):
        return RefusedError(code=last.code, expected=last.expected, got=last.got, where=where, remedy=last.remedy)
    return type(last)(expected=last.expected, got=last.got, where=where, remedy=last.remedy)


def world_over(reason: str) -> StokerError:
    """Return the WorldChangedError for an elastic world that is over because trainers came or went."""
    return WorldChangedError(
        expected="the elastic world to go on",
        got=reason,
        where="coordinator",
        remedy="Join the next world, at the last checkpoint: `trainer_client.run_elastic` does it by itself.",
    )


#: What to do once the leases are lost, by the kind of work.
_AFTER_LOSS = {
    "train": "Start all trainers of this stream again: they resume at {saved}, and train again on what came after it.",
    "evaluate": "Evaluate again: what this came to so far is no whole evaluation.",
    "predict": "Predict again into the same folder: the parts that are there are kept.",
}


def book_lost(stream: str, work: str, saved: str) -> StokerError:
    """Return the RefusedError, code "lost", for a coordinator that lost its journal, and so this trainer's leases.

    `saved` describes the last checkpoint, empty if there is none.
    """
    remedy = _AFTER_LOSS.get(work, _AFTER_LOSS["train"])
    return RefusedError(
        code="lost",
        expected="the lease table that this trainer leased its batches from",
        got="another one, because the coordinator's journal was deleted, cut or replaced",
        where=f"coordinator, stream {stream}",
        remedy=remedy.format(saved=f"the last checkpoint, {saved}" if saved else "the last checkpoint"),
    )


def leases_withheld(stream: str, job: str, timeout_s: float) -> StokerError:
    """Return the LostError for a coordinator that is gone, or withholds leases as it cannot write its journal."""
    return LostError(
        expected=f"the coordinator to lease batches, or to say that there are none, within {timeout_s:g} s",
        got="no answer",
        where=f"coordinator, stream {stream}",
        remedy="Look at `loader-server status`. If the coordinator is there, its journal in the state folder of job "
        f"{job} is lost or cannot be written (alerts StokerJournalLost, StokerJournalNotWritten): mend that. If it is "
        "not, start the loaders. Then start this trainer again, or allow more time with lost_timeout_s.",
    )


def nobody_left(tried: list[str], listed: int, timeout_s: float, failing: Failing | None = None) -> StokerError:
    """Return the LostError for a feed without a worker that could build its head.

    If a worker could not even begin to serve (`failing`), its error is the likely cause, and is returned as a DataError
    instead. Of the workers that were tried, ten are named.
    """
    if failing is not None:
        return DataError(
            expected=failing.expected,
            got=failing.got,
            where=f"{failing.where} (worker {failing.worker} cannot serve, and there was no other for {timeout_s:g} s)",
            remedy=failing.remedy,
        )
    shown = ", ".join(tried[:10]) + (f" and {len(tried) - 10} more" if len(tried) > 10 else "")
    return LostError(
        expected="a live worker",
        got=f"none for {timeout_s:g} s; {_how_many(len(tried), listed)}{shown and f': {shown}'}",
        where="feed",
        remedy="Start workers with `loader-server run` or `loader-server worker`, or look at their logs.",
    )


def _how_many(tried: int, listed: int) -> str:
    if not tried:
        return f"none of the {listed} listed has answered" if listed else "none was ever there"
    return f"tried {tried} of {listed}" if tried <= listed else f"tried {tried}, and {listed} are listed now"
