"""Sealed payloads of one worker, on a connection of their own: their keys, what arrives, and when it counts.

Rules: used in the receive thread only. A key serves one Hello; what it does not open is dropped and counted. Answers on
the worker's other connection may overtake payloads here, so a Pong waits for the payloads that were sent before it, as
long as payloads keep coming. If they stop, they are lost, and perhaps this connection with them: it is replaced then.
It must not know wants, slots, or what a batch is good for.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import at_port
from shared.errors import ProtocolError
from shared.logs import Log
from shared.sockets import connect_sealed_dealer, read_waiting
from shared.wire.codec import decode
from shared.wire.messages import Pushed
from shared.wire.parts import Seal
from shared.wire.payload import decode_payload
from shared.wire.sealing import Opener

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shared.wire.layout import Layout
    from shared.wire.messages import Pong
    from shared.wire.payload import PayloadEncoding

__all__ = ["SealedConnection", "SealedPayload"]

#: How long payloads have come by the other connection alone before that is worth a word.
_FALLBACK_S = 2.0

#: Payloads to take from one worker before the others get their turn.
_TURN = 64


class SealedPayload:
    """A payload frame, with what opens it."""

    __slots__ = ("_frame", "_number", "_opener")

    def __init__(self, opener: Opener, number: int, frame: memoryview) -> None:
        self._opener = opener
        self._number = number
        self._frame = frame

    def decode_into(self, layout: Layout, encoding: PayloadEncoding, place: NDArray[np.uint8]) -> None:
        """Write it where it belongs; ProtocolError if it is not its header's payload, or was changed."""
        if encoding.plain:
            if not self._opener.open_payload_into(self._number, self._frame, place):
                raise _changed()
            return
        opened = self._opener.open_payload(self._number, self._frame)
        if opened is None:
            raise _changed()
        decode_payload(memoryview(opened), layout, encoding, place)


class SealedConnection:
    """One worker's payloads; `socket` is None until the worker has said where it sends them from."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], worker_endpoint: str) -> None:
        self.socket: zmq.Socket[bytes] | None = None
        self.garbage = 0
        self._context = context
        self._endpoint = worker_endpoint
        self._identity = secrets.token_bytes(16)
        #: Where payloads are sent from, and where the socket is connected to.
        self._port = self._connected_port = 0
        self._opener: Opener | None = None
        self._early: Pong | None = None
        self._heard_s = 0.0
        #: Batches that came by the connection for messages, although the worker seals them for this one.
        self.fallbacks = 0
        #: When the first of them came after the last payload here; None: payloads come here.
        self._fallback_s: float | None = None
        self._is_told = False

    def make_seal(self) -> Seal:
        """Make a key for the next Hello; numbers that were counted under another key do not apply to it."""
        self._opener = Opener()
        self.forget()  # the Pong that waits counted under the last key
        return Seal(self._opener.key, self._identity)

    def expect(self, port: int) -> None:
        """Connect to the port that the worker sends from; 0: it sends none."""
        self._port = port
        self._follow()

    def _follow(self) -> None:
        if self._port != self._connected_port:
            self.renew()

    def renew(self) -> None:
        """Replace the connection, under the same identity; if that fails, it is tried again at each Pong."""
        former = self.socket
        try:
            self.socket = self._connect() if self._port else None
        except zmq.ZMQError as error:  # no descriptor left, say
            self._connected_port = 0
            Log("trainer").warning("no connection for payloads yet", worker=self._endpoint, error=str(error))
            return
        self._connected_port = self._port
        if former is not None:
            former.close(linger=0)

    def _connect(self) -> zmq.Socket[bytes]:
        return connect_sealed_dealer(self._context, at_port(self._endpoint, self._port), self._identity)

    def read(self, now_s: float) -> Iterator[tuple[Pushed, SealedPayload]]:
        """Yield headers, each with its payload."""
        assert self.socket is not None
        for frames in read_waiting(self.socket, _TURN):
            header = self._open(frames[0].bytes)
            if header is None or len(frames) != 2:
                self.garbage += 1
            else:
                assert self._opener is not None
                self._heard_s, self._fallback_s = now_s, None
                yield header, SealedPayload(self._opener, self._opener.number, frames[1].buffer)

    def _open(self, frame: bytes) -> Pushed | None:
        opened = self._opener.open_header(frame) if self._opener is not None else None
        try:
            message = decode(opened) if opened is not None else None
        except ProtocolError:
            return None
        return message if isinstance(message, Pushed) and not message.in_slot else None

    def note_fallback(self, now_s: float) -> None:
        """Count a batch that came by the slower connection for messages; if that goes on, say so once.

        The first ones are normal: they are built before the worker has seen this connection.
        """
        if not self._port:
            return
        self.fallbacks += 1
        self._fallback_s = now_s if self._fallback_s is None else self._fallback_s
        if now_s - self._fallback_s >= _FALLBACK_S and not self._is_told:
            self._is_told = True
            Log("trainer").warning(
                "payloads come by the connection for messages, which is slower: nothing comes from the worker's port "
                "for sealed payloads. Open that port in the firewall between",
                worker=self._endpoint,
                port=self._port,
            )

    # --- Pongs that overtake payloads ---

    def put_off(self, pong: Pong, now_s: float) -> bool:
        """Whether this Pong has to wait, because payloads that the worker sent before it are still on their way."""
        self._follow()
        if not self._is_behind(pong):
            self._early = None
            return False
        if self._early is None:  # a later Pong says more, but replacing the first one could put it off for ever
            self._early, self._heard_s = pong, now_s
        return True

    def take_due(self, now_s: float, patience_s: float) -> tuple[Pong, bool] | None:
        """Take the Pong that waited, once it need not wait any more; and whether its payloads count as lost."""
        pong = self._early
        if pong is None:
            return None
        lost = self._is_behind(pong)
        if lost and now_s - self._heard_s < patience_s:
            return None
        self._early = None
        return pong, lost

    def forget(self) -> None:
        """The worker is gone, cut off, or has another key: the Pong that waited is void."""
        self._early = None

    def _is_behind(self, pong: Pong) -> bool:
        return self._opener is not None and self._opener.number < pong.sealed

    def close(self) -> None:
        """Hang up."""
        self.expect(0)


def _changed() -> ProtocolError:
    return ProtocolError(
        expected="the payload that was sealed for its header",
        got="another, or changed bytes",
        where="sealed payload",
        remedy="It was dropped and is asked for again; see PROTOCOL.md.",
    )
