"""A trainer's connections to all parameter servers: questions to several at once, asked until they are answered.

Rules: used in the thread that waits. A question keeps its serial, so its answer is known whenever it comes, and asking
twice does nothing twice. A server that does not answer for too long is lost.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zmq

from shared.errors import LostError, ProtocolError
from shared.sockets import connect_dealer, read_waiting
from shared.wire import messages as wire
from shared.wire.codec import decode, encode
from shared.wire.refusing import error_of
from shared.wire.topics import server_messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shared.keys import ClientKeys

__all__ = ["Reply", "ServerConnections"]

#: How long until a question is sent again: if the connection was not up, and if there is no answer. The latter doubles
#: each time (a back-off).
_NOT_UP_S, _UNANSWERED_S = 0.05, 2.0

#: An answer, and the frame that followed it.
Reply = tuple[Any, memoryview]


class ServerConnections:
    """Connections to servers, one DEALER for each, in the order of their endpoints.

    Raise SettingsError if one of these is no TCP endpoint, and zmq.ZMQError if libzmq cannot connect.
    """

    def __init__(self, endpoints: Sequence[str], keys: ClientKeys | None, lost_timeout_s: float) -> None:
        self.endpoints = tuple(endpoints)
        self._lost_timeout_s = lost_timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = [
            connect_dealer(self._context, endpoint, keys, secrets.token_bytes(16)) for endpoint in endpoints
        ]
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)
        #: That of the last question. Serials go on rising over all servers and questions, so a late answer is known.
        self._serial = 0

    def __len__(self) -> int:
        return len(self.endpoints)

    def ask_all(self, message: Any, heed: Callable[[], None] | None = None) -> list[Reply]:
        """Ask every server the same, and return their answers in the order of servers.

        Once a server has moved, some may be missing. Raise LostError if a server does not answer in time, the error of
        a refusal, and ValueError as `ask` does; `heed` may raise, which ends the wait.
        """
        return list(self.ask(dict.fromkeys(range(len(self)), (message, b"")), heed).values())

    def ask(
        self, questions: Mapping[int, tuple[Any, bytes]], heed: Callable[[], None] | None = None
    ) -> dict[int, Reply]:
        """Ask some servers, by their number, and return their answers in the same order.

        Once a server has moved, no more answers are waited for, because the others may wait for its orders: some may be
        missing. Raise LostError if a server does not answer in time, the error that a server's refusal stands for, and
        ValueError if a message exceeds the protocol's bounds. `heed` may raise, which ends the wait.
        """
        # A question keeps its serial however often it is sent, since the connection may break at any time: a server
        # that has it already answers again and does nothing twice.
        asked = {}
        for at, (message, frame) in questions.items():
            self._serial += 1
            asked[at] = _Question(self._sockets[at], replace(message, serial=self._serial), frame)
        while waiting := {at: question for at, question in asked.items() if question.reply is None}:
            if heed is not None:
                heed()
            now_s = time.monotonic()
            for at, question in waiting.items():
                if now_s - question.began_s > self._lost_timeout_s:
                    raise self._lost(at)
                question.send(now_s)
            self._poller.poll(50)
            for at, socket in enumerate(self._sockets):
                for frames in read_waiting(socket):
                    self._take_in(frames, asked.get(at))
            if any(question.has_moved() for question in asked.values()):
                break
        return {at: question.reply for at, question in asked.items() if question.reply is not None}

    @staticmethod
    def _take_in(frames: list[zmq.Frame], asked: _Question | None) -> None:
        try:
            answer = decode(frames[0].buffer)
        except ProtocolError:
            return
        if isinstance(answer, wire.Refused):
            raise error_of(answer, "parameter server")
        # The answer to a question that was given up, or asked twice, may come late: its serial is of no question now.
        if asked is not None and getattr(answer, "serial", None) == asked.message.serial:
            asked.reply = (answer, frames[1].buffer if len(frames) > 1 else memoryview(b""))

    def tell_all(self, message: Any) -> None:
        """Send every server whose connection takes it a message without answer; raise ValueError if out of bounds."""
        for socket in self._sockets:
            try:
                socket.send(encode(message), zmq.DONTWAIT)
            except zmq.Again:
                continue

    def _lost(self, at: int) -> LostError:
        return LostError(
            expected=f"an answer of parameter server {at} within {self._lost_timeout_s:g} s", got="none",
            where=self.endpoints[at], remedy="Start it again, with the same role: the chief gives it its share.",
        )  # fmt: skip

    def close(self) -> None:
        """Close the sockets; the last messages get a moment to leave."""
        for socket in self._sockets:
            socket.close(linger=500)
        self._context.term()


class _Question:
    """A question, which is repeated until it is answered."""

    def __init__(self, socket: zmq.Socket[bytes], message: Any, frame: bytes) -> None:
        self.message = message
        self.reply: Reply | None = None
        self.began_s = time.monotonic()
        self._socket = socket
        # These are followed by a frame even if it is empty.
        has_frame = isinstance(message, m.ServeShare | m.GiveRows | m.Push | m.OfferEvaluation)
        self._frames = [encode(message), *([frame] if has_frame else [])]
        #: When to send it next, and how long to wait after that.
        self._again_s, self._pause_s = 0.0, _UNANSWERED_S

    def has_moved(self) -> bool:
        """Return whether the answer is that the server has another generation, or none; False without an answer."""
        return self.reply is not None and isinstance(self.reply[0], m.Taken) and self.reply[0].code == "moved"

    def send(self, now_s: float) -> None:
        """Send the question if it is time to: again after 2 s, then 4 s and so on, but soon if it was not taken."""
        if now_s < self._again_s:
            return
        try:
            self._socket.send_multipart(self._frames, zmq.DONTWAIT, copy=False)
        except zmq.Again:
            self._again_s = now_s + _NOT_UP_S
            return
        self._again_s, self._pause_s = now_s + self._pause_s, 2 * self._pause_s
