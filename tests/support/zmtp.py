"""ZMTP by hand, for clients that libzmq would never be: without a mechanism, over a plain TCP socket."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from shared.endpoints import port_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GREETING", "frame", "ping", "raw_client", "ready", "reset"]

#: Signature, version 3.0, mechanism NULL.
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

_COMMAND, _LONG, _MORE = 4, 2, 1


def frame(body: bytes, *, more: bool = False) -> bytes:
    """One frame of a message."""
    flags = _MORE if more else 0
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + struct.pack(">Q", len(body)) + body


def ping(ttl_s: float) -> bytes:
    """A heartbeat, which says for how long silence is to be borne."""
    return bytes([_COMMAND, 7]) + b"\x04PING" + struct.pack(">H", int(10 * ttl_s))


def ready(identity: bytes = b"") -> bytes:
    """The end of a handshake without a mechanism, as a DEALER."""
    fields = {b"Socket-Type": b"DEALER", b"Identity": identity}
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value for name, value in fields.items()
    )
    return bytes([_COMMAND, len(body)]) + body


@contextlib.contextmanager
def raw_client(endpoint: str, *, greets: bool = True, identity: bytes = b"") -> Iterator[socket.socket]:
    """A connection, past its handshake if it `greets`."""
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=60) as client:
        if greets:
            client.sendall(GREETING + ready(identity))
            heard = b""
            while b"READY" not in heard:
                got = client.recv(4096)
                assert got, "the handshake ended early"
                heard += got
        yield client


def reset(client: socket.socket) -> None:
    """Hang up at once: what was not sent yet is thrown away, and the other side learns of it."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
