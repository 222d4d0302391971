"""Trainers that speak the protocol and nothing more, as badly as a test wants it; and a worker in this process."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from loader_server.worker.service import Worker, WorkerSettings
from shared.sockets import bind_router, connect_dealer
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import Seal, Ticket
from shared.wire.messages import Message
from tests.support import transforms
from tests.support.forked import TrialNursery
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.keys import ClientKeys
    from shared.memory import SlotMemory

__all__ = ["Asker", "Desk", "a_worker", "digest_of", "refused", "wait_until_begun", "welcomed", "write_synthetic"]

M = TypeVar("M", bound=Message)

SYNTHETIC = """
[job]
name = "made-up"
seed = 3
listen = "tcp://127.0.0.1:*"
{job}

[streams.train]
source = "synthetic"
samples = {samples}
kind = "features"
median_length = {length}
spread = 0.2
bands = 80
length = "features"
budget = "{budget} steps"
shapes = 2
{stream}
"""


def write_synthetic(
    folder: Path, *, samples: int = 2000, length: int = 100, budget: int = 6500, job: str = "", stream: str = ""
) -> Path:
    """A job on made-up features, whose batches have `budget` times 320 bytes; the job file's path."""
    path = folder / "job.toml"
    path.write_text(SYNTHETIC.format(samples=samples, length=length, budget=budget, job=job, stream=stream))
    return path


def digest_of(job: Path, stream: str = "train") -> str:
    """The plan that wants have to name; the index has to be there."""
    opened = Stream(JobFile(job), stream)
    try:
        return opened.digest
    finally:
        opened.close()


class Asker:
    """One connection to a worker; `deaf`: it never reads, and takes nothing in that it need not."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        plan: str,
        *,
        job: str = "made-up",
        keys: ClientKeys | None = None,
        identity: bytes = b"",
        incarnation: int = 0,
        memory: SlotMemory | None = None,
        deaf: bool = False,
    ) -> None:
        self.incarnation = incarnation or secrets.randbits(62)
        self.identity = identity or secrets.token_bytes(16)
        self.memory = memory
        self.worker = 0
        self._job = job
        self._plan = plan
        self.dealer = connect_dealer(context, endpoint, keys, self.identity)
        if deaf:  # options hold for connections that are made later
            self.dealer.disconnect(endpoint)
            self.dealer.setsockopt(zmq.RCVHWM, 1)
            self.dealer.setsockopt(zmq.RCVBUF, 4096)
            self.dealer.connect(endpoint)
        self.dealer.setsockopt(zmq.SNDTIMEO, 60_000)
        self.payloads: list[bytes] = []
        self._frames: list[bytes] = []

    def say(self, *messages: Message) -> None:
        """Send them at once."""
        self.dealer.send_multipart([encode(message) for message in messages])

    def hello(self, *, lock_byte: int = 16, stream: str = "train", seal: Seal | None = None) -> m.Welcome:
        """Say Hello and hear the answer."""
        self.say(self.greeting(lock_byte=lock_byte, stream=stream, seal=seal))
        welcome = self.hear(m.Welcome)
        self.worker = welcome.incarnation
        return welcome

    def greeting(self, *, lock_byte: int = 16, stream: str = "train", seal: Seal | None = None) -> m.Hello:
        """The Hello."""
        return m.Hello(
            job=self._job,
            stream=stream,
            incarnation=self.incarnation,
            shared=self.memory.offer(lock_byte) if self.memory is not None else None,
            verify=False,
            seal=seal,
        )

    def want(self, slot: int, generation: int = 1, number: int = 0, *, urgent: bool = False, **other: object) -> m.Want:
        """One, not sent."""
        fields: dict[str, object] = {
            "job": self._job,
            "stream": "train",
            "epoch": 0,
            "number": number,
            "empty": False,
            "group": 1,
            "plan_digest": self._plan,
            "attempt": 0,
            "trainer": self.incarnation,
            "worker": self.worker,
            "ticket": Ticket(slot, generation),
            "in_slot": self.memory is not None,
            "urgent": urgent,
        }
        return m.Want(**{**fields, **other})  # type: ignore[arg-type]

    def ping(self, number: int = 1) -> m.Pong:
        """What it holds of ours."""
        self.say(m.Ping(number=number))
        return self.hear(m.Pong)

    def listen(self, timeout_s: float = 60.0) -> Message | None:
        """The next message; None: nothing came in time. Payloads go to `payloads`."""
        if not self._frames and self.dealer.poll(int(1000 * timeout_s)):
            self._frames = self.dealer.recv_multipart()
        if not self._frames:
            return None
        message = decode(self._frames.pop(0))
        if isinstance(message, m.Pushed) and not message.in_slot:
            self.payloads.append(self._frames.pop(0))
        return message

    def hear(self, kind: type[M], timeout_s: float = 60.0) -> M:
        """The next message of a kind; others are dropped."""
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            message = self.listen(left_s)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} within {timeout_s:g} s")

    def close(self) -> None:
        """Hang up."""
        self.dealer.close(0)


class Desk:
    """Where workers register: a coordinator's socket, and nobody behind it but the test."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.router = bind_router(context, "tcp://127.0.0.1:*", None)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)

    def hear(self, timeout_s: float = 60.0) -> tuple[bytes, Message] | None:
        """Who said what; None: nothing came in time."""
        if not self.router.poll(int(1000 * timeout_s)):
            return None
        identity, frame = self.router.recv_multipart()
        return identity, decode(frame)

    def say(self, identity: bytes, message: Message) -> None:
        """Answer."""
        self.router.send_multipart([identity, encode(message)])

    def close(self) -> None:
        """No more."""
        self.router.close(0)


@contextmanager
def a_worker(job: Path, *, coordinator: str = "tcp://127.0.0.1:9") -> Iterator[Worker]:
    """A worker in a thread of this process; what ends it is raised here."""
    index_missing(JobFile(job))
    settings = WorkerSettings(job_path=job, name="worker", listen="tcp://127.0.0.1:*", coordinator=coordinator)
    worker = Worker(settings, TrialNursery())
    ended: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.drain(5.0)
        thread.join(60)
    assert not thread.is_alive()
    if ended:
        raise ended[0]


def welcomed(asker: Asker, **how: Any) -> Asker:
    """Once it has said Hello."""
    asker.hello(**how)
    return asker


def wait_until_begun(worker: Worker, builds: int) -> None:
    """Wait until at least so many builds are in the hands of the building thread, and it builds the first one."""
    assert transforms.AT_GATE.wait(60)
    # On a busy machine reads look slow, and it is given a few more.
    wait_until(lambda: worker._thread.load >= builds, f"{builds} builds are begun")


def refused(asker: Asker, *wants: m.Want) -> list[tuple[Ticket, str]]:
    """The code with which each of these wants is refused."""
    asker.say(*wants)
    answers = [asker.hear(m.Unbuilt) for _ in wants]
    return [(answer.ticket, answer.code) for answer in answers]
