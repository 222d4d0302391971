"""Sealed payloads of one worker, on a connection of their own: keys for them, what comes, and in which turn it counts.

Rules: used in the receive thread only. A key serves one Hello; what does not open is thrown away and counted. Answers
on the worker's other connection may overtake payloads here: a Pong waits for those that were sent before it, as long as
they go on coming. It must not know wants, slots or what a batch is good for.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from shared.codec import decode
from shared.endpoints import at_port
from shared.errors import ProtocolError
from shared.messages import Pushed, Seal
from shared.packing import unpack
from shared.sealing import Opener
from shared.sockets import connect_dealer, drained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import zmq
    from numpy.typing import NDArray

    from shared.layout import Layout
    from shared.messages import Pong
    from shared.packing import Packing

__all__ = ["SealedPayloads"]

#: Payloads taken from one worker before the others have their turn.
_TURN = 64


class SealedPayloads:
    """`socket` is None until the worker says where it sends them from."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], worker_endpoint: str) -> None:
        self.socket: zmq.Socket[bytes] | None = None
        self.garbage = 0
        self._context = context
        self._endpoint = worker_endpoint
        self._identity = secrets.token_bytes(16)
        self._port = 0
        self._opener: Opener | None = None
        self._early: Pong | None = None
        self._heard_s = 0.0

    def new_seal(self) -> Seal:
        """A key for the next Hello; it must not meet the numbers of another."""
        self._opener = Opener()
        self.forget()  # it counted under the last key
        return Seal(self._opener.key, self._identity)

    def expect(self, port: int) -> None:
        """Connect to where the worker sends them from; 0: it sends none."""
        if port == self._port:
            return
        self.close()
        self._port = port
        if port:
            self.socket = connect_dealer(self._context, at_port(self._endpoint, port), None, self._identity)

    def read(self, take: Callable[[Pushed, memoryview], int], now_s: float) -> Iterator[tuple[Pushed, int]]:
        """Headers, each with what `take` makes of its payload."""
        assert self.socket is not None
        for frames in drained(self.socket, _TURN):
            header = self._opened(frames[0].bytes)
            if header is None or len(frames) != 2:
                self.garbage += 1
            else:
                self._heard_s = now_s
                yield header, take(header, frames[1].buffer)

    def _opened(self, frame: bytes) -> Pushed | None:
        opened = self._opener.header(frame) if self._opener is not None else None
        try:
            message = decode(opened) if opened is not None else None
        except ProtocolError:
            return None
        return message if isinstance(message, Pushed) and not message.in_slot else None

    def unpack(self, frame: memoryview, layout: Layout, packing: Packing, place: NDArray[np.uint8]) -> None:
        """Write the payload of the last header where it belongs; ProtocolError if it is another, or was changed."""
        assert self._opener is not None
        if packing.plain:
            if not self._opener.payload_into(frame, place):
                raise _changed()
            return
        opened = self._opener.payload(frame)
        if opened is None:
            raise _changed()
        unpack(memoryview(opened), layout, packing, place)

    # --- Pongs that go before payloads ---

    def put_off(self, pong: Pong, now_s: float) -> bool:
        """Whether this has to wait, because payloads that the worker sent before it are still on their way."""
        if not self._is_behind(pong):
            self._early = None
            return False
        if self._early is None:  # a later one says more, but would put off for ever what it replaced
            self._early, self._heard_s = pong, now_s
        return True

    def due(self, now_s: float, patience_s: float) -> Pong | None:
        """The Pong that waited, once it need not any more: they are here, or nothing has come for so long."""
        pong = self._early
        if pong is None or (self._is_behind(pong) and now_s - self._heard_s < patience_s):
            return None
        self._early = None
        return pong

    def forget(self) -> None:
        """The worker is gone, or cut off, or has another key: what waited counts no more."""
        self._early = None

    def _is_behind(self, pong: Pong) -> bool:
        return self._opener is not None and self._opener.number < pong.sealed

    def close(self) -> None:
        """No more of them."""
        if self.socket is not None:
            self.socket.close(linger=0)
        self.socket, self._port = None, 0


def _changed() -> ProtocolError:
    return ProtocolError(
        expected="the payload that was sealed for its header",
        got="another, or changed bytes",
        where="sealed payload",
        remedy="It was dropped and is asked for again; see PROTOCOL.md.",
    )
