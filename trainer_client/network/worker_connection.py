"""A trainer's connection to one worker: messages out, messages and payloads in.

Rules: used in the receive thread only. The socket survives restarts of the worker, and its identity survives replacing
the socket. The meaning of messages is the core's business.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np
import zmq

from shared.errors import ProtocolError
from shared.hashing import copy_and_digest64, digest64
from shared.sockets import connect_watched_dealer, read_connection_events, read_waiting, send_now
from shared.wire.codec import decode, encode
from shared.wire.messages import Pong, Pushed, Welcome
from shared.wire.payload import PayloadEncoding, decode_payload
from trainer_client.network.sealed_connection import SealedConnection, SealedPayload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shared.keys import ClientKeys
    from shared.wire.batch_layout import Layout
    from shared.wire.messages import Message

__all__ = ["WorkerConnection"]

#: Messages to take from one worker before the others get their turn.
_TURN = 64


class WorkerConnection:
    """A DEALER socket, its connection monitor and, with keys, the connection for sealed payloads.

    Making one raises SettingsError if the endpoint is no TCP endpoint, and zmq.ZMQError if libzmq cannot connect.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None) -> None:
        self.endpoint = endpoint
        #: The lock byte under which shared memory was offered last.
        self.lock_byte = 0
        #: How many frames were not valid messages, or payloads that could not be decoded.
        self.garbage = 0
        self.encoding = PayloadEncoding()
        #: The connection on which sealed payloads come; without keys it is never opened.
        self.sealed = SealedConnection(context, endpoint)
        self._context = context
        self._keys = keys
        self._identity = secrets.token_bytes(16)
        self._queued: list[bytes] = []
        self.socket, self.monitor = self._connect()

    def _connect(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        return connect_watched_dealer(self._context, self.endpoint, self._keys, self._identity)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets to poll: for messages, of the monitor and, if it is open, for sealed payloads."""
        return [socket for socket in (self.socket, self.monitor, self.sealed.socket) if socket is not None]

    def renew(self) -> None:
        """Replace all sockets, and drop queued messages; raise zmq.ZMQError if that fails, and keep the former ones.

        Raise SettingsError if the worker's endpoint is no TCP endpoint. Failure of the connection for sealed payloads
        is only logged.
        """
        sockets = self._connect()  # first, so that a failure leaves the former connection as it is
        self._hang_up(linger=0)
        self._queued.clear()
        self.socket, self.monitor = sockets
        self.sealed.renew()

    def queue(self, message: Message) -> None:
        """Queue a message for the next `flush`; raise ValueError if it exceeds the protocol's bounds."""
        self._queued.append(encode(message))

    def flush(self) -> bool:
        """Send the queued messages; if the connection is down, drop them and return False.

        Return True if they were sent, or if there were none.
        """
        # Dropped, not kept: the core then takes the connection for down, which voids the wants among them.
        queued, self._queued = self._queued, []
        try:
            if queued:
                send_now(self.socket, queued)
        except zmq.Again:
            return False
        return True

    def read_changes(self) -> Iterator[bool]:
        """Yield each change of the connection: True if it came up, False if it went down.

        When it goes down, a Pong that was held back is dropped.
        """
        for is_up in read_connection_events(self.monitor):
            if not is_up:
                self.sealed.forget()
            yield is_up

    def read(self, now_s: float) -> Iterator[tuple[Message, memoryview | SealedPayload | None]]:
        """Yield messages, with their payloads; hold back a Pong that overtook sealed payloads until they arrive.

        A payload is None for a message that has none, or whose payload is missing. Frames that are not valid are
        counted and dropped, with all behind them in the same multipart message. A Welcome sets how payloads are decoded
        and, with keys, the port of sealed ones. At most 64 multipart messages are read. SettingsError of `expect`
        and `put_off` passes through.
        """
        for frames in read_waiting(self.socket, _TURN):
            for message, payload in self._read_all(iter(frames)):
                if isinstance(message, Welcome):
                    self._take_in(message)
                if payload is not None:
                    self.sealed.note_fallback(now_s)
                if not (isinstance(message, Pong) and self.sealed.put_off(message, now_s)):
                    yield message, payload

    def _read_all(self, frames: Iterator[zmq.Frame]) -> Iterator[tuple[Message, memoryview | None]]:
        """Yield the messages of a multipart message, each with its payload; drop the frames from an invalid one on.

        A payload is None if the message brings none, or lacks its frame.
        """
        # What follows an invalid frame may be its payload, and a payload must not be read as a message.
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
        self.encoding = PayloadEncoding(float32=welcome.float32, compression=welcome.compression)
        # Without keys there is nothing to open a payload with, whatever port the worker names.
        if self._keys is not None:
            self.sealed.expect(welcome.sealed_port)

    def read_late(self, now_s: float, patience_s: float) -> Iterator[tuple[Message, None]]:
        """Yield the Pong that was held back, once its payloads are here or count as lost; else yield nothing.

        If they are lost, so may be their connection, which is replaced. SettingsError of `renew` passes through.
        """
        due = self.sealed.take_due(now_s, patience_s)
        if due is not None:
            pong, lost = due
            if lost:
                self.sealed.renew()
            yield pong, None

    def write(self, payload: memoryview | SealedPayload, digest: int, layout: Layout, place: NDArray[np.uint8]) -> bool:
        """Decode a payload into `place`; return whether it is the one that its header names.

        A frame is checked by its digest. A sealed payload that opens needs no digest: the seal covers its header too. A
        payload that cannot be decoded is counted as garbage. Raise SettingsError if the library of its compression is
        missing.
        """
        try:
            if isinstance(payload, SealedPayload):
                payload.decode_into(layout, self.encoding, place)
                return True
            if self.encoding.plain and len(payload) == len(place):
                # Copying and hashing in one pass reads the memory only once, which is a quarter quicker.
                return copy_and_digest64(np.frombuffer(payload, np.uint8), place) == digest
            decode_payload(payload, layout, self.encoding, place)
        except ProtocolError:
            self.garbage += 1
            return False
        return digest64(place.data) == digest

    def count_garbage(self) -> int:
        """Return how many frames or payloads were invalid, on both connections."""
        return self.garbage + self.sealed.garbage

    def _hang_up(self, *, linger: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close(linger=linger)

    def close(self) -> None:
        """Hang up both connections; messages that libzmq has queued get 100 ms to leave."""
        self.sealed.close()
        self._hang_up(linger=100)
