"""Connections that send faster than a server takes in are stopped for a while, before what they sent fills its memory.

libzmq reads whatever comes and keeps it until it is asked for, ten times as fast as Python asks, and its own limit of
what it keeps must not be used (see `shared.sockets`). So while messages are left over at the end of a turn, we look at
how much each connection has sent, which the kernel knows. One that has sent more than its share of what may wait has
its packets dropped by a filter in the kernel: its sender is not told, sends them again later, and then ever more
rarely, as TCP does. Hanging up would not help, because it would come back at once.

Rules: used in the thread that serves the ports. Nobody is stopped while all that came is taken in, nor whose messages
brought something nearer, nor who sent little. Useless messages are counted for as long as some are left over, and not
by the second: the slower a server takes them in, the fewer of each peer it sees in a second, and the sooner they pile
up. Each time that a connection has to be stopped again it is stopped twice as long.
Connections go on one by one, each only once the one before has been heard of again (which takes seconds, because its
kernel tries ever more rarely) and nothing is left over, because some hundred kilobytes of each come at once. One that
has been stopped for longer than clients bear is hung up on: its client has left, of which we hear nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections import Counter
from typing import TYPE_CHECKING

import zmq

from shared.fairness.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Brakes", "drop_packets", "let_packets_in", "too_fast"]

#: How much all connections together may have sent that is not taken in; one alone may take half. Memory for small
#: messages is some four times as much.
_MOST_BYTES = 2**20
#: What each connection may send in any case: at once, and by the second.
_FREE_BYTES, _FREE_BYTES_A_SECOND = 64 * 1024, 64 * 1024

#: How often to look while messages are left over. A look at 30 connections takes 0.2 ms; looks never take more than a
#: tenth of the processor's time.
_LOOK_S = 0.01
_LOOK_SHARE = 0.1

#: How many useless messages a connection may send while messages are left over. Others' floods may hold up a trainer
#: for seconds, in which it says fewer.
_MOST_USELESS = 32

_FIRST_STOP_S, _LONGEST_STOP_S = 0.25, 8.0
#: How long to wait at most to hear of one that goes on before the next may.
_SILENCE_S = 1.0

#: Clients take a server that does not answer their heartbeats for gone after 5 s, and connect anew. How soon after one
#: hanging up the next may follow, because clients that are still there come back at once.
_GIVEN_UP_S = 6.0
_BETWEEN_S = 0.1

#: Whoever has not been stopped for so long is like new.
_FORGET_S = 30.0

#: <linux/tcp.h>: where `tcp_info` has the number of bytes received.
_BYTES_RECEIVED = struct.Struct("=128xQ")
#: <asm/socket.h>, and a program for the kernel's packet filter that drops everything (<linux/filter.h>).
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_KEEP_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)


def drop_packets(opened: socket.socket) -> None:
    """Have the kernel drop what comes to a socket; does nothing where it has no packet filters."""
    program = ctypes.create_string_buffer(_KEEP_NOTHING, len(_KEEP_NOTHING))
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def let_packets_in(opened: socket.socket) -> None:
    """Undo `drop_packets`."""
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def too_fast(sent: Mapping[int, float]) -> list[int]:
    """Return who has sent more than its share, given how many bytes of each may still wait to be taken in."""
    waiting: Budget[int] = Budget(_MOST_BYTES)
    for fd, nbytes in sent.items():
        waiting.take(fd, int(nbytes))
    return [fd for fd, nbytes in sent.items() if nbytes > _FREE_BYTES and not waiting.has_room(fd)]


class Brakes:
    """Call `turn` at the end of each turn of the loop; `connections` lists our connections, as descriptors."""

    def __init__(self, connections: Callable[[], Iterable[int]]) -> None:
        #: How often a connection was stopped.
        self.stops = 0
        self._connections = connections
        #: How much each had received when the backlog began, or was allowed since, and at the last look.
        self._before: dict[int, float] = {}
        self._received: dict[int, float] = {}
        self._is_behind = False
        #: Useless messages of each since all was taken in last.
        self._useless: Counter[int] = Counter()
        self._looked_s = self._due_s = 0.0
        #: Until when each is stopped, which socket it is, and when it was stopped last and for how long.
        self._stopped: dict[int, float] = {}
        self._inodes: dict[int, int] = {}
        self._last: dict[int, tuple[float, float]] = {}
        #: Who was let go on last, how much it had received then, and until when the others wait for it.
        self._freed = -1
        self._had: float | None = None
        self._wait_until_s = 0.0

    def note_useless(self, frame: zmq.Frame) -> None:
        """Note that this frame brought nothing nearer: only a connection with many of them may be stopped."""
        with contextlib.suppress(zmq.ZMQError, ValueError):  # libzmq does not say on which it came
            self._useless[int(frame.get("__fd"))] += 1

    def are_on(self) -> bool:
        """Return whether a connection is stopped: turns have to come soon, to let it go on."""
        return bool(self._stopped)

    def turn(self, now_s: float, *, is_behind: bool) -> None:
        """Stop who is too fast while messages are left over, and let go on who was stopped long enough."""
        self._let_go(now_s, is_behind=is_behind)
        if not is_behind:
            self._is_behind = False
            self._useless.clear()
        elif not self._is_behind or now_s >= self._due_s:
            began_s = time.thread_time()
            self._look(now_s)
            self._due_s = now_s + max(_LOOK_S, (time.thread_time() - began_s) / _LOOK_SHARE)

    def _look(self, now_s: float) -> None:
        received = {fd: nbytes for fd in self._connections() if (nbytes := _received(fd)) is not None}
        self._forget_ended(received)
        if not self._is_behind:
            self._is_behind, self._looked_s, self._before = True, now_s, dict(received)
        allowed = (now_s - self._looked_s) * _FREE_BYTES_A_SECOND
        self._looked_s, self._received = now_s, received
        self._before = {fd: min(nbytes, self._before.get(fd, 0.0) + allowed) for fd, nbytes in received.items()}
        for fd in too_fast({fd: nbytes - self._before[fd] for fd, nbytes in received.items()}):
            if self._useless[fd] > _MOST_USELESS:
                self._stop(fd, now_s)
                self._before[fd] = received[fd]

    def _forget_ended(self, received: Mapping[int, float]) -> None:
        """Forget connections that ended, also those whose descriptor belongs to a new one, which has received less."""
        for fd in [fd for fd, nbytes in self._received.items() if received.get(fd, -1.0) < nbytes]:
            for known in (self._before, self._stopped, self._inodes, self._last):
                known.pop(fd, None)

    def _stop(self, fd: int, now_s: float) -> None:
        if fd in self._stopped:
            return
        self.stops += 1
        at_s, pause_s = self._last.get(fd, (-_FORGET_S, 0.0))
        pause_s = min(2 * pause_s, _LONGEST_STOP_S) if now_s - at_s < _FORGET_S else _FIRST_STOP_S
        self._last[fd], self._stopped[fd] = (now_s, pause_s), now_s + pause_s
        self._inodes[fd] = _inode(fd)
        _with_socket(fd, drop_packets)

    def _let_go(self, now_s: float, *, is_behind: bool) -> None:
        """Let the one go on that has been stopped longest; while messages are left over only after a long time."""
        fd = min(self._stopped, key=self._stopped.__getitem__, default=-1)
        if fd < 0 or now_s < self._stopped[fd] + (_LONGEST_STOP_S if is_behind else 0.0):
            return
        if now_s < self._wait_until_s and (self._freed < 0 or _received(self._freed) == self._had):
            return
        del self._stopped[fd]
        if self._inodes.pop(fd) != _inode(fd):  # it has ended, and the descriptor is another's
            return
        if now_s >= self._last[fd][0] + _GIVEN_UP_S:
            self._freed, self._had, self._wait_until_s = -1, None, now_s + _BETWEEN_S
            _with_socket(fd, _hang_up)
        else:
            self._freed, self._had, self._wait_until_s = fd, _received(fd), now_s + _SILENCE_S
            _with_socket(fd, let_packets_in)


def _with_socket(fd: int, do: Callable[[socket.socket], object]) -> None:
    """Do something with a connection of libzmq's, which may have closed it by now."""
    with contextlib.suppress(OSError):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        try:
            do(opened)
        finally:
            opened.detach()


def _inode(fd: int) -> int:
    """Return the number of the socket that a descriptor belongs to; 0 if it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def _hang_up(opened: socket.socket) -> None:
    """End a connection, which libzmq then closes; what came before is still taken in."""
    opened.shutdown(socket.SHUT_RDWR)


def _received(fd: int) -> float | None:
    """Return how many bytes a connection has received; None if it is none any more, or the kernel does not say."""
    found: list[float] = []

    def look(opened: socket.socket) -> None:
        told = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
        if len(told) == _BYTES_RECEIVED.size:
            found.append(float(_BYTES_RECEIVED.unpack(told)[0]))

    _with_socket(fd, look)
    return found[0] if found else None
