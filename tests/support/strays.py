"""Workers that a test makes: they speak the protocol from the test's own process, and say what the test wants.

`Registrar` talks to a real coordinator in the name of any number of workers; `Greeter` listens as one of them,
welcomes every peer and builds nothing.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

import zmq

from loader_server.building.fingerprint import builder_fingerprint
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.sockets import bind_router, connect_dealer
from shared.wire import messages as m
from shared.wire.codec import decode, encode

if TYPE_CHECKING:
    from pathlib import Path

    from shared.keys import ClientKeys

__all__ = ["Greeter", "Registrar"]


class Registrar:
    """Registers workers with a coordinator; they would build the job's own bytes."""

    def __init__(self, context: zmq.Context, coordinator: str, job: Path, keys: ClientKeys | None = None) -> None:
        self._socket = connect_dealer(context, coordinator, keys, secrets.token_bytes(16))
        streams = {name: Stream(JobFile(job), name) for name in JobFile(job).recipes}
        self._builder = builder_fingerprint(streams, {})

    def register(self, incarnation: int, endpoint: str, *, boot_id: str = "") -> m.Message:
        """Register one; the coordinator's answer."""
        message = m.Register(
            worker=f"stray-{incarnation}",
            incarnation=incarnation,
            endpoint=endpoint,
            boot_id=boot_id,
            uid=0,
            builder=self._builder,
            metrics="",
        )
        # A coordinator drops what one connection sends beyond some hundred messages in a tenth of a second; a real
        # worker registers again until it is answered.
        for _ in range(60):
            self._socket.send(encode(message))
            while self._socket.poll(1000):
                answer = decode(self._socket.recv())
                if isinstance(answer, m.Registered | m.Refused):
                    return answer
        raise AssertionError("the coordinator answers")

    def convict(self, culprit: m.Culprit) -> None:
        """Say that a sample kills decoders."""
        self._socket.send(encode(culprit))

    def leave(self, incarnation: int) -> None:
        """One leaves."""
        self._socket.send(encode(m.Leave(worker=f"stray-{incarnation}", incarnation=incarnation)))

    def close(self) -> None:
        self._socket.close(0)


class Greeter:
    """One worker's port: welcomes by TCP, and leaves when it is asked for a batch."""

    def __init__(self, context: zmq.Context, incarnation: int) -> None:
        self.incarnation = incarnation
        self.greeted = threading.Event()
        self._router = bind_router(context, "tcp://127.0.0.1:*", None)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def serve(self) -> None:
        """Answer what has come."""
        while self._router.poll(0):
            identity, *frames = self._router.recv_multipart()
            for frame in frames:
                answer = self._answer(decode(frame))
                if answer is not None:
                    self._router.send_multipart([identity, encode(answer)])

    def _answer(self, message: m.Message) -> m.Message | None:
        if isinstance(message, m.Hello):
            self.greeted.set()
            return m.Welcome(
                worker=f"stray-{self.incarnation}",
                incarnation=self.incarnation,
                shared=False,
                reason="a test",
                float32="float32",
                compression="none",
                sealed_port=0,
            )
        if isinstance(message, m.Want):
            return m.Unbuilt(ticket=message.ticket, code="draining", expected="", got="", where="", remedy="")
        return None

    def close(self) -> None:
        self._router.close(0)
