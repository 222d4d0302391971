"""A stretch of network between two ends that can be held, let go and cut, each way alone."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import Self

__all__ = ["Relay"]

#: There is from who connects to whom it connects; back is the other way.
Way = Literal["there", "back"]


@dataclass(eq=False)
class _End:
    """One socket of a connection; what it has to send."""

    sock: socket.socket
    way: Way  # of what goes out here
    other: _End | None = None
    unsent: bytearray = field(default_factory=bytearray)


class Relay:
    """Passes on what comes to `endpoint`; held bytes wait, and go on with `let_go` or are lost with `cut`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        #: Bytes that came for each way, held ones included.
        self.came: dict[Way, int] = {"there": 0, "back": 0}
        self._held: frozenset[Way] = frozenset()
        self._ends: list[_End] = []
        self._orders: list[str] = []
        self._done = threading.Event()
        self._waking, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self, *ways: Way) -> None:
        """Pass nothing on these ways from now on, on connections to come neither."""
        self._order("hold " + " ".join(ways))

    def let_go(self) -> None:
        """Pass on what was held, and what comes."""
        self._order("hold ")

    def cut(self) -> None:
        """End all connections; what was held is lost."""
        self._order("cut")

    def close(self) -> None:
        """End."""
        self._order("end")
        self._thread.join(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _order(self, order: str) -> None:
        self._done.clear()
        self._orders.append(order)
        self._wake.send(b"!")
        assert self._done.wait(20)

    def _run(self) -> None:
        with contextlib.closing(self._listening), contextlib.closing(self._waking), contextlib.closing(self._wake):
            while self._turn():
                pass
            self._cut()

    def _turn(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._waking, selectors.EVENT_READ)
            selector.register(self._listening, selectors.EVENT_READ)
            for end in self._ends:
                writes = selectors.EVENT_WRITE if end.unsent and end.way not in self._held else 0
                selector.register(end.sock, selectors.EVENT_READ | writes, end)
            ready = selector.select()
        for key, events in ready:
            if key.fileobj is self._listening:
                self._accept()
            elif key.data in self._ends:
                self._pass(key.data, events)
        if any(key.fileobj is self._waking for key, _ in ready):
            self._waking.recv(64)
            return self._obey()
        return True

    def _obey(self) -> bool:
        goes_on = True
        for order in self._orders:
            if order.startswith("hold"):
                self._held = frozenset(order.split()[1:])  # type: ignore[arg-type]
            elif order == "cut":
                self._cut()
            else:
                goes_on = False
        self._orders.clear()
        self._done.set()
        return goes_on

    def _accept(self) -> None:
        near, _ = self._listening.accept()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        one, other = _End(near, "back"), _End(far, "there")
        one.other, other.other = other, one
        for end in (one, other):
            end.sock.setblocking(False)
        self._ends += [one, other]

    def _pass(self, end: _End, events: int) -> None:
        assert end.other is not None
        try:
            if events & selectors.EVENT_READ:
                data = end.sock.recv(2**16)
                if not data:
                    raise ConnectionResetError
                self.came[end.other.way] += len(data)
                end.other.unsent += data
            if events & selectors.EVENT_WRITE:
                del end.unsent[: end.sock.send(end.unsent)]
        except BlockingIOError:
            return
        except OSError:
            for gone in (end, end.other):
                gone.sock.close()
                self._ends.remove(gone)

    def _cut(self) -> None:
        for end in self._ends:
            end.sock.close()
        self._ends.clear()
