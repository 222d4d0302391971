"""What the benchmark of fleets' sizes runs beside a coordinator: many thin workers in one process, or one real trainer.

    python -m tests.benchmarks.fleet_size_ends workers ENDPOINT JOB COUNT
    python -m tests.benchmarks.fleet_size_ends trainer ENDPOINT BATCHES_PER_S

Rules: each thin worker has connections of its own, registers, sends heartbeats, and answers trainers as a worker does,
with real batches that are built at once; it says of itself that it is on another host. Both are quiet between two lines
of their input: for the trainer each is how many seconds to read, and the answer how many batches it read; for the
workers each asks what was said since the last one.
"""

from __future__ import annotations

import json
import resource
import secrets
import select
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zmq

import trainer_client
from loader_server.building.builder import Builder
from loader_server.building.deadline import Deadline
from loader_server.building.fingerprint import builder_fingerprint
from loader_server.building.quarantine import Quarantine
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.sockets import bind_router, connect_dealer, read_waiting
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import WireShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    _Take = Callable[["_Worker", list[zmq.Frame]], None]

__all__ = ["HEARTBEAT_S"]

#: As of real workers and trainers: a quarter of the heartbeat timeout.
HEARTBEAT_S = 0.5

_NOTED = encode(m.Noted())
_STDIN = 0


class _Worker:
    """One worker's connections."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, number: int, builder: str) -> None:
        self.name, self.incarnation = f"worker-{number}", secrets.randbits(60)
        self.beat = self._make_beat(0)
        self.router = bind_router(context, "tcp://127.0.0.1:*", None)
        self.dealer = connect_dealer(context, endpoint, None, secrets.token_bytes(16))
        register = m.Register(
            worker=self.name, incarnation=self.incarnation, endpoint=self.router.getsockopt_string(zmq.LAST_ENDPOINT),
            boot_id=f"host-{number}", uid=0, builder=builder, metrics="",
        )  # fmt: skip
        self.dealer.send(encode(register))  # blocks until the connection is there

    def note(self, culprits: m.Culprits) -> None:
        """Say from now on that this list has come."""
        self.beat = self._make_beat(culprits.version)

    def _make_beat(self, culprits: int) -> bytes:
        counts = dict.fromkeys(("waiting", "building", "masked", "kept", "taken"), 0)
        times = dict.fromkeys(("busy_us", "awaited_us", "read_us", "held_up_us", "throttled_us", "queued_us"), 0)
        remote = dict.fromkeys(("remote_bytes", "remote_found", "remote_waited"), 0)
        beat = m.Beat(
            worker=self.name, incarnation=self.incarnation, built=99, decoded=99, culprits=culprits,
            **counts, **times, **remote,
        )  # fmt: skip
        return encode(beat)


class _Crowd:
    """All thin workers, in one loop."""

    def __init__(self, endpoint: str, job: Path, count: int) -> None:
        opened = JobFile(job)
        self._streams = {name: Stream(opened, name) for name in opened.recipes}
        builder = builder_fingerprint(self._streams, opened.versions_of_sent())
        quarantine, deadline = Quarantine(job.parent / "quarantine.jsonl"), Deadline(60.0)
        self._builders = {name: Builder(stream, quarantine, deadline) for name, stream in self._streams.items()}
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 4 * count + 16)
        #: Messages and bytes, by who they are exchanged with.
        self.said: Counter[str] = Counter()
        #: What zmq.Poller takes for two thousand sockets a turn would keep this process busy.
        self._epoll = select.epoll()
        self._epoll.register(_STDIN, select.EPOLLIN)
        self._takes: dict[int, tuple[_Worker, zmq.Socket[bytes], _Take]] = {}
        self._registered = 0
        self._due: deque[tuple[float, _Worker]] = deque()
        for number in range(1, count + 1):
            worker = _Worker(context, endpoint, number, builder)
            for socket, take in ((worker.router, self._answer_trainer), (worker.dealer, self._hear_coordinator)):
                self._takes[socket.FD] = (worker, socket, take)
                self._epoll.register(socket.FD, select.EPOLLIN | select.EPOLLET)
                self._drain(socket.FD)
            self._due.append((0.0, worker))
        self._count = count

    def run(self) -> None:
        """Serve until the input ends."""
        has_told = False
        while True:
            for ready, _ in self._epoll.poll(0.005):
                if ready != _STDIN:
                    self._drain(ready)
                elif sys.stdin.readline():
                    self._tell()
                else:
                    return
            if self._registered == self._count:
                self._send_beats()
                if not has_told:
                    has_told = True
                    self._tell()

    def _drain(self, descriptor: int) -> None:
        """Read until nothing is left: only then does a socket's descriptor tell of more."""
        worker, socket, take = self._takes[descriptor]
        while messages := list(read_waiting(socket)):
            for frames in messages:
                take(worker, frames)

    def _tell(self) -> None:
        print(json.dumps(self.said), flush=True)
        self.said.clear()

    def _send_beats(self) -> None:
        now_s = time.monotonic()
        if not self._due[0][0]:
            self._due = deque((now_s + HEARTBEAT_S * at / self._count, one) for at, (_, one) in enumerate(self._due))
        while self._due[0][0] <= now_s:
            due_s, worker = self._due.popleft()
            worker.dealer.send(worker.beat)
            self._count_said("coordinator", len(worker.beat))
            self._drain(worker.dealer.FD)
            self._due.append((due_s + HEARTBEAT_S, worker))

    def _count_said(self, who: str, nbytes: int) -> None:
        self.said[f"{who}_messages"] += 1
        self.said[f"{who}_bytes"] += nbytes

    def _hear_coordinator(self, worker: _Worker, frames: list[zmq.Frame]) -> None:
        for frame in frames:
            self._count_said("coordinator", len(frame.buffer))
            if frame.bytes == _NOTED:
                continue
            message = decode(frame.buffer)
            if isinstance(message, m.Registered):
                self._registered += 1
            elif isinstance(message, m.Culprits):
                worker.note(message)
            elif isinstance(message, m.Refused):
                raise SystemExit(f"refused: {message}")

    # --- trainers ---

    def _answer_trainer(self, worker: _Worker, frames: list[zmq.Frame]) -> None:
        identity, *rest = frames
        for frame in rest:
            self._count_said("trainer", len(frame.buffer))
            answer: list[bytes | memoryview] = self._answer(worker, decode(frame.buffer))
            if answer:
                self._count_said("trainer", sum(len(part) for part in answer))
                worker.router.send_multipart([identity.bytes, *answer])

    def _answer(self, worker: _Worker, message: m.Message) -> list[bytes | memoryview]:
        if isinstance(message, m.Hello):
            welcome = m.Welcome(
                worker=worker.name, incarnation=worker.incarnation, shared=False, reason="", float32="float32",
                compression="none", sealed_port=0,
            )  # fmt: skip
            return [encode(welcome)]
        if isinstance(message, m.Ping):
            return [encode(m.Pong(number=message.number, tickets=(), sealed=0, waiting=0))]
        if isinstance(message, m.EpochQuery):
            batches = self._builders[message.stream].batches(message.epoch, message.group)
            answer = m.EpochAnswer(
                stream=message.stream, epoch=message.epoch, group=message.group, batches=batches
            )  # fmt: skip
            return [encode(answer)]
        return self._push(message) if isinstance(message, m.Want) else []

    def _push(self, want: m.Want) -> list[bytes | memoryview]:
        builder = self._builders[want.stream]
        prepared = builder.prepare(want)
        payload: NDArray[np.uint8] = np.empty(prepared.layout.nbytes, np.uint8)
        built = builder.build(want, prepared, payload)
        header = m.Pushed(
            ticket=want.ticket, epoch=want.epoch, number=want.number, empty=want.empty, in_slot=False,
            shape=WireShape.of(prepared.shape), nbytes=payload.nbytes, digest=built.digest, rows=built.rows,
            masked=built.masked, reason=built.reason, reasons=built.reasons, build_us=built.build_us, read_us=0,
            held_us=0, waiting=0,
        )  # fmt: skip
        return [encode(header), payload.data]


def _train(endpoint: str, batches_per_s: float) -> None:
    with trainer_client.connect(endpoint, stream="steps") as feed:
        reading = iter(feed.open())
        next(reading)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            count, began_s = 0, time.monotonic()
            while time.monotonic() - began_s < float(line):
                next(reading)
                count += 1
                threading.Event().wait(max(0.0, began_s + count / batches_per_s - time.monotonic()))
            print(json.dumps({"batches": count}), flush=True)


def main() -> None:
    """Be one of the two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    role, endpoint, *rest = sys.argv[1:]
    if role == "workers":
        _Crowd(endpoint, Path(rest[0]), int(rest[1])).run()
    else:
        _train(endpoint, float(rest[0]))


if __name__ == "__main__":
    main()
