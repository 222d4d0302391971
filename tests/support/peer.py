"""Somebody who speaks the protocol to a coordinator or worker, message by message."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq

from shared.sockets import connect_dealer
from shared.wire.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.wire.messages import Message

__all__ = ["Peer", "peers"]

_PATIENCE_MS = 60_000


class Peer:
    """One connection."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = connect_dealer(context, endpoint, None, secrets.token_bytes(16))

    def send(self, message: Message | bytes) -> None:
        """Say something."""
        assert self.socket.poll(_PATIENCE_MS, zmq.POLLOUT), "no connection"
        self.socket.send(message if isinstance(message, bytes) else encode(message))

    def hear(self) -> Message:
        """Return the next message."""
        assert self.socket.poll(_PATIENCE_MS), "no answer"
        return decode(self.socket.recv())

    def ask(self, message: Message | bytes) -> Message:
        """Send something, and return the next message."""
        self.send(message)
        return self.hear()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


@contextmanager
def peers() -> Iterator[Callable[[str], Peer]]:
    """Makes peers that are gone after the block."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[Peer] = []

    def peer(endpoint: str) -> Peer:
        made.append(Peer(context, endpoint))
        return made[-1]

    try:
        yield peer
    finally:
        for made_peer in made:
            made_peer.close()
        context.term()
