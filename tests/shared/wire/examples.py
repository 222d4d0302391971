"""One hand-written instance of every message, and any instance, drawn by the fields' checks."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from shared.wire import bounds
from shared.wire import messages as m
from shared.wire.message_parts import (
    BookMark,
    Cursor,
    DoneSet,
    EpochDone,
    Failure,
    Lease,
    MetricStates,
    MetricSums,
    Part,
    PartGradient,
    RoundPlace,
    Seal,
    SharedSlots,
    TableForm,
    TableGradient,
    Ticket,
    TraceProcess,
    VariablePart,
    WireField,
    WireShape,
    WorkerAddress,
)
from shared.wire.topics import server_messages as servers
from tests.support import draws

if TYPE_CHECKING:
    from random import Random

#: Not by `__subclasses__`: a slotted dataclass leaves its unslotted twin there until it is collected.
PARTS = {
    name: kind
    for name, kind in vars(m).items()
    if isinstance(kind, type) and issubclass(kind, Part) and kind is not Part
}

TICKET = Ticket(3, 17)
CURSOR = Cursor(2, 1234, 8, "0123456789abcdef")
WORKER = WorkerAddress("loader-1", 2**63 - 1, "tcp://10.0.0.7:40123", "6f3c-boot", 1000)

PART = VariablePart(0, 100, (200, 4), "float32")
TABLE = TableForm("words", 4, None, 7, "uniform", -0.05, 0.05)
DONE = DoneSet((EpochDone(2, 1240, (1200, 7, 1)), EpochDone(3, 0, ())))

EXAMPLES: tuple[m.Message, ...] = (
    m.Attach(
        serial=3,
        job="digits",
        stream="train",
        rank=2,
        replicas=2,
        world=8,
        incarnation=2**64 - 1,
        name="gpu7:4242",
        cursor=CURSOR,
        work="predict",
        done=DONE,
        world_version=12,
        tenure=4711,
    ),
    m.Attached(
        serial=3,
        job="digits",
        stream="train",
        evaluation=False,
        work="train",
        book=BookMark(2**63 + 5, 1240),
        cursor=CURSOR,
        next_group=16,
        tenure=4711,
        batches=5000,
        most_batches=5100,
        fields=(
            WireField("audio", "float32", (None, 80), 100.0),
            WireField("text", "int32", (None,), None),
            WireField("weight", "float32", (), None),
        ),
        shapes=(WireShape(32, (("audio", 400), ("text", 25))), WireShape(8, (("audio", 1600), ("text", 90)))),
        producers=3,
        base_fields=(WireField("audio", "float32", (None,), None),),
        heartbeat_timeout_ms=2000,
        max_bad=0.5,
        max_bad_samples=20,
        members=5,
        workers=(WORKER,),
    ),
    m.Wait(serial=3, reason="rank 1 stands elsewhere", retry_ms=500),
    m.NotAttached(serial=3, code="plan", expected="plan a", got="plan b", remedy="Restore the job file."),
    m.Refused(code="version", expected="protocol version 12", got="version 11", remedy="Install the same release."),
    m.Progress(
        stream="train",
        rank=0,
        incarnation=7,
        epoch=2,
        number=1240,
        read_epoch=2,
        read_number=1248,
        waited_permille=15,
        batches_read=77,
        prefetch=8,
        wire_us=123,
        computed_us=456,
        metrics="0.0.0.0:9300",
        members=5,
    ),
    m.Noted(),
    m.Limited(limit="worker", who="vm-3", loaders_gain=1300, worker_gain=None, window_gain=57),
    m.Members(version=6, workers=(WORKER, WorkerAddress("loader-2", 1, "tcp://[::1]:1", "", 0))),
    m.Detach(stream="train", rank=0, incarnation=7),
    m.Outcomes(
        stream="train",
        work="evaluate",
        incarnation=7,
        serial=4,
        book=BookMark(2**63 + 5, 1240),
        generation=2,
        done=(Lease(2, 1230, 1),),
        failed=(Failure(Lease(2, 1231, 3), "loss is not finite"),),
        returned=(Lease(2, 1232, 1),),
        in_hand=Lease(2, 1232, 1),
        wanted=16,
        before=4,
        snapshot=True,
        states=MetricStates("levels:model 9f", 24, 0, bytes(range(24)), None),
    ),
    m.Leases(
        serial=4,
        book=BookMark(2**63 + 5, 1241),
        generation=2,
        leases=(Lease(2, 1232, 1), Lease(3, 0, 2)),
        unsettled=2,
        done=DONE,
        sums=MetricSums(lost=False, settled=True, batches=1231, given_up=1, content=bytes(range(24))),
    ),
    m.Recalled(),
    m.JobEnds(drains=True, last=RoundPlace(2, 1241)),
    m.StandsStill(stream="train", incarnation=7, epoch=2, number=1233),
    m.Results(
        stream="train",
        incarnation=7,
        serial=5,
        epoch=3,
        step=3750,
        rows=64_000,
        values=(("loss", 0.75), ("accuracy", None)),
        ended="75 epochs are reached",
        aside=False,
        evaluation="levels:model 9f",
        part=1,
        states=bytes(range(16)),
    ),
    m.Aggregate(
        serial=5,
        whole=True,
        rows=512_000,
        values=(("loss", 0.625), ("accuracy", None)),
        parts=7,
        trainers=8,
        states=bytes(8),
    ),
    m.Join(
        serial=2,
        job="digits",
        stream="train",
        member=2**64 - 1,
        incarnation=7,
        name="gpu7:4242",
        replicas=2,
        least=2,
        most=4,
        behind=11,
    ),
    m.Gathering(serial=2, reason="1 of at least 2 trainers is there", behind=12, retry_ms=500),
    m.Placed(serial=2, version=12, rank=2, world=8),
    m.WorldOver(version=12, reason="gpu3:99 is gone"),
    m.StatusQuery(),
    m.Status(report='{"job": "digits"}'),
    m.GraphOffer(job="digits", stream="train", digest="0123456789abcdef", nbytes=81_234),
    m.GraphWanted(stream="train", digest="0123456789abcdef", offset=32_768),
    m.GraphPiece(stream="train", digest="0123456789abcdef", nbytes=81_234, offset=32_768, content=bytes(range(16))),
    m.GraphKept(stream="train", digest="0123456789abcdef", runs=False),
    m.BundleWanted(digest="", offset=0),
    m.BundlePiece(digest="0123456789abcdef", manifest_nbytes=300, offset=524_588, content=bytes(range(16))),
    m.Register(
        worker="loader-1",
        incarnation=2**63 - 1,
        endpoint="tcp://10.0.0.7:40123",
        boot_id="6f3c-boot",
        uid=1000,
        builder="fedcba9876543210",
        metrics="0.0.0.0:9101",
    ),
    m.BuilderParts(worker="loader-2", parts=(("package numpy", "2.2.0"), ("plan of stream train", "fedcba98"))),
    m.Registered(heartbeat_timeout_ms=2000),
    m.Beat(
        worker="loader-1",
        incarnation=9,
        waiting=4,
        building=2,
        built=100,
        masked=1,
        kept=7,
        decoded=9,
        taken=10,
        remote_bytes=2**48,
        remote_found=11,
        remote_waited=12,
        busy_us=13,
        awaited_us=14,
        read_us=15,
        held_up_us=16,
        throttled_us=17,
        queued_us=18,
        culprits=2**64 - 1,
    ),
    m.Culprit(worker="loader-1", stream="train", identity="a/b.flac 81234 17", ends="SIGSEGV, SIGSEGV"),
    m.Culprits(version=7, keys=(0, 2**64 - 1)),
    m.Forgive(stream="train", identity=""),
    m.Forgiven(count=2),
    m.Leave(worker="loader-1", incarnation=9),
    m.Failing(
        worker="loader-1-w3",
        expected="the file that the index was made from (90 bytes)",
        got="another one (80 bytes)",
        where="/data/a.tfrecord",
        remedy="Put the file back.",
    ),
    m.Hello(
        job="digits",
        stream="train",
        incarnation=7,
        name="gpu17:4242",
        rank=2,
        shared=SharedSlots("6f3c-boot", 1000, 4242, 12, bytes(range(16)), 23, 10_485_760, 16),
        verify=True,
        yields=True,
        seal=Seal(bytes(range(32)), bytes(range(16))),
    ),
    m.Welcome(
        worker="loader-1",
        incarnation=9,
        shared=False,
        reason="the trainer runs on another host",
        float32="bfloat16",
        compression="zstd",
        sealed_port=40124,
    ),
    m.Want(
        job="digits",
        stream="train",
        epoch=2,
        number=1240,
        empty=False,
        group=8,
        plan_digest="0123456789abcdef",
        attempt=1,
        trainer=7,
        worker=9,
        ticket=TICKET,
        in_slot=True,
        urgent=False,
    ),
    m.Cancel(ticket=TICKET),
    m.Ping(number=3),
    m.Pong(number=3, tickets=(TICKET, Ticket(0, 1)), sealed=12, waiting=9),
    m.EpochQuery(stream="train", plan_digest="0123456789abcdef", epoch=3, group=8),
    m.EpochAnswer(stream="train", epoch=3, group=8, batches=5001),
    m.NameQuery(stream="train", plan_digest="0123456789abcdef", sample=41),
    m.NameAnswer(stream="train", sample=41, name="clips/00041.wav"),
    m.Pushed(
        ticket=TICKET,
        epoch=2,
        number=1240,
        empty=False,
        in_slot=True,
        shape=WireShape(32, (("audio", 400), ("text", 25))),
        nbytes=4_100_096,
        digest=2**64 - 1,
        rows=31,
        masked=1,
        reason="clips/00041.wav: undecodable: no audio",
        reasons=(("undecodable", 1),),
        build_us=45_000,
        read_us=12_000,
        held_us=60_000,
        waiting=9,
    ),
    m.Unbuilt(
        ticket=TICKET, code="failed", expected="a readable file", got="EIO", where="a/é.wav", remedy="Look at the disk."
    ),
    m.Cancelled(ticket=TICKET),
    servers.Look(serial=1, trainer=2**63 + 1),
    servers.Shown(
        serial=1,
        generation=2**62,
        version=17,
        over="",
        parts=(PART, VariablePart(1, 0, (), "float32")),
        tables=(TABLE,),
    ),
    servers.Withdraw(serial=2),
    servers.ServeShare(
        serial=2,
        generation=2**62,
        version=17,
        staleness=8,
        most=0,
        parts=(PART,),
        tables=(TABLE,),
        given=(3,),
        done=DONE,
        nbytes=9600,
    ),
    servers.GiveRows(serial=2, generation=2**62, table=0, form=TABLE, rows=3, nbytes=120),
    servers.PullRows(
        serial=3, trainer=2**63 + 1, generation=2**62, at_least=17, table=0, cut=0, ids=b"\x07" + bytes(7)
    ),
    servers.Pull(serial=3, trainer=2**63 + 1, generation=2**62, at_least=17),
    servers.Push(
        serial=4,
        trainer=2**63 + 1,
        generation=2**62,
        lease=Lease(2, 1230, 2),
        based_on=17,
        refused=Lease(2, 1229, 1),
        is_step=True,
        parts=(PartGradient(0, 3), PartGradient(1, None)),
        tables=(TableGradient(0, 2),),
        nbytes=124,
    ),
    servers.Taken(serial=4, code="over", version=18, why="75 epochs are reached"),
    servers.SetRate(serial=5, trainer=2**63 + 1, generation=2**62, rate=0.001),
    servers.Save(serial=5, generation=2**62, cut=2**61, settled=2),
    servers.SaveRows(serial=6, generation=2**62, cut=2**61, table=0, array=1, start=4096),
    servers.TableRows(serial=6, rows=5000, arrays=2, nbytes=14464),
    servers.Values(serial=5, version=18, done=DONE, nbytes=9600),
    servers.OfferEvaluation(
        serial=6,
        trainer=2**63 + 1,
        generation=2**62,
        cut=2**61,
        epoch=3,
        step=18,
        label="words",
        streams=("dev", "test"),
        nbytes=64,
    ),
    servers.AskEvaluation(serial=7, trainer=2**63 + 2, generation=2**62, known=2**60),
    servers.OfferedEvaluation(
        serial=7, cut=2**61, epoch=3, step=18, label="words", streams=("dev", "test"), over="", nbytes=64
    ),
    servers.PullCut(serial=8, trainer=2**63 + 2, generation=2**62, cut=2**61),
    servers.Finish(serial=6, generation=2**62, why="75 epochs are reached"),
    servers.Quit(trainer=2**63 + 1),
    servers.Order(
        generation=2**62, what="apply", version=18, trainer=2**63 + 1, lease=Lease(2, 1230, 2), cut=0, rate=0.001
    ),
    m.TraceQuery(serial=9, processes=(2**63 - 1, 5), first_row=0, last_ms=30000, stream="train", epoch=2, number=4217),
    m.TraceProcesses(serial=9, processes=(TraceProcess("gpu-1:77", 2**62, "train", 2, 1, 8),), left_out=3),
    m.TraceWanted(serial=10, first_row=40, last_ms=0, stream="", epoch=None, number=None),
    m.TracePage(
        serial=10,
        process=2**62,
        gone=False,
        boot_id="6f3c-boot",
        now_ns=123456789012,
        oldest_ns=120000000000,
        streams=("train",),
        stamps=bytes(range(48)),
        next_row=940,
        overwritten=7,
    ),
)


def value(check: bounds.Check, random: Random) -> object:  # noqa: C901, PLR0911, PLR0912 - one case a kind
    """Whatever a field with this check may hold."""
    match check:
        case bounds.Integer(low, high):
            return draws.integer(random, low, high)
        case bounds.Text(longest):
            return draws.text(random, min(longest, 12))
        case bounds.Blob(longest):
            return draws.blob(random, longest)
        case bounds.Boolean():
            return random.random() < 0.5
        case bounds.Rate():
            return draws.number(random, math.ulp(0.0), math.nextafter(1e9, 0))
        case bounds.Number():
            return draws.finite(random)
        case bounds.Share():
            return draws.number(random, 0.0, 1.0)
        case bounds.Choice(names):
            return random.choice(names)
        case bounds.Dtype():
            return random.choice(sorted(bounds.DTYPES))
        case bounds.Maybe(inner):
            return None if random.random() < 0.5 else value(inner, random)
        case bounds.Many(inner, most):
            return tuple(value(inner, random) for _ in range(random.randint(0, min(most, 3))))
        case bounds.FixedList(checks):
            return tuple(value(check, random) for check in checks)
        case bounds.Record(kind, fields):
            return kind(*value(fields, random))
    raise AssertionError(f"nothing to draw for {check!r}")


def instance(kind: type[m.Message], random: Random) -> m.Message:
    """Any message of this class."""
    return kind(**{name: value(check, random) for name, check in kind.checks.items()})


def plain(message: m.Message) -> dict[str, object]:
    """The fields of a message as they lie in a frame."""
    return {field.name: _plain(getattr(message, field.name)) for field in dataclasses.fields(message)}


def _plain(value: object) -> object:
    if isinstance(value, Part):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
