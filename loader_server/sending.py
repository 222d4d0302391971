"""What a worker says to trainers: the answers of a turn at once, payloads behind their headers, sealed ones apart.

Rules: used in the poll loop only; answers to one trainer keep their order; a socket never blocks, and what is for a
trainer that hung up nobody waits for. A buffer that libzmq still sends from is left alone until it says that it is
through: it says so only to who looks.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import zmq

from shared.codec import encode
from shared.endpoints import port_of
from shared.hashing import digest64
from shared.sockets import bind_router, bind_sealed_router, send_now

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loader_server.build_thread import Outcome
    from loader_server.outgoing import Outgoing
    from loader_server.session import Session
    from shared.keys import ServerKeys
    from shared.logs import Log
    from shared.messages import Message, Pushed

__all__ = ["Sending"]

_LINGER_MS = 200


class Sending:
    """Owns the sockets that trainers are connected to."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], listen: str, keys: ServerKeys | None, outgoing: Outgoing
    ) -> None:
        self.router = bind_router(context, listen, keys)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._sealed_router = bind_sealed_router(context, self.endpoint) if keys is not None else None
        #: Where sealed payloads come from; 0: there are none.
        self.sealed_port = 0
        if self._sealed_router is not None:
            self.sealed_port = port_of(self._sealed_router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.ports = [port_of(self.endpoint), *([self.sealed_port] if self.sealed_port else [])]
        self._outgoing = outgoing
        self._outbox: dict[bytes, list[bytes]] = {}
        #: What libzmq is still sending, and the buffers of `Outgoing` that it lies in.
        self._unsent: list[tuple[zmq.MessageTracker, memoryview, NDArray[np.uint8] | None]] = []

    def say(self, identity: bytes, message: Message) -> None:
        """Send it with the next `flush`."""
        self.say_frame(identity, encode(message))

    def say_frame(self, identity: bytes, frame: bytes) -> None:
        """The same, of a message that is encoded."""
        self._outbox.setdefault(identity, []).append(frame)

    def flush(self) -> bool:
        """Send the answers so far, those for one trainer at once; whether all trainers were there."""
        outbox, self._outbox = self._outbox, {}
        there = [self._sent(self.router, [identity, *frames]) for identity, frames in outbox.items()]
        return all(there)

    def push(self, outcome: Outcome, header: Pushed, session: Session, log: Log) -> None:
        """A batch by TCP: sealed where the trainer listens for that, else on the connection of all messages."""
        assert outcome.sent is not None
        assert outcome.payload is not None
        self.flush()  # answers keep their order
        if outcome.sealed is not None and self._pushed_sealed(outcome, header, session):
            self._outgoing.give_back(outcome.payload)
            return
        if not header.digest:  # left out because it was to be sealed
            header = dataclasses.replace(header, digest=digest64(outcome.payload.data))
        buffer: NDArray[np.uint8] | None = outcome.payload
        if self._outgoing.packs:
            self._outgoing.give_back(outcome.payload)
            buffer = None
        head = [outcome.job.trainer, encode(header)]
        if not self._send_behind(self.router, head, outcome.sent, buffer):
            log.debug("trainer is gone", number=header.number)

    def _pushed_sealed(self, outcome: Outcome, header: Pushed, session: Session) -> bool:
        sealer = outcome.job.sealer
        assert outcome.sealed is not None
        if sealer is None or session.sealer is not sealer or self._sealed_router is None:
            return False
        number, sealed = outcome.sealed
        head = [session.sealed_identity, sealer.header(number, encode(header))]
        if not self._send_behind(self._sealed_router, head, sealed.data, sealed):
            return False
        session.sealed_number = number
        return True

    def _send_behind(
        self, socket: zmq.Socket[bytes], head: list[bytes], sent: memoryview, buffer: NDArray[np.uint8] | None
    ) -> bool:
        if not self._sent(socket, head, more=True):
            return False
        tracker = socket.send(sent, zmq.DONTWAIT, copy=False, track=True)
        assert tracker is not None
        self._unsent.append((tracker, sent, buffer))
        return True

    @staticmethod
    def _sent(socket: zmq.Socket[bytes], frames: list[bytes], *, more: bool = False) -> bool:
        try:
            send_now(socket, frames, more=more)
        except zmq.ZMQError:  # EHOSTUNREACH: it hung up, or is not connected yet
            return False
        return True

    def take_back(self) -> None:
        """Buffers that were sent may be used again."""
        unsent, self._unsent = self._unsent, []
        for tracker, sent, buffer in unsent:
            if not tracker.done:
                self._unsent.append((tracker, sent, buffer))
            elif buffer is not None:
                self._outgoing.give_back(buffer)

    def unsent_bytes(self) -> int:
        """Bytes of batches that were built and are still on their way out."""
        return sum(sent.nbytes for _, sent, _ in self._unsent)

    def close(self) -> None:
        """Hang up; what was said last still has a moment to leave."""
        self.router.close(linger=_LINGER_MS)
        if self._sealed_router is not None:
            self._sealed_router.close(linger=_LINGER_MS)
