"""The coordinator's refusals: what was expected, what came and what to do.

Pure: `state` and the modules below it decide what to refuse. The refusal of a request to attach or join names it by its
serial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.endpoints import is_connectable, leads_elsewhere
from shared.wire.message_parts import clipped
from shared.wire.refusing import not_attached, refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loader_server.coordinator.events import StreamView
    from shared.errors import SettingsError
    from shared.wire import messages as m
    from shared.wire.message_parts import Cursor, EpochDone

__all__ = [
    "another_cursor",
    "another_job",
    "another_plan",
    "another_start",
    "another_world",
    "epochs_out_of_order",
    "fixed_rank",
    "gives_way",
    "group_misfit",
    "join_misfit",
    "no_piece",
    "no_room",
    "no_such_batch",
    "no_such_leases",
    "no_such_rank",
    "no_such_stream",
    "nobody",
    "not_a_queue",
    "not_in_lockstep",
    "not_kept",
    "other_limits",
    "other_parts",
    "register_misfit",
    "run_ended",
    "superseded",
    "trained_on",
    "unknown_trainer",
    "unknown_worker",
    "world_changed",
    "world_misfit",
]

#: Trainers that a refusal names; the others are counted.
_MOST_NAMED = 8


# --- requests to attach or to join ---


def another_job(request: m.Attach | m.Join, job: str) -> m.NotAttached:
    """Return the refusal of a trainer that named another job than this one."""
    return _not_attached(
        request,
        "job",
        expected=f"a trainer of job {job}",
        got=f"job {request.job}",
        remedy="Connect to that job's coordinator, or leave job= out.",
    )


def no_such_stream(request: m.Attach | m.Join, streams: Iterable[str]) -> m.NotAttached:
    """Return the refusal of a stream name that the job does not have, with the names that it has."""
    names = ", ".join(f'"{name}"' for name in streams)
    return _not_attached(
        request,
        "stream",
        expected=f"one of the streams {names}",
        got=f'"{request.stream}"',
        remedy="Correct stream=, or add it to the job file.",
    )


def _not_attached(request: m.Attach | m.Join, code: str, expected: str, got: str, remedy: str) -> m.NotAttached:
    return not_attached(request.serial, refused(code, expected, got, remedy))


def _named(attach: m.Attach) -> str:
    return f"rank {attach.rank} ({attach.name})"


# --- an attach ---


def world_misfit(attach: m.Attach, cursor: Cursor, *, carries: bool) -> m.NotAttached | None:
    """Return why its world does not suit the group; None if it does.

    A round has a batch for each rank of the group at most. If rows carry state, no rank of the group may be missing.
    """
    if attach.world > cursor.group:
        return _not_attached(
            attach,
            "world",
            expected=f"a world of at most group = {cursor.group} ranks",
            got=f"a world of {attach.world}",
            remedy=f"Write group = {attach.world} in [job] and restart the loaders: it takes effect with the next "
            "epoch. Until then use fewer ranks.",
        )
    if not carries or attach.world == cursor.group:
        return None
    return _not_attached(
        attach,
        "world",
        expected=f"a world of group = {cursor.group} ranks, as each carries the state of its own rows (carry)",
        got=f"a world of {attach.world}",
        remedy=f"Start {cursor.group} ranks; or write group = {attach.world} in [job] and restart the loaders: it "
        "takes effect with the next epoch.",
    )


def no_such_rank(attach: m.Attach) -> m.NotAttached:
    """Return the refusal of a trainer whose ranks reach beyond its own world."""
    return _not_attached(
        attach,
        "rank",
        expected="rank + replicas <= world",
        got=f"{attach.rank} + {attach.replicas} > {attach.world}",
        remedy="Correct rank= or world=.",
    )


def another_plan(attach: m.Attach, cursor: Cursor, digest: str) -> m.NotAttached:
    """Refuse a cursor of a plan other than the one of this digest."""
    return _not_attached(
        attach,
        "plan",
        expected=f"a cursor of plan {digest}",
        got=f"one of plan {cursor.plan_digest}",
        remedy="Data, job file or seed changed since that checkpoint: restore them, or start without it.",
    )


def group_misfit(attach: m.Attach, objection: SettingsError) -> m.NotAttached:
    """Refuse a world for which the data cannot be read in groups, with the stream's own reason."""
    return _not_attached(attach, "world", objection.expected, f"{objection.got} ({objection.where})", objection.remedy)


def no_such_batch(attach: m.Attach, cursor: Cursor, batches: int) -> m.NotAttached:
    """Return the refusal of a cursor past the end of its epoch, which has `batches` batches."""
    return _not_attached(
        attach,
        "cursor",
        expected=f"a batch number of at most {batches} in epoch {cursor.epoch}",
        got=str(cursor.number),
        remedy="Restore another checkpoint.",
    )


def not_in_lockstep(attach: m.Attach, expected: str, got: str) -> m.NotAttached:
    """Refuse a request, on a stream in queue mode, that only lockstep can meet."""
    return _not_attached(
        attach,
        "mode",
        expected=f"{expected}: {attach.stream} is in queue mode",
        got=got,
        remedy="Leave that out (a strategy= has several replicas), or write mode = "
        f'"lockstep" in [streams.{attach.stream}].',
    )


def nobody(attach: m.Attach) -> m.NotAttached:
    """Refuse incarnation 0, by which lease records mean no trainer."""
    return _not_attached(
        attach,
        "mode",
        expected=f"an incarnation above 0: {attach.stream} is in queue mode",
        got="0",
        remedy="Stoker's own trainers never send 0: draw another incarnation.",
    )


def not_a_queue(attach: m.Attach) -> m.NotAttached:
    """Refuse a request for leases, or a checkpoint with a done-set, on a stream in lockstep."""
    others = "name one with evaluation = true" if attach.work == "evaluate" else "leave that out"
    return _not_attached(
        attach,
        "mode",
        expected=f"a stream in queue mode: {attach.stream} is in lockstep",
        got=f"work={attach.work}" if attach.work else "a checkpoint that holds which batches are done",
        remedy=f'Write mode = "queue" in [streams.{attach.stream}], or {others}.',
    )


def no_such_leases(attach: m.Attach, epoch: EpochDone, batches: int) -> m.NotAttached:
    """Refuse a checkpoint whose done-set has numbers that are not in this plan."""
    return _not_attached(
        attach,
        "cursor",
        expected=f"batch numbers below {batches} in epoch {epoch.epoch}",
        got=f"up to {epoch.fresh}",
        remedy="Restore another checkpoint.",
    )


def epochs_out_of_order(attach: m.Attach) -> m.NotAttached:
    """Refuse a checkpoint whose done-set has no epochs, or not in order."""
    return _not_attached(
        attach,
        "cursor",
        expected="the epochs of the checkpoint's done-set in order",
        got="none, or others",
        remedy="Restore another checkpoint.",
    )


def another_world(attach: m.Attach, other: m.Attach) -> m.NotAttached:
    """Return the refusal of a world of another size than that of `other`, a rank that is alive."""
    return _not_attached(
        attach,
        "world",
        expected=f"a world of {other.world}, as {_named(other)} says",
        got=f"a world of {attach.world} from {_named(attach)}",
        remedy="Give all ranks the same world=, or stop the ones of the old world.",
    )


def trained_on(attach: m.Attach, trainers: Sequence[m.Attach]) -> m.NotAttached:
    """Return the refusal of a load test, which would take the ranks of these trainers; the first 8 are named."""
    names = ", ".join(sorted(map(_named, trainers))[:_MOST_NAMED])
    more = f" and {len(trainers) - _MOST_NAMED} more" if len(trainers) > _MOST_NAMED else ""
    return _not_attached(
        attach,
        "training",
        expected=f"a stream that nobody trains on: a load test takes the ranks of {attach.stream}",
        got=f"one that is trained on by {names}{more}",
        remedy="Wait until they are done, or test another stream, or a job of its own.",
    )


def gives_way(attach: m.Attach) -> m.Refused:
    """Refuse a verifier, as a trainer reads the stream and its batches are built shard by shard."""
    return refused(
        "training",
        expected=f"a stream that nobody trains on: batches of {attach.stream} are made whole, shard by shard",
        got="one that is trained on, whose workers would begin their shards anew for a verifier",
        remedy="Verify it when the training is over, or on a fleet of its own.",
    )


def another_cursor(attach: m.Attach, cursor: Cursor, other: m.Attach, theirs: Cursor) -> m.NotAttached:
    """Return the refusal of a position other than `theirs`, where `other`, a rank that is alive, started."""
    return _not_attached(
        attach,
        "cursor",
        expected=f"epoch {theirs.epoch}, batch {theirs.number}, where {_named(other)} started",
        got=f"epoch {cursor.epoch}, batch {cursor.number} from {_named(attach)}",
        remedy="Restore the same checkpoint on all ranks, and restart them together.",
    )


# --- elastic worlds ---


def join_misfit(join: m.Join, job: str, streams: Iterable[str], view: StreamView | None) -> m.NotAttached | None:
    """Return why trainers cannot join elastic worlds of this stream; None if they can.

    Refused are requests of another job, a stream that the job lacks (`view` is None), and streams that are in queue
    mode or for evaluation.
    """
    if join.job not in ("", job):
        return another_job(join, job)
    if view is None:
        return no_such_stream(join, streams)
    if view.leases is None and not view.evaluation:
        return None
    return _not_attached(
        join,
        "elastic",
        expected="a stream that is trained on in lockstep",
        got=f"{join.stream} is {'in queue mode' if view.leases is not None else 'for evaluation'}",
        remedy="Leave elastic out: its trainers come and go as they like.",
    )


def no_room(join: m.Join, room: int) -> m.NotAttached:
    """Refuse a trainer whose smallest allowed world has more ranks than the group."""
    return _not_attached(
        join,
        "elastic",
        expected=f"at most group = {room} ranks",
        got=f"{join.least * join.replicas} in the least world",
        remedy=f"Write group = {join.most * join.replicas} in [job] and restart the loaders, or allow fewer trainers.",
    )


def other_limits(join: m.Join, least: int, most: int) -> m.NotAttached:
    """Refuse a trainer whose limits of the world's size differ from the others'."""
    return _not_attached(
        join,
        "elastic",
        expected=f"elastic=({least}, {most}), as the others say",
        got=f"elastic=({join.least}, {join.most}) from {join.name}",
        remedy="Give all the same range.",
    )


def run_ended(join: m.Join) -> m.NotAttached:
    """Return the refusal, of code "ended", of a trainer that asks for a place in a run that is over."""
    return _not_attached(join, "ended", "a run that goes on", "one that came to its end", "Nothing is left to do.")


def world_changed(attach: m.Attach, version: int, reason: str) -> m.NotAttached:
    """Refuse a trainer whose place in an elastic world is no longer valid."""
    return _not_attached(
        attach,
        "changed",
        expected=f"a trainer of world {version}",
        got=f"one of world {attach.world_version}{f': {reason}' if reason else ''}",
        remedy="Join the next world.",
    )


def another_start(attach: m.Attach, start: tuple[int, int], chief: tuple[int, int]) -> m.NotAttached:
    """Refuse a trainer that restored a checkpoint other than that of its world's rank 0."""
    return _not_attached(
        attach,
        "cursor",
        expected=f"epoch {chief[0]}, batch {chief[1]}, where rank 0 starts",
        got=f"epoch {start[0]}, batch {start[1]} from {_named(attach)}",
        remedy="All trainers of an elastic world restore the newest checkpoint of one folder that all of them see.",
    )


def fixed_rank(attach: m.Attach, least: int, most: int) -> m.NotAttached:
    """Refuse a fixed rank on a stream that an elastic world trains on."""
    return _not_attached(
        attach,
        "elastic",
        expected=f"a trainer that joins with elastic=({least}, {most}), as the others do",
        got=f"the fixed rank {attach.rank} from {attach.name}",
        remedy="Pass elastic to connect, or end the others first.",
    )


# --- trainers and workers that are unknown, or superseded ---


def superseded(rank: int, newer: m.Attach | None) -> m.Refused:
    """Refuse a trainer whose rank another incarnation has taken: `newer`, or None if the newer is not attached now."""
    return refused(
        "superseded",
        expected=f"to be the only trainer of rank {rank}",
        got=f"a newer one, {newer.name}" if newer is not None else "a newer one",
        remedy="Stop one of them.",
    )


def unknown_trainer() -> m.Refused:
    """Refuse a trainer that is not attached, after a restart of the coordinator or a long silence."""
    return refused("unknown", "a trainer that is attached", "one that this coordinator has not seen", "Attach again.")


def unknown_worker() -> m.Refused:
    """Refuse a worker that is not registered, after a restart of the coordinator or a long silence."""
    return refused("unknown", "a registered worker", "one that this coordinator has not seen", "Register again.")


# --- workers, and people ---

_SAME_BYTES = "a worker that builds the same bytes as the coordinator's machine would"
_SAME_BUILDER = (
    "Give every loader machine the same job file, index and own transforms, and the same releases of stoker, "
    "numpy, soundfile, soxr and what own transforms import or declare."
)


def register_misfit(register: m.Register, host: str, builder: str) -> m.Refused | None:
    """Return why a worker cannot serve this job, whose builder fingerprint is `builder`; None if it can.

    Refused are an endpoint that nobody can connect to, a loopback endpoint if the worker's connection comes from
    another machine (`host`; not if it is empty, because unknown), and another builder fingerprint.
    """
    if not is_connectable(register.endpoint):
        return refused(
            "endpoint",
            expected="an endpoint like tcp://10.0.0.7:7410",
            got=f"{register.endpoint!r} from {register.worker}",
            remedy="Start the worker with --listen and an address of its machine that trainers can reach.",
        )
    # A loopback endpoint of another host would have each trainer connect to its own host.
    if leads_elsewhere(register.endpoint, host):
        return refused(
            "endpoint",
            expected=f"an endpoint on {host}, where the worker {register.worker} connects from",
            got=f"the loopback endpoint {register.endpoint}",
            remedy="Start the worker with --listen tcp://0.0.0.0:PORT, or an address of its machine that trainers can "
            "reach, and leave the port open in its firewall.",
        )
    # The refusal does not name our fingerprint, because naming it would let the worker in.
    if register.builder != builder:
        return refused("builder", _SAME_BYTES, f"another builder fingerprint from {register.worker}", _SAME_BUILDER)
    return None


def other_parts(builder: m.BuilderParts, differing: list[str]) -> m.Refused:
    """Tell a refused worker in which parts its builder fingerprint differs; without any, in one that has no name."""
    parts = "; ".join(differing) or "in a part that has no name"
    return refused("builder", _SAME_BYTES, clipped(f"{builder.worker}, which differs: {parts}"), _SAME_BUILDER)


def not_kept(count: int) -> m.Refused:
    """Report that convictions are forgotten only until a restart, because the journal cannot be written."""
    return refused(
        "journal",
        expected="to forget convictions for good",
        got=f"{count} convictions that are forgotten until the coordinator restarts: its journal cannot be written",
        remedy="Make room on the disk of the state folder.",
    )


# --- what joining hosts fetch ---


def no_piece(offset: int) -> m.Refused:
    """Refuse a piece of the bundle: past its size limit or its end, or of a file that became shorter."""
    return refused(
        "bundle",
        expected="a piece of the bundle that is given",
        got=f"offset {offset}",
        remedy="Raise bundle_bytes in [job], or start the coordinator again if a file that the job names was changed.",
    )
