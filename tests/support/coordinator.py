"""A coordinator's state over made-up streams, and the messages that trainers and workers send it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loader_server.coordinator.events import CoordinatorSettings, Keep, Received, Send
from loader_server.coordinator.state import CoordinatorState
from shared.bad_limit import BadLimit
from shared.errors import SettingsError
from shared.hashing import digest64
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import Cursor, WireField, WireShape, WorkerAddress

if TYPE_CHECKING:
    from loader_server.leases.lease_table import LeaseRules

__all__ = [
    "SETTINGS",
    "TIMEOUT_S",
    "View",
    "address",
    "attach",
    "beat",
    "coordinator",
    "culprit",
    "failing",
    "forgive",
    "kept",
    "keys",
    "progress",
    "refused",
    "register",
    "replies",
]

TIMEOUT_S = 2.0

SETTINGS = CoordinatorSettings(
    job="digits", builder="builder-1", group=0, heartbeat_timeout_s=TIMEOUT_S, max_bad=BadLimit(0.25)
)


@dataclass
class View:
    digest: str = "plan-1"
    evaluation: bool = False
    carries: bool = False
    fields: tuple[WireField, ...] = (WireField("audio", "float32", (None, 80), 100.0),)
    shapes: tuple[WireShape, ...] = (WireShape(4, (("audio", 100),)),)
    producers: int = 0
    base_fields: tuple[WireField, ...] = ()
    native_code: dict[str, list[str]] = field(default_factory=dict)
    leases: LeaseRules | None = None

    samples: int = 1000
    left_out: tuple[()] = ()
    #: Still being counted.
    counting: bool = False

    def batches(self, epoch: int, group: int) -> int | None:
        return None if self.counting else 100 + epoch % 3

    def most_batches(self, group: int) -> int:
        return 100 * group + 2

    def objection(self, group: int) -> SettingsError | None:
        if group <= 64:
            return None
        return SettingsError(expected="smaller groups", got=f"{group}", where="epoch_parts", remedy="Write 64.")


def coordinator(view: View | None = None, *, group: int = 0, first_version: int = 1) -> CoordinatorState:
    streams = {"train": view or View(), "dev": View(evaluation=True)}
    return CoordinatorState(replace(SETTINGS, group=group), streams, first_version=first_version)


def attach(rank: int = 0, world: int = 1, *, at: tuple[int, int] | None = None, **other) -> m.Attach:
    cursor = None if at is None else Cursor(at[0], at[1], other.pop("group", world), other.pop("digest", "plan-1"))
    fields = {
        "serial": 1, "job": "digits", "stream": "train", "replicas": 1, "incarnation": 1000 + rank,
        "name": f"host:{rank}", "work": None, "done": None, "world_version": None,
        "tenure": None,
    }  # fmt: skip
    return m.Attach(rank=rank, world=world, cursor=cursor, **{**fields, **other})


def progress(rank: int, epoch: int, number: int, **other) -> m.Progress:
    fields = {
        "stream": "train", "rank": rank, "incarnation": 1000 + rank, "epoch": epoch, "number": number,
        "read_epoch": epoch, "read_number": number, "waited_permille": 0, "batches_read": number, "members": 0,
        "prefetch": 8, "wire_us": 0, "computed_us": 0, "metrics": "",
    }  # fmt: skip
    return m.Progress(**{**fields, **other})


def register(name: str = "w0", incarnation: int = 1, builder: str = "builder-1", endpoint: str = "") -> m.Register:
    return m.Register(
        worker=name, incarnation=incarnation, endpoint=endpoint or f"tcp://127.0.0.1:1{incarnation}", boot_id="boot-1",
        uid=1000, builder=builder, metrics="",
    )  # fmt: skip


def address(name: str = "w0", incarnation: int = 1, endpoint: str = "") -> WorkerAddress:
    return WorkerAddress(name, incarnation, endpoint or f"tcp://127.0.0.1:1{incarnation}", "boot-1", 1000)


def culprit(identity: str = "a.flac 7 1", stream: str = "train", worker: str = "w0") -> m.Culprit:
    return m.Culprit(worker=worker, stream=stream, identity=identity, ends="SIGSEGV, SIGSEGV")


def failing(name: str = "w0", got: str = "another one (8 bytes)") -> m.Failing:
    return m.Failing(
        worker=name,
        expected="the file that the index was made from (9 bytes)",
        got=got,
        where="/data/a.npz",
        remedy="Put it back.",
    )


def forgive(identity: str = "", stream: str = "") -> m.Forgive:
    return m.Forgive(stream=stream, identity=identity)


def keys(*identities: str, stream: str = "train") -> tuple[int, ...]:
    return tuple(sorted(digest64(f"{stream}\0{identity}".encode()) for identity in identities))


def beat(name: str = "w0", incarnation: int = 1, culprits: int = 1, busy_us: int = 10) -> m.Beat:
    return m.Beat(
        worker=name,
        incarnation=incarnation,
        waiting=1,
        building=2,
        built=3,
        masked=4,
        kept=5,
        decoded=6,
        taken=2,
        remote_bytes=7 * 2**20,
        remote_found=8,
        remote_waited=9,
        busy_us=busy_us,
        awaited_us=4,
        read_us=20,
        held_up_us=1,
        throttled_us=1,
        queued_us=1,
        culprits=culprits,
    )


def replies(state: CoordinatorState, message: m.Message, now_s: float = 0.0, peer: bytes = b"") -> list[m.Message]:
    """What the peer is answered; every message can cross the wire."""
    peer = peer or b"%d" % getattr(message, "incarnation", 0)
    orders = [order for order in state.handle(Received(peer, message), now_s) if isinstance(order, Send)]
    for order in orders:
        assert decode(encode(order.message)) == order.message
    return [order.message for order in orders if order.peer == peer]


def kept(state: CoordinatorState, message: m.Message, now_s: float = 0.0) -> list[object]:
    """The facts that are kept for it."""
    return [order.fact for order in state.handle(Received(b"me", message), now_s) if isinstance(order, Keep)]


def refused(state: CoordinatorState, message: m.Message, now_s: float = 0.0, peer: bytes = b"") -> tuple[str, ...]:
    """What a refusal says."""
    (answer,) = replies(state, message, now_s, peer)
    assert isinstance(answer, m.NotAttached if isinstance(message, m.Attach) else m.Refused), answer
    return answer.code, answer.expected, answer.got, answer.remedy
