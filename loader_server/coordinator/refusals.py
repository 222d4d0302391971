"""The coordinator's refusals: what was expected, what came and what to do.

Pure: `state` and the modules below it decide what to refuse. The refusal of an attach names its request.
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
    "another_builder",
    "another_cursor",
    "another_graph",
    "another_job",
    "another_plan",
    "another_start",
    "another_world",
    "endpoint_elsewhere",
    "fixed_rank",
    "gives_way",
    "graph_of_another_job",
    "group_misfit",
    "join_misfit",
    "lanes_misfit",
    "no_endpoint",
    "no_graph_taken",
    "no_piece",
    "no_room",
    "no_such_batch",
    "no_such_leases",
    "no_such_rank",
    "no_such_run",
    "no_such_stream",
    "nobody",
    "not_a_queue",
    "not_in_lockstep",
    "not_kept",
    "objection",
    "other_limits",
    "other_parts",
    "register_misfit",
    "run_ended",
    "shards_in_use",
    "superseded",
    "superseded_attach",
    "too_large_a_graph",
    "too_large_a_world",
    "trained_on",
    "unknown_trainer",
    "unknown_worker",
    "world_changed",
    "world_misfit",
]


# --- an attach ---


def world_misfit(attach: m.Attach, cursor: Cursor, view: StreamView) -> m.NotAttached | None:
    """Return why its world does not suit the group; None if it does."""
    if attach.world > cursor.group:
        return too_large_a_world(attach, cursor)
    return lanes_misfit(attach, cursor) if view.carries and attach.world < cursor.group else None


def objection(view: StreamView, groups: set[int]) -> SettingsError | None:
    """Return why the stream cannot be read in one of these groups; None if it can."""
    return next(filter(None, map(view.objection, sorted(groups))), None)


def another_job(attach: m.Attach, job: str) -> m.NotAttached:
    """Refuse a trainer of another job."""
    remedy = "Connect to that job's coordinator, or leave job= out."
    return _not_attached(attach, "job", f"a trainer of job {job}", f"job {attach.job}", remedy)


def no_such_stream(attach: m.Attach, streams: Iterable[str]) -> m.NotAttached:
    """Refuse a stream name that the job does not have."""
    names = ", ".join(f'"{name}"' for name in streams)
    remedy = "Correct stream=, or add it to the job file."
    return _not_attached(attach, "stream", f"one of the streams {names}", f'"{attach.stream}"', remedy)


def no_such_rank(attach: m.Attach) -> m.NotAttached:
    """Refuse ranks outside the trainer's own world."""
    got = f"{attach.rank} + {attach.replicas} > {attach.world}"
    return _not_attached(attach, "rank", "rank + replicas <= world", got, "Correct rank= or world=.")


def another_plan(attach: m.Attach, cursor: Cursor, digest: str) -> m.NotAttached:
    """Refuse a cursor of a plan other than the one of this digest."""
    remedy = "Data, job file or seed changed since that checkpoint: restore them, or start without it."
    return _not_attached(attach, "plan", f"a cursor of plan {digest}", f"one of plan {cursor.plan_digest}", remedy)


def too_large_a_world(attach: m.Attach, cursor: Cursor) -> m.NotAttached:
    """Refuse a world with more ranks than a round can have batches."""
    remedy = (
        f"Write group = {attach.world} in [job] and restart the loaders: it takes effect with the next epoch. "
        "Until then use fewer ranks."
    )
    expected = f"a world of at most group = {cursor.group} ranks"
    return _not_attached(attach, "world", expected, f"a world of {attach.world}", remedy)


def lanes_misfit(attach: m.Attach, cursor: Cursor) -> m.NotAttached:
    """Refuse a world smaller than the group on a stream whose rows carry state from batch to batch."""
    expected = f"a world of group = {cursor.group} ranks, as each carries the state of its own rows (carry)"
    remedy = (
        f"Start {cursor.group} ranks; or write group = {attach.world} in [job] and restart the loaders: it takes "
        "effect with the next epoch."
    )
    return _not_attached(attach, "world", expected, f"a world of {attach.world}", remedy)


def group_misfit(attach: m.Attach, objection: SettingsError) -> m.NotAttached:
    """Refuse a world for which the data cannot be read in groups, with the stream's own reason."""
    return _not_attached(attach, "world", objection.expected, f"{objection.got} ({objection.where})", objection.remedy)


def no_such_batch(attach: m.Attach, cursor: Cursor, batches: int) -> m.NotAttached:
    """Refuse a cursor past the end of its epoch."""
    expected = f"a batch number of at most {batches} in epoch {cursor.epoch}"
    return _not_attached(attach, "cursor", expected, str(cursor.number), "Restore another checkpoint.")


def not_in_lockstep(attach: m.Attach, expected: str, got: str) -> m.NotAttached:
    """Refuse a request, on a stream in queue mode, that only lockstep can meet."""
    remedy = (
        f'Leave that out (a strategy= has several replicas), or write mode = "lockstep" in [streams.{attach.stream}].'
    )
    return _not_attached(attach, "mode", f"{expected}: {attach.stream} is in queue mode", got, remedy)


def nobody(attach: m.Attach) -> m.NotAttached:
    """Refuse incarnation 0, by which lease records mean no trainer."""
    remedy = "No trainer of ours says this: draw another incarnation."
    return _not_attached(attach, "mode", f"an incarnation above 0: {attach.stream} is in queue mode", "0", remedy)


def not_a_queue(attach: m.Attach) -> m.NotAttached:
    """Refuse a request for leases, or a checkpoint with a done-set, on a stream in lockstep."""
    got = f"work={attach.work}" if attach.work else "a checkpoint that holds which batches are done"
    others = "name one with evaluation = true" if attach.work == "evaluate" else "leave that out"
    remedy = f'Write mode = "queue" in [streams.{attach.stream}], or {others}.'
    return _not_attached(attach, "mode", f"a stream in queue mode: {attach.stream} is in lockstep", got, remedy)


def no_such_leases(attach: m.Attach, said: EpochDone | None, batches: int) -> m.NotAttached:
    """Refuse a checkpoint whose done-set does not belong to this plan.

    `said` is the epoch at fault; None if the epochs are not in order.
    """
    if said is None:
        return _not_attached(attach, "cursor", "epochs in order", "others", "Restore another checkpoint.")
    expected = f"batch numbers below {batches} in epoch {said.epoch}"
    return _not_attached(attach, "cursor", expected, f"up to {said.fresh}", "Restore another checkpoint.")


def another_world(attach: m.Attach, other: m.Attach) -> m.NotAttached:
    """Refuse a world other than that of a rank that is alive."""
    expected, got = f"a world of {other.world}, as {_who(other)} says", f"a world of {attach.world} from {_who(attach)}"
    remedy = "Give all ranks the same world=, or stop the ones of the old world."
    return _not_attached(attach, "world", expected, got, remedy)


def trained_on(attach: m.Attach, trainers: Sequence[m.Attach]) -> m.NotAttached:
    """Refuse a load test, which would take the ranks of these trainers."""
    who = ", ".join(sorted(map(_who, trainers))[:8]) + (f" and {len(trainers) - 8} more" if len(trainers) > 8 else "")
    expected = f"a stream that nobody trains on: a load test takes the ranks of {attach.stream}"
    remedy = "Wait until they are done, or test another stream, or a job of its own."
    return _not_attached(attach, "training", expected, f"one that is trained on by {who}", remedy)


def shards_in_use(attach: m.Attach) -> m.NotAttached:
    """Refuse to attach a verifier for which workers would restart shards that they build for a trainer."""
    return not_attached(attach.serial, gives_way(attach))


def gives_way(attach: m.Attach) -> m.Refused:
    """Refuse a verifier, as a trainer reads the stream and its batches are built shard by shard."""
    expected = f"a stream that nobody trains on: batches of {attach.stream} are made whole, shard by shard"
    got = "one that is trained on, whose workers would begin their shards anew for a verifier"
    return refused("training", expected, got, "Verify it when the training is over, or on a fleet of its own.")


def another_cursor(attach: m.Attach, cursor: Cursor, other: m.Attach, theirs: Cursor) -> m.NotAttached:
    """Refuse a position other than that of a rank that is alive."""
    expected = f"epoch {theirs.epoch}, batch {theirs.number}, where {_who(other)} started"
    got = f"epoch {cursor.epoch}, batch {cursor.number} from {_who(attach)}"
    remedy = "Restore the same checkpoint on all ranks, and restart them together."
    return _not_attached(attach, "cursor", expected, got, remedy)


def superseded_attach(attach: m.Attach, newer: m.Attach | None) -> m.NotAttached:
    """Refuse a trainer whose rank a newer incarnation has taken."""
    return not_attached(attach.serial, superseded(attach.rank, newer))


# --- elastic worlds ---


def join_misfit(join: m.Join, job: str, streams: Iterable[str], view: StreamView | None) -> m.NotAttached | None:
    """Return why trainers cannot join elastic worlds of this stream; None if they can."""
    if join.job not in ("", job):
        return _no_place(join, "job", f"a trainer of job {job}", f"job {join.job}", "Correct job=, or leave it out.")
    if view is None:
        names = ", ".join(f'"{name}"' for name in streams)
        remedy = "Correct stream=, or add it to the job file."
        return _no_place(join, "stream", f"one of the streams {names}", f'"{join.stream}"', remedy)
    if view.leases is None and not view.evaluation:
        return None
    is_what = "in queue mode" if view.leases is not None else "for evaluation"
    remedy = "Leave elastic out: its trainers come and go as they like."
    return _no_place(join, "elastic", "a stream that is trained on in lockstep", f"{join.stream} is {is_what}", remedy)


def no_room(join: m.Join, room: int) -> m.NotAttached:
    """Refuse a trainer whose smallest allowed world has more ranks than the group."""
    ranks = join.least * join.replicas
    remedy = f"Write group = {join.most * join.replicas} in [job] and restart the loaders, or allow fewer trainers."
    return _no_place(join, "elastic", f"at most group = {room} ranks", f"{ranks} in the least world", remedy)


def other_limits(join: m.Join, least: int, most: int) -> m.NotAttached:
    """Refuse a trainer whose limits of the world's size differ from the others'."""
    got = f"elastic=({join.least}, {join.most}) from {join.name}"
    return _no_place(join, "elastic", f"elastic=({least}, {most}), as the others say", got, "Give all the same range.")


def run_ended(join: m.Join) -> m.NotAttached:
    """Refuse a place because the run is over."""
    return _no_place(join, "ended", "a run that goes on", "one that came to its end", "Nothing is left to do.")


def world_changed(attach: m.Attach, version: int, reason: str) -> m.NotAttached:
    """Refuse a trainer whose place in an elastic world is no longer valid."""
    got = f"one of world {attach.world_version}{f': {reason}' if reason else ''}"
    return _not_attached(attach, "changed", f"a trainer of world {version}", got, "Join the next world.")


def another_start(attach: m.Attach, mine: tuple[int, int], chief: tuple[int, int]) -> m.NotAttached:
    """Refuse a trainer that restored a checkpoint other than that of its world's rank 0."""
    expected = f"epoch {chief[0]}, batch {chief[1]}, where rank 0 starts"
    got = f"epoch {mine[0]}, batch {mine[1]} from {_who(attach)}"
    remedy = "All trainers of an elastic world restore the newest checkpoint of one folder that all of them see."
    return _not_attached(attach, "cursor", expected, got, remedy)


def fixed_rank(attach: m.Attach, least: int, most: int) -> m.NotAttached:
    """Refuse a fixed rank on a stream that an elastic world trains on."""
    expected = f"a trainer that joins with elastic=({least}, {most}), as the others do"
    remedy = "Pass elastic to connect, or end the others first."
    return _not_attached(attach, "elastic", expected, f"the fixed rank {attach.rank} from {attach.name}", remedy)


def _no_place(join: m.Join, code: str, expected: str, got: str, remedy: str) -> m.NotAttached:
    return not_attached(join.serial, refused(code, expected, got, remedy))


# --- trainers and workers that are unknown, or superseded ---


def superseded(rank: int, newer: m.Attach | None) -> m.Refused:
    """Refuse a trainer whose rank another incarnation has taken: `newer`, or None if that one is not attached now."""
    got = f"a newer one, {newer.name}" if newer is not None else "a newer one"
    return refused("superseded", f"to be the only trainer of rank {rank}", got, "Stop one of them.")


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
    """Return why a worker cannot serve this job, whose builder fingerprint is `builder`; None if it can."""
    if not is_connectable(register.endpoint):
        return no_endpoint(register)
    if leads_elsewhere(register.endpoint, host):
        return endpoint_elsewhere(register, host)
    return another_builder(register) if register.builder != builder else None


def no_endpoint(register: m.Register) -> m.Refused:
    """Refuse a worker whose endpoint no trainer could connect to."""
    remedy = "Start the worker with --listen and an address of its machine that trainers can reach."
    expected = "an endpoint like tcp://10.0.0.7:7410"
    return refused("endpoint", expected, f"{register.endpoint!r} from {register.worker}", remedy)


def endpoint_elsewhere(register: m.Register, host: str) -> m.Refused:
    """Refuse a worker on another host that names a loopback endpoint: trainers would connect to their own host."""
    remedy = (
        "Start the worker with --listen tcp://0.0.0.0:PORT, or an address of its machine that trainers can reach, "
        "and leave the port open in its firewall."
    )
    expected = f"an endpoint on {host}, where the worker {register.worker} connects from"
    return refused("endpoint", expected, f"the loopback endpoint {register.endpoint}", remedy)


def another_builder(register: m.Register) -> m.Refused:
    """Refuse a worker that would build other bytes, without naming our fingerprint, which would let it in."""
    return refused("builder", _SAME_BYTES, f"another builder fingerprint from {register.worker}", _SAME_BUILDER)


def other_parts(builder: m.BuilderParts, differing: list[str]) -> m.Refused:
    """Tell a refused worker in which parts its builder fingerprint differs."""
    parts = "; ".join(differing) or "in a part that has no name"
    return refused("builder", _SAME_BYTES, clipped(f"{builder.worker}, which differs: {parts}"), _SAME_BUILDER)


def not_kept(count: int) -> m.Refused:
    """Report that convictions are forgotten only until a restart, because the journal cannot be written."""
    got = f"{count} convictions that are forgotten until the coordinator restarts: its journal cannot be written"
    return refused("journal", "to forget convictions for good", got, "Make room on the disk of the state folder.")


def _who(attach: m.Attach) -> str:
    return f"rank {attach.rank} ({attach.name})"


def _not_attached(attach: m.Attach, code: str, expected: str, got: str, remedy: str) -> m.NotAttached:
    return not_attached(attach.serial, refused(code, expected, got, remedy))


# --- a data set that a trainer sends ---


def graph_of_another_job(offer: m.GraphOffer, job: str) -> m.Refused:
    """Refuse a graph from a trainer of another job."""
    return refused("job", f"a trainer of job {job}", f"job {offer.job}", "Connect to that job's coordinator.")


def no_graph_taken(offer: m.GraphOffer, streams: Iterable[str]) -> m.Refused:
    """Refuse a graph for a stream that does not accept one."""
    names = ", ".join(f'"{name}"' for name in streams) or "none of this job's"
    remedy = 'In the job file write source = "graph" for the stream, and accept_graphs = true in [job].'
    return refused("graph", f"a stream that takes a graph: {names}", f'"{offer.stream}"', remedy)


def too_large_a_graph(offer: m.GraphOffer, most: int) -> m.Refused:
    """Refuse a graph of more than `most` bytes."""
    remedy = "Read the data from files instead of from arrays that are part of the graph."
    return refused("graph", f"at most {most} bytes", str(offer.nbytes), remedy)


def another_graph(offer: m.GraphOffer, kept: str) -> m.Refused:
    """Refuse a graph because the stream has another one, or another one is arriving."""
    remedy = (
        "All ranks and restarts of a job send the same data set: the same code, files and version of TensorFlow. For "
        f"another one make another job, or end the loaders and remove graphs/{offer.stream}.graph in its state folder."
    )
    return refused("graph", f"the data set of this stream, {kept[:16]}", offer.digest[:16], remedy)


def no_such_run(stream: str, reason: str) -> m.Refused:
    """Report that a graph's first epoch failed."""
    remedy = "Mend the data set, or what it reads, and start again: it was not kept."
    return refused("graph", f'the first epoch of "{stream}" to be run, so that its batches are counted', reason, remedy)


# --- what joining hosts fetch ---


def no_piece(offset: int) -> m.Refused:
    """Refuse a piece of the bundle: past its size limit or its end, or of a file that became shorter."""
    remedy = "Raise bundle_bytes in [job], or start the coordinator again if a file that the job names was changed."
    return refused("bundle", "a piece of the bundle that is given", f"offset {offset}", remedy)
