"""A coordinator and a worker of made-up batches, in one thread of the test's process, for trainers that talk to both.

A test may answer any message otherwise, and sees what was heard. What has a serial counts once, however often it is
repeated, as it is where the answer is late.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq
from typing_extensions import Self

from shared.hashing import digest64
from shared.sockets import Waker, bind_router
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import WorkerAddress
from tests.support.lone_core import BATCHES, NBYTES, attached, pushed
from tests.support.worker_end import welcome

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Ends"]


class Ends:
    """`endpoint` is the coordinator's; `facts` are those of the stream that it tells, `answers` replace usual ones."""

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        self.answers: dict[type, Callable[[Any], list[m.Message | bytes]]] = {}
        self.heard: list[m.Message] = []
        #: How many messages were said once more.
        self.repeats = 0
        self._changed = threading.Condition()
        self._over = False
        self._waker = Waker()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._routers = [bind_router(self._context, "tcp://127.0.0.1:*", None) for _ in range(2)]
        self.endpoint, self.worker = [router.getsockopt_string(zmq.LAST_ENDPOINT) for router in self._routers]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for(self, kind: type, number: int = 1, timeout_s: float = 60.0) -> Any:
        """The `number`th message of this kind that was heard, waiting for it."""
        found: list[m.Message] = []

        def is_there() -> bool:
            found[:] = [message for message in self.heard if isinstance(message, kind)]
            return len(found) >= number

        with self._changed:
            assert self._changed.wait_for(is_there, timeout_s), f"no {kind.__name__}"
        return found[number - 1]

    def _run(self) -> None:
        poller = zmq.Poller()
        for polled in (*self._routers, self._waker.fileno()):
            poller.register(polled, zmq.POLLIN)
        while not self._over:
            for socket, _ in poller.poll():
                if socket in self._routers:
                    self._serve(socket)
        for router in self._routers:
            router.close(linger=0)
        self._context.term()
        self._waker.close()

    def _serve(self, router: zmq.Socket[bytes]) -> None:
        identity, *frames = router.recv_multipart()
        for frame in frames:
            message = decode(frame)
            with self._changed:
                self._note(message)
                self._changed.notify_all()
            answer = self.answers.get(type(message), self._usual)(message)
            if answer:
                encoded = [part if isinstance(part, bytes) else encode(part) for part in answer]
                with contextlib.suppress(zmq.ZMQError):  # the peer that asked is gone
                    router.send_multipart([identity, *encoded])

    def _note(self, message: m.Message) -> None:
        if hasattr(message, "serial") and message in self.heard:
            self.repeats += 1
        else:
            self.heard.append(message)

    def _usual(self, message: Any) -> list[m.Message | bytes]:
        if isinstance(message, m.Attach):
            at = (message.cursor.epoch, message.cursor.number) if message.cursor else (0, 0)
            workers = (WorkerAddress("w1", 1, self.worker, "there", 0),)
            return [attached(message.serial, at=at, **{"workers": workers, **self.facts})]
        if isinstance(message, m.Want):
            payload = np.full(NBYTES, message.number, np.uint8)
            return [pushed(message, digest=digest64(payload.data)), payload.tobytes()]
        answer = _ANSWERS.get(type(message))
        return [answer(message)] if answer is not None else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._waker.wake()
        self._thread.join(60)


_ANSWERS: dict[type, Callable[[Any], m.Message]] = {
    m.Progress: lambda _: m.Noted(),
    m.Hello: lambda _: welcome(),
    m.EpochQuery: lambda asked: m.EpochAnswer(
        stream=asked.stream, epoch=asked.epoch, group=asked.group, batches=BATCHES
    ),
    m.NameQuery: lambda asked: m.NameAnswer(stream=asked.stream, sample=asked.sample, name=f"sample {asked.sample}"),
    m.Ping: lambda asked: m.Pong(number=asked.number, tickets=(), sealed=0, waiting=0),
    m.Cancel: lambda asked: m.Cancelled(ticket=asked.ticket),
}
