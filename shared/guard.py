"""The guard at a server's sockets: who is let in, and what each may say.

Rules: without keys everybody is let in and may say everything. With keys libzmq asks the guard's own thread at each
handshake, and every message is checked again by the key of its connection, so that a key that is taken out of `allowed`
is refused on open connections too. Strangers are refused, and counted.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from shared.keys import ALLOWED, AllowedKeys
from shared.wire.permissions import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.keys import ServerKeys
    from shared.wire.declared import Role
    from shared.wire.messages import Message, NotAttached, Refused

__all__ = ["Guard"]

#: How often to look at the folder of allowed keys: a look takes some twenty microseconds per key.
_LOOK_S = 0.2

#: Where libzmq sends its questions (ZAP, RFC 27).
_ASKED_AT = "inproc://zeromq.zap.01"


class Guard:
    """Made before the sockets of a context, by the thread that serves them; its thread ends with the context."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ServerKeys | None,
        may_say: Mapping[type[Message], frozenset[Role]],
    ) -> None:
        #: How many messages came from keys without the role for them.
        self.wrong_roles = 0
        self._may_say = may_say
        self._allowed = AllowedKeys(keys.folder / ALLOWED) if keys is not None else None
        self._look_s = 0.0
        #: Identities of connections for sealed payloads.
        self._expected: set[bytes] = set()
        if self._allowed is not None:
            _answer_libzmq(context, self._answer_to)

    def look(self, now_s: float) -> bool:
        """Check now and then whether the allowed keys have changed; whether they had."""
        if self._allowed is None or now_s < self._look_s:
            return False
        self._look_s = now_s + _LOOK_S
        return self._allowed.follow()

    def key_of(self, frame: zmq.Frame) -> str:
        """The key of the connection that this frame came on."""
        return str(frame.get("User-Id")) if self._allowed is not None else ""

    def has_role(self, key: str, role: Role) -> bool:
        """Whether a key still has a role."""
        return self._allowed is None or role in self._allowed.roles(key)

    def expect(self, identity: bytes) -> None:
        """Let in clients that show this identity at the port for sealed payloads."""
        if identity:  # an empty name lets nobody in
            self._expected.add(identity)

    def expect_no_longer(self, identity: bytes) -> None:
        """Stop letting this identity in; existing connections stay."""
        self._expected.discard(identity)

    def turn_away(self, key: str, message: Message) -> Refused | NotAttached | None:
        """The answer to a message that its sender may not send, which is counted; None if it may."""
        if self._allowed is None or type(message) not in self._may_say:
            return None
        allowed, held = self._may_say[type(message)], self._allowed.roles(key)
        if allowed & held:
            return None
        self.wrong_roles += 1
        return refusal(message, allowed, held)

    def _answer_to(self, request: list[bytes]) -> list[bytes]:
        """Answer libzmq, in the guard's thread; the key becomes the User-Id of everything on the connection.

        A stranger is told "not now" (300) and tries again by itself: after "no" (400) its socket never would, and its
        key may still be added.
        """
        assert self._allowed is not None
        version, number, _domain, _address, _identity, mechanism, shown, *_ = request
        user = z85.encode(shown) if mechanism == b"CURVE" else b""
        if self._allowed.roles(user.decode()) if user else self._is_expected(shown):
            return [version, number, b"200", b"OK", user, b""]
        return [version, number, b"300", b"unknown", b"", b""]

    def _is_expected(self, name: bytes) -> bool:
        with contextlib.suppress(ValueError):  # not hexadecimal
            return bytes.fromhex(name.decode()) in self._expected
        return False


def _answer_libzmq(context: zmq.Context[zmq.Socket[bytes]], answer_to: Callable[[list[bytes]], list[bytes]]) -> None:
    """Start a thread that tells libzmq at each handshake whether to let the client in; it listens on return."""
    asked = context.socket(zmq.REP)  # from now on only its thread uses it
    asked.linger = 0
    asked.bind(_ASKED_AT)

    def answer() -> None:
        with asked, contextlib.suppress(zmq.ContextTerminated):
            while True:
                asked.send_multipart(answer_to(asked.recv_multipart()))

    threading.Thread(target=answer, name="stoker-guard", daemon=True).start()
