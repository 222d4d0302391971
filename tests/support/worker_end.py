"""A worker's end of connections, in the test's own process and thread: it says what a test lets it say."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import port_of
from shared.sockets import bind_router, bind_sealed_router
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from tests.support.open_doors import let_all_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.keys import ServerKeys

__all__ = ["PATIENCE_MS", "WorkerEnd", "nobody", "welcome"]

PATIENCE_MS = 60_000


@contextmanager
def nobody() -> Iterator[str]:
    """An endpoint where nobody answers, and nobody else begins to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def welcome(**other: object) -> m.Welcome:
    """What a worker answers Hello with."""
    fields: dict[str, object] = {
        "worker": "w1", "incarnation": 1, "shared": False, "reason": "", "float32": "float32", "compression": "none",
        "sealed_port": 0,
    }  # fmt: skip
    return m.Welcome(**{**fields, **other})  # type: ignore[arg-type]


class WorkerEnd:
    """A ROUTER as a worker binds it, and the one that sealed payloads leave from."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys | None = None) -> None:
        self.router = bind_router(context, "tcp://127.0.0.1:*", keys)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        if keys is not None:
            let_all_in(context)
        self.sealed = bind_sealed_router(context, self.endpoint) if keys is not None else None
        #: Who spoke last.
        self.identity = b""

    @property
    def sealed_port(self) -> int:
        """Where sealed payloads leave from."""
        assert self.sealed is not None
        return port_of(self.sealed.getsockopt_string(zmq.LAST_ENDPOINT))

    def hear(self) -> list[m.Message]:
        """The messages of the arrival that is next."""
        assert self.router.poll(PATIENCE_MS), "nothing came"
        self.identity, *frames = self.router.recv_multipart()
        return [decode(frame) for frame in frames]

    def say(self, *frames: m.Message | bytes) -> None:
        """Say all of it at once to the peer that spoke last."""
        encoded = [frame if isinstance(frame, bytes) else encode(frame) for frame in frames]
        self.router.send_multipart([self.identity, *encoded])

    def close(self) -> None:
        """Hang up."""
        self.router.close(0)
        if self.sealed is not None:
            self.sealed.close(0)
