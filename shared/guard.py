"""Access control at a server's sockets: which clients may connect, and which messages each may send.

Rules: without keys everybody may connect and send everything. With keys libzmq asks the guard's own thread at each
handshake, and every message is checked again by the key of its connection, so that a key removed from `allowed` is
refused on open connections too. Unknown keys are refused, and messages without the role for them counted.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from shared.keys import ALLOWED, AllowedKeys
from shared.wire.refusing import refusal_of_role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.keys import ServerKeys
    from shared.wire.message_parts import Role
    from shared.wire.messages import Message, NotAttached, Refused

__all__ = ["Guard"]

#: Interval between looks at the folder of allowed keys: a look takes some twenty microseconds per key.
_LOOK_S = 0.2

#: Endpoint of libzmq's authentication requests (ZAP, RFC 27).
_ASKED_AT = "inproc://zeromq.zap.01"


class Guard:
    """Access control of one context.

    It is made before the context's sockets, by the thread that serves them; its own thread ends with the context. With
    keys, making a second one for a context raises zmq.ZMQError.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ServerKeys | None,
        may_say: Mapping[type[Message], frozenset[Role]],
    ) -> None:
        #: Messages from keys without the role for them.
        self.wrong_roles = 0
        self._may_say = may_say
        self._allowed = AllowedKeys(keys.folder / ALLOWED) if keys is not None else None
        self._look_s = 0.0
        #: Identities that may connect to the port for sealed payloads; also asked by the guard's thread.
        self._expected: set[bytes] = set()
        if self._allowed is not None:
            _answer_libzmq(context, self._answer_to)

    def look(self, now_s: float) -> bool:
        """Check the allowed keys again if the interval is over; return whether they changed.

        Return False before the interval is over, if the server has no keys, or if the keys cannot be read.
        """
        if self._allowed is None or now_s < self._look_s:
            return False
        self._look_s = now_s + _LOOK_S
        return self._allowed.follow()

    def key_of(self, frame: zmq.Frame) -> str:
        """Return the key of the connection that this frame came on; "" if the server has no keys."""
        return str(frame.get("User-Id")) if self._allowed is not None else ""

    def has_role(self, key: str, role: Role) -> bool:
        """Return whether a key has a role now; always true without keys."""
        return self._allowed is None or role in self._allowed.roles(key)

    def expect(self, identity: bytes) -> None:
        """Let in clients that show this identity at the port for sealed payloads; do nothing if it is empty."""
        if identity:  # an empty name lets nobody in
            self._expected.add(identity)

    def expect_no_longer(self, identity: bytes) -> None:
        """Stop letting this identity in; existing connections stay, and an unknown identity is ignored."""
        self._expected.discard(identity)

    def turn_away(self, key: str, message: Message) -> Refused | NotAttached | None:
        """Return and count the refusal of a message that its sender may not send, or return None if it may.

        Return None as well if the server has no keys, or if the table of roles lacks this kind of message.
        """
        if self._allowed is None or type(message) not in self._may_say:
            return None
        # By the key's roles now, not those at the handshake: a key that was removed is refused on open connections.
        allowed, held = self._may_say[type(message)], self._allowed.roles(key)
        if allowed & held:
            return None
        self.wrong_roles += 1
        return refusal_of_role(message, allowed, held)

    def _answer_to(self, request: list[bytes]) -> list[bytes]:
        """Return the answer to libzmq's request, in the guard's thread; it makes the key the connection's User-Id.

        A client with an allowed key, or without CURVE but with an expected identity, gets "OK" (200). An unknown client
        gets "not now" (300) and retries by itself: after "no" (400) its socket never would, and its key may still be
        added.
        """
        assert self._allowed is not None
        version, number, _domain, _address, _identity, mechanism, shown, *_ = request
        user = z85.encode(shown) if mechanism == b"CURVE" else b""
        # A client without CURVE is one for sealed payloads: it shows the identity that its Hello announced, in hex.
        if self._allowed.roles(user.decode()) if user else self._is_expected(shown):
            return [version, number, b"200", b"OK", user, b""]
        return [version, number, b"300", b"unknown", b"", b""]

    def _is_expected(self, name: bytes) -> bool:
        with contextlib.suppress(ValueError):  # not hexadecimal
            return bytes.fromhex(name.decode()) in self._expected
        return False


def _answer_libzmq(context: zmq.Context[zmq.Socket[bytes]], answer_to: Callable[[list[bytes]], list[bytes]]) -> None:
    """Start the thread that answers libzmq's request at each handshake; its socket is bound on return.

    Raise zmq.ZMQError if the context has such a thread already.
    """
    # Bound here and not in the thread: libzmq lets everybody in while nobody listens at this endpoint. From now on only
    # the thread uses the socket.
    asked = context.socket(zmq.REP)
    asked.linger = 0
    asked.bind(_ASKED_AT)

    def answer() -> None:
        with asked, contextlib.suppress(zmq.ContextTerminated):
            while True:
                asked.send_multipart(answer_to(asked.recv_multipart()))

    threading.Thread(target=answer, name="stoker-guard", daemon=True).start()
