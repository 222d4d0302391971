"""The connection of its own for a worker's sealed payloads, with their keys.

Rules: used in the receive thread only. A key serves one Hello; frames that it does not open are dropped and counted.
Messages on the worker's other connection may overtake payloads here, so a Pong waits for the payloads that were sent
before it, as long as payloads keep coming. If they stop, they are lost, and perhaps this connection with them, so it is
replaced. Must not know wants or slots.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import at_port
from shared.errors import ProtocolError
from shared.sockets import connect_sealed_dealer, read_waiting
from shared.wire.codec import decode
from shared.wire.message_parts import Seal
from shared.wire.messages import Pushed
from shared.wire.payload import decode_payload
from shared.wire.sealing import Opener
from trainer_client.network.trainer_log import process_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shared.wire.batch_layout import Layout
    from shared.wire.messages import Pong
    from shared.wire.payload import PayloadEncoding

__all__ = ["SealedConnection", "SealedPayload"]

#: How long payloads may come by the other connection alone before the log warns of it.
_FALLBACK_S = 2.0

#: Payloads to take from one worker before the others get their turn.
_TURN = 64


class SealedPayload:
    """A sealed payload frame, with the opener and the number that it was sealed under."""

    __slots__ = ("_frame", "_number", "_opener")

    def __init__(self, opener: Opener, number: int, frame: memoryview) -> None:
        self._opener = opener
        self._number = number
        self._frame = frame

    def decode_into(self, layout: Layout, encoding: PayloadEncoding, place: NDArray[np.uint8]) -> None:
        """Open the payload and write it, decoded, into `place`.

        Raise ProtocolError if it is not the payload of its header, or was changed, and SettingsError if the library of
        its compression is missing. A plain payload is opened straight into its place, without a copy.
        """
        if encoding.plain:
            if not self._opener.open_payload_into(self._number, self._frame, place):
                raise _changed()
            return
        opened = self._opener.open_payload(self._number, self._frame)
        if opened is None:
            raise _changed()
        decode_payload(memoryview(opened), layout, encoding, place)


class SealedConnection:
    """One worker's connection for payloads; `socket` is None until the worker has named its port."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], worker_endpoint: str) -> None:
        self.socket: zmq.Socket[bytes] | None = None
        self.garbage = 0
        self._context = context
        self._endpoint = worker_endpoint
        self._identity = secrets.token_bytes(16)
        #: The worker's port for payloads, and the port that the socket is connected to; 0: none.
        self._port = self._connected_port = 0
        self._opener: Opener | None = None
        #: The Pong that waits for payloads that were sent before it.
        self._early: Pong | None = None
        self._heard_s = 0.0
        #: How many batches came by the connection for messages, although the worker has a port for payloads.
        self.fallbacks = 0
        #: When the first fallback since the last payload here came; None if there was none.
        self._fallback_s: float | None = None
        self._has_warned = False

    def make_seal(self) -> Seal:
        """Return a Seal with a new key for the next Hello; payloads are numbered from the start under it.

        Payloads under the former key are not opened any more, and a waiting Pong is dropped. ImportError of `Opener`
        passes through.
        """
        # A number is sealed once under a key. A worker that restarted would begin at the first again, so each Hello
        # brings a key of its own.
        self._opener = Opener()
        self.forget()  # the waiting Pong counts payloads under the former key
        return Seal(self._opener.key, self._identity)

    def expect(self, port: int) -> None:
        """Connect to the port that the worker sends payloads from, or hang up if it is 0.

        A connection to that port stays. A failure is logged, and mended at a later Pong; only SettingsError is raised.
        """
        self._port = port
        self._follow()

    def _follow(self) -> None:
        if self._port != self._connected_port:
            self.renew()

    def renew(self) -> None:
        """Replace the connection under the same identity; hang up if the worker has no port for payloads.

        If libzmq refuses, log a warning, keep the former connection, and try again at each Pong. SettingsError of
        `connect_sealed_dealer` passes through.
        """
        former = self.socket
        try:
            self.socket = (
                connect_sealed_dealer(self._context, at_port(self._endpoint, self._port), self._identity)
                if self._port
                else None
            )
        except zmq.ZMQError as error:  # perhaps no descriptor is left
            self._connected_port = 0
            process_log().warning("no connection for payloads yet", worker=self._endpoint, error=str(error))
            return
        self._connected_port = self._port
        if former is not None:
            former.close(linger=0)

    def read(self, now_s: float) -> Iterator[tuple[Pushed, SealedPayload]]:
        """Yield the headers that have arrived, each with its payload; drop and count what the key does not open.

        Messages that are not one header and one payload are dropped and counted as well. At most 64 messages are read.
        There must be a connection.
        """
        assert self.socket is not None
        for frames in read_waiting(self.socket, _TURN):
            header = self._open(frames[0].bytes)
            if header is None or len(frames) != 2:
                self.garbage += 1
            else:
                assert self._opener is not None
                self._heard_s, self._fallback_s = now_s, None
                # The payload is opened later, when the core orders it, so it keeps the key and number of this header.
                yield header, SealedPayload(self._opener, self._opener.number, frames[1].buffer)

    def _open(self, frame: bytes) -> Pushed | None:
        opened = self._opener.open_header(frame) if self._opener is not None else None
        try:
            message = decode(opened) if opened is not None else None
        except ProtocolError:
            return None
        return message if isinstance(message, Pushed) and not message.in_slot else None

    def note_fallback(self, now_s: float) -> None:
        """Count a batch that came by the slower connection for messages; warn once if that goes on for 2 s.

        Do nothing if the worker has no port for payloads.
        """
        # The first fallbacks are normal: they are built before the worker has seen this connection.
        if not self._port:
            return
        self.fallbacks += 1
        self._fallback_s = now_s if self._fallback_s is None else self._fallback_s
        if now_s - self._fallback_s >= _FALLBACK_S and not self._has_warned:
            self._has_warned = True
            process_log().warning(
                "payloads come by the connection for messages, which is slower: nothing comes from the worker's port "
                "for sealed payloads. Open that port in the firewall between",
                worker=self._endpoint,
                port=self._port,
            )

    # --- Pongs that overtake payloads ---

    def put_off(self, pong: Pong, now_s: float) -> bool:
        """Return whether this Pong has to wait for payloads that the worker sent before it; if so, keep it.

        If another waits already, that is kept instead; a Pong that need not wait drops it. A connection that could not
        be made before is tried again. SettingsError of `_follow` passes through.
        """
        # It comes by another connection and may overtake them. Without the wait, the core would take their tickets for
        # lost, which the Pong no longer lists, and ask for their batches again.
        self._follow()
        if not self._is_behind(pong):
            self._early = None
            return False
        if self._early is None:  # a later Pong is newer, but replacing the first one could put it off for ever
            self._early, self._heard_s = pong, now_s
        return True

    def take_due(self, now_s: float, patience_s: float) -> tuple[Pong, bool] | None:
        """Remove and return the waiting Pong, with whether its payloads count as lost; None if it has to wait on.

        Payloads count as lost if none has arrived for `patience_s`. Return None as well if no Pong waits.
        """
        pong = self._early
        if pong is None:
            return None
        lost = self._is_behind(pong)
        if lost and now_s - self._heard_s < patience_s:
            return None
        self._early = None
        return pong, lost

    def forget(self) -> None:
        """Drop the waiting Pong: the worker is gone, cut off, or has a new key."""
        self._early = None

    def _is_behind(self, pong: Pong) -> bool:
        return self._opener is not None and self._opener.number < pong.sealed

    def close(self) -> None:
        """Hang up, for good unless `expect` names a port again; do nothing if it is not connected."""
        # Not by way of `expect`: after a failed `renew` the former socket is still open, and the context waits for it.
        self._port = 0
        self.renew()


def _changed() -> ProtocolError:
    return ProtocolError(
        expected="the payload that was sealed for its header",
        got="another, or changed bytes",
        where="sealed payload",
        remedy="It was dropped and is asked for again; see PROTOCOL.md.",
    )
