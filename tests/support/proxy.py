"""A relay between two ends of ZeroMQ that can do to their traffic what networks do, and what attackers do.

Bytes: `cut` resets connections and refuses new ones, `hold` keeps back what goes one way and `heal` lets it go,
`half_close` ends one way of each connection, `reset` ends one side of each without telling the other. Messages: a way's
`change` is asked for what goes in place of each (nothing, two, others, later), and `inject` adds some. For messages it
reads ZMTP's framing, so they must not be encrypted. Ways are `UP`, from who connects, and `DOWN`, to there.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import Self

from shared.errors import ProtocolError
from shared.wire.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shared.wire.messages import Message

__all__ = ["DOWN", "UP", "Parts", "Proxy", "kinds", "messages_of"]

UP, DOWN = "up", "down"

#: The frames of a message.
Parts = list[bytes]

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4
_AT_ONCE = 2**16


def messages_of(parts: Parts) -> list[Message]:
    """What a message says; payloads say nothing."""
    messages = []
    for part in parts:
        with contextlib.suppress(ProtocolError):
            messages.append(decode(part))
    return messages


def kinds(parts: Parts) -> set[type[Message]]:
    """The kinds of message in it."""
    return {type(message) for message in messages_of(parts)}


class Framing:
    """Cuts a stream of ZMTP 3 into what is passed on as it is (greeting, commands), and messages."""

    def __init__(self) -> None:
        self._bytes = b""
        self._greeting = _GREETING_BYTES
        self._parts: Parts = []

    def split(self, data: bytes) -> Iterator[bytes | Parts]:
        self._bytes += data
        if self._greeting:  # in pieces, for each end waits for the other's first
            piece = self._take(min(self._greeting, len(self._bytes)))
            self._greeting -= len(piece)
            yield piece
        while (whole := self._frame()) is not None:
            yield from self._sort(*whole)

    def _sort(self, flags: int, frame: bytes, body: bytes) -> Iterator[bytes | Parts]:
        if flags & _COMMAND:
            yield frame
            return
        self._parts.append(body)
        if not flags & _MORE:
            parts, self._parts = self._parts, []
            yield parts

    def _frame(self) -> tuple[int, bytes, bytes] | None:
        if len(self._bytes) < 2:
            return None
        flags = self._bytes[0]
        head = 9 if flags & _LONG else 2
        if len(self._bytes) < head:
            return None
        length = int.from_bytes(self._bytes[1:head], "big")
        if len(self._bytes) < head + length:
            return None
        frame = self._take(head + length)
        return flags, frame, frame[head:]

    def _take(self, length: int) -> bytes:
        taken, self._bytes = self._bytes[:length], self._bytes[length:]
        return taken


def framed(parts: Parts) -> bytes:
    """A message as it goes over the wire."""
    frames = []
    for number, part in enumerate(parts, 1):
        flags = _MORE * (number < len(parts)) | _LONG * (len(part) > 255)
        frames.append(bytes([flags]) + len(part).to_bytes(8 if flags & _LONG else 1, "big") + part)
    return b"".join(frames)


@dataclass(eq=False)
class Way:
    """One way of the traffic, through whatever connections there are."""

    #: What goes in place of a message.
    change: Callable[[Parts], Iterable[Parts]] = field(default=lambda parts: [parts])
    #: Bytes that came, held ones included.
    came: int = 0
    #: Messages that came, held ones included, if they are to be kept.
    seen: list[Parts] | None = None
    open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.open.set()


@dataclass(eq=False)
class _Connection:
    """Two sockets, and two threads for each way: what is held must not keep back what comes."""

    ways: dict[str, Way]
    sockets: dict[str, socket.socket]  #: by the way that is read from it
    writing: dict[str, threading.Lock] = field(default_factory=lambda: {UP: threading.Lock(), DOWN: threading.Lock()})
    is_half_reset: bool = False  #: one side was reset, and the other is not to know

    def start(self) -> None:
        for way in (UP, DOWN):
            came: queue.SimpleQueue[bytes | Parts | None] = queue.SimpleQueue()
            threading.Thread(target=self._take_in, args=(way, came), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(way, came), daemon=True).start()

    def sink(self, way: str) -> socket.socket:
        return self.sockets[DOWN if way == UP else UP]

    def _take_in(self, way: str, came: queue.SimpleQueue[bytes | Parts | None]) -> None:
        framing, rules = Framing(), self.ways[way]
        try:
            while data := self.sockets[way].recv(_AT_ONCE):
                rules.came += len(data)
                for piece in framing.split(data):
                    if rules.seen is not None and not isinstance(piece, bytes):
                        rules.seen.append(piece)
                    came.put(piece)
        except OSError:
            self._lose()
        finally:
            came.put(None)

    def _pass_on(self, way: str, came: queue.SimpleQueue[bytes | Parts | None]) -> None:
        rules = self.ways[way]
        try:
            while (piece := came.get()) is not None:
                rules.open.wait()
                for parts in [piece] if isinstance(piece, bytes) else rules.change(piece):
                    self.write(way, parts if isinstance(parts, bytes) else framed(parts))
            rules.open.wait()
            if not self.is_half_reset:
                self.sink(way).shutdown(socket.SHUT_WR)
        except OSError:
            self._lose()

    def _lose(self) -> None:
        """One side is gone without a good-bye: so is the other, unless it is not to know."""
        if not self.is_half_reset:
            self.reset(UP, DOWN)

    def write(self, way: str, data: bytes) -> None:
        with self.writing[way]:
            self.sink(way).sendall(data)

    def reset(self, *ways: str) -> None:
        """Reset the sides that these ways are read from."""
        self.is_half_reset = len(ways) == 1
        for way in ways:
            with contextlib.suppress(OSError):
                _reset(self.sockets[way])


def _reset(opened: socket.socket) -> None:
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RD)  # wakes the thread that reads it; the reset comes with the closing
    opened.close()


class Proxy:
    """Listens on a port of its own for who should have connected to `target`, which may be named later."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.ways = {UP: Way(), DOWN: Way()}
        self._connections: list[_Connection] = []
        self._cut = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except ConnectionError:  # it has hung up already
                continue
            except OSError:  # we listen no more
                return
            with contextlib.suppress(OSError):  # either end may hang up at any time
                self._join(client)

    def _join(self, client: socket.socket) -> None:
        host, _, port = self.target.removeprefix("tcp://").rpartition(":")
        with self._lock:
            if self._cut:
                _reset(client)
                return
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                _reset(client)
                return
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self.ways, {UP: client, DOWN: server})
            self._connections.append(connection)
            self.accepted += 1
            connection.start()

    # --- what networks do ---

    def cut(self) -> None:
        """Reset all connections, and each new one."""
        with self._lock:
            self._cut = True
        self.reset(UP, DOWN)

    def heal(self) -> None:
        """Undo `cut` and `hold`."""
        with self._lock:
            self._cut = False
        for way in self.ways.values():
            way.open.set()

    def hold(self, *ways: str) -> None:
        """Keep back all that goes there, on new connections as well, until `heal`."""
        for way in ways:
            self.ways[way].open.clear()

    def half_close(self, way: str) -> None:
        """Nothing more goes this way on the connections that there are; the other way stays."""
        for connection in self._alive():
            with contextlib.suppress(OSError):
                connection.sink(way).shutdown(socket.SHUT_WR)

    def reset(self, *ways: str) -> None:
        """Reset one side of each connection, or both: UP is who connected. The other side is not told."""
        for connection in self._alive():
            connection.reset(*ways)

    # --- what attackers do ---

    def inject(self, way: str, messages: Iterable[Parts]) -> None:
        """Send these once more, on the newest connection; some are lost if it is made anew meanwhile."""
        connection = self._alive()[-1]
        with contextlib.suppress(OSError):
            for parts in messages:
                connection.write(way, framed(parts))

    def _alive(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def close(self) -> None:
        """Listen no more, and end all."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
        self.reset(UP, DOWN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
