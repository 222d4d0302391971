"""The trainer's connection to one worker: messages out, messages and payloads in.

Rules: used in the receive thread only. The socket survives the worker's restarts, and so does its identity when the
connection is made anew. What messages mean is the core's business.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import zmq

from shared.errors import ProtocolError
from shared.sockets import connect_watched_dealer, read_connection_events, read_waiting, send_now
from shared.wire.codec import decode, encode
from shared.wire.messages import Pong, Pushed, Welcome
from shared.wire.payload import PayloadEncoding, decode_payload
from trainer_client.network.sealed_connection import SealedConnection, SealedPayload

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shared.keys import ClientKeys
    from shared.wire.layout import Layout
    from shared.wire.messages import Message

__all__ = ["WorkerConnection"]

#: Messages taken from one worker before the others have their turn.
_TURN = 64


class WorkerConnection:
    """A DEALER, the watch on its connection and, under keys, the connection that sealed payloads come on."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None) -> None:
        self.endpoint = endpoint
        #: Under which byte shared memory was offered last.
        self.lock_byte = 0
        self.garbage = 0
        self.packing = PayloadEncoding()
        #: Payloads under keys come on a connection of their own.
        self.sealed = SealedConnection(context, endpoint) if keys is not None else None
        self._context = context
        self._keys = keys
        self._identity = secrets.token_bytes(16)
        self._queued: list[bytes] = []
        self.socket, self.monitor = self._connect()

    def _connect(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        return connect_watched_dealer(self._context, self.endpoint, self._keys, self._identity)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What is to be polled."""
        sealed = self.sealed.socket if self.sealed is not None else None
        return [self.socket, self.monitor, *([sealed] if sealed is not None else ())]

    def renew(self) -> None:
        """Make all of it anew; zmq.ZMQError where that cannot be: the former connection stays."""
        made = self._connect()
        self._hang_up(linger=0)
        self._queued.clear()
        self.socket, self.monitor = made
        if self.sealed is not None:
            self.sealed.renew()

    def queue(self, message: Message) -> None:
        """Send it with the next `flush`."""
        self._queued.append(encode(message))

    def flush(self) -> bool:
        """Send what is queued, if the connection is up; else it is lost."""
        queued, self._queued = self._queued, []
        try:
            if queued:
                send_now(self.socket, queued)
        except zmq.Again:
            return False
        return True

    def read_changes(self) -> Iterator[bool]:
        """The connection came up (true) or went (false)."""
        for event in read_connection_events(self.monitor):
            if not event.up and self.sealed is not None:
                self.sealed.forget()
            yield event.up

    def read(self, now_s: float) -> Iterator[tuple[Message, memoryview | SealedPayload | None]]:
        """Messages, each with its payload if it has one; a Pong that goes before payloads waits for them."""
        for frames in read_waiting(self.socket, _TURN):
            for message, payload in self._read_all(iter(frames)):
                if isinstance(message, Welcome):
                    self._take_in(message)
                if isinstance(message, Pong) and self.sealed is not None and self.sealed.put_off(message, now_s):
                    continue
                yield message, payload

    def _read_all(self, frames: Iterator[zmq.Frame]) -> Iterator[tuple[Message, memoryview | None]]:
        """The messages of one arrival; what follows one that is none is not looked into, for it may be a payload."""
        for frame in frames:
            try:
                message = decode(frame.buffer)
            except ProtocolError:
                self.garbage += 1
                return
            payload = None
            if isinstance(message, Pushed) and not message.in_slot:
                following = next(frames, None)
                payload = following.buffer if following is not None else None
            yield message, payload

    def _take_in(self, welcome: Welcome) -> None:
        self.packing = PayloadEncoding(float32=welcome.float32, compression=welcome.compression)
        if self.sealed is not None:
            self.sealed.expect(welcome.sealed_port)

    def read_sealed(self, now_s: float) -> Iterator[tuple[Message, SealedPayload | None]]:
        """Sealed payloads with their headers."""
        if self.sealed is not None:
            yield from self.sealed.read(now_s)

    def read_late(self, now_s: float, patience_s: float) -> Iterator[tuple[Message, None]]:
        """A Pong that waited for payloads; where they are lost, the connection may be, and is made anew."""
        due = self.sealed.take_due(now_s, patience_s) if self.sealed is not None else None
        if due is not None:
            pong, lost = due
            if lost:
                assert self.sealed is not None
                self.sealed.renew()
            yield pong, None

    def unpack(self, payload: memoryview | SealedPayload, layout: Layout, place: NDArray[np.uint8]) -> None:
        """Write a payload where it belongs; ProtocolError if it does not fit."""
        if isinstance(payload, SealedPayload):
            payload.unpack(layout, self.packing, place)
        else:
            decode_payload(payload, layout, self.packing, place)

    def count_garbage(self) -> int:
        """Frames that were no message for us."""
        return self.garbage + (self.sealed.garbage if self.sealed is not None else 0)

    def _hang_up(self, *, linger: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger)

    def close(self) -> None:
        """Hang up."""
        if self.sealed is not None:
            self.sealed.close()
        self._hang_up(linger=100)
