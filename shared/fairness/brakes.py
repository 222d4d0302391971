"""Back-pressure on connections that send faster than a server takes in, before their data fills its memory.

libzmq reads whatever comes and keeps it until Python asks, ten times as fast as Python asks; its own high-water mark
must not be used (see `shared.sockets`). So while messages are left over at the end of a turn, we look at how much each
connection has sent, which the kernel knows. A connection that has sent more than its share of what may wait gets a
packet filter in the kernel that drops everything. Its sender is not told; it retransmits later and ever more rarely, as
TCP does. Hanging up would not help, because the client would reconnect at once.

Rules: used in the thread that serves the ports. A connection is stopped only while messages are left over, and only if
it sent much and many of its messages were useless. Useless messages are counted for as long as some are left over, and
not by the second: the slower a server takes them in, the fewer of each peer it sees in a second, and the sooner they
pile up. Each time that a connection is stopped again, the stop is twice as long. Connections resume one by one: each
only when the previous one has been heard again (which takes seconds, because its kernel retries ever more rarely) and
nothing is left over, because some hundred kilobytes of each come at once. A connection stopped for longer than clients
tolerate is hung up on: its client has left, and we do not hear of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import zmq

from shared.fairness.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Brakes", "drop_packets", "let_packets_in", "too_fast"]

_T = TypeVar("_T")

#: Bytes that all connections together may have sent and we not taken in; one alone may take half. Small messages need
#: some four times as much memory.
_MOST_BYTES = 2**20
#: What each connection may always send: as a burst, and per second.
_FREE_BYTES, _FREE_BYTES_A_SECOND = 64 * 1024, 64 * 1024

#: Interval between looks while messages are left over. A look at 30 connections takes 0.2 ms; looks never take more
#: than a tenth of the processor's time.
_LOOK_S = 0.01
_LOOK_SHARE = 0.1

#: Useless messages that a connection may send while messages are left over. A trainer that others' floods hold up for
#: seconds sends fewer.
_MOST_USELESS = 32

_FIRST_STOP_S, _LONGEST_STOP_S = 0.25, 8.0
#: Longest wait for data from a resumed connection before the next may resume.
_SILENCE_S = 1.0

#: Clients give a server up after 5 s without an answer to their heartbeats, and reconnect; so a connection that was
#: stopped for longer is hung up on. Hang-ups are spaced, because clients that are still there come back at once.
_GIVEN_UP_S = 6.0
_BETWEEN_S = 0.1

#: A connection not stopped for this long starts with the first stop again.
_FORGET_S = 30.0

#: <linux/tcp.h>: offset of `tcpi_bytes_received` in `tcp_info`.
_BYTES_RECEIVED = struct.Struct("=128xQ")
#: <asm/socket.h>, and a one-instruction BPF program that drops every packet: return 0 bytes (<linux/filter.h>).
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_KEEP_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)


def drop_packets(opened: socket.socket) -> None:
    """Make the kernel drop all packets to a socket; do nothing if it refuses, as one without packet filters does."""
    program = ctypes.create_string_buffer(_KEEP_NOTHING, len(_KEEP_NOTHING))
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def let_packets_in(opened: socket.socket) -> None:
    """Undo `drop_packets`; do nothing if the socket has no such filter."""
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def too_fast(sent: Mapping[int, float]) -> list[int]:
    """Return the connections that exceed their share, maybe none, given how many bytes each may still have waiting."""
    waiting: Budget[int] = Budget(_MOST_BYTES)
    for fd, nbytes in sent.items():
        waiting.take(fd, int(nbytes))
    return [fd for fd, nbytes in sent.items() if nbytes > _FREE_BYTES and not waiting.has_room(fd)]


class Brakes:
    """Stops and resumes connections; call `turn` at the end of each turn of the loop.

    `connections` lists our connections as file descriptors.
    """

    def __init__(self, connections: Callable[[], Iterable[int]]) -> None:
        #: Number of stops so far.
        self.stops = 0
        self._connections = connections
        #: Bytes received by connection: at the start of the backlog plus the allowance since, and at the last look.
        self._before: dict[int, float] = {}
        self._received: dict[int, float] = {}
        self._is_behind = False
        #: Useless messages by connection since nothing was left over.
        self._useless: Counter[int] = Counter()
        self._looked_s = self._due_s = 0.0
        #: By connection: the end of its stop; its inode, because libzmq may close it and the descriptor be reused
        #: meanwhile; and the time and length of its last stop.
        self._stopped: dict[int, float] = {}
        self._inodes: dict[int, int] = {}
        self._last: dict[int, tuple[float, float]] = {}
        #: The connection resumed last, the bytes it had received then, and until when the others wait for it.
        self._freed = -1
        self._freed_bytes: float | None = None
        self._wait_until_s = 0.0

    def note_useless(self, frame: zmq.Frame) -> None:
        """Count a frame as useless for its connection: only connections with many useless frames may be stopped.

        Do nothing if libzmq does not know the frame's descriptor.
        """
        with contextlib.suppress(zmq.ZMQError, ValueError):  # libzmq does not know its descriptor
            self._useless[int(frame.get("__fd"))] += 1

    def are_on(self) -> bool:
        """Return whether any connection is stopped; turns must then come soon, to resume it."""
        return bool(self._stopped)

    def turn(self, now_s: float, *, is_behind: bool) -> None:
        """Stop connections that are too fast while messages are left over, and resume one whose stop is over.

        While messages are left over, connections are looked at only at intervals, and only those that sent many useless
        messages are stopped. A connection that was stopped for very long is hung up on instead of resumed.
        """
        self._let_go(now_s, is_behind=is_behind)
        if not is_behind:
            self._is_behind = False
            self._useless.clear()
        elif not self._is_behind or now_s >= self._due_s:
            began_s = time.thread_time()
            self._look(now_s)
            self._due_s = now_s + max(_LOOK_S, (time.thread_time() - began_s) / _LOOK_SHARE)

    def _look(self, now_s: float) -> None:
        """Compare what each connection has sent with its share, and stop those that exceed it with useless messages.

        Count from now on if the process was not behind before. A connection whose counter cannot be read is left out.
        """
        received = {fd: nbytes for fd in self._connections() if (nbytes := _received(fd)) is not None}
        self._forget_ended(received)
        if not self._is_behind:
            self._is_behind, self._looked_s, self._before = True, now_s, dict(received)
        allowed = (now_s - self._looked_s) * _FREE_BYTES_A_SECOND
        self._looked_s, self._received = now_s, received
        # The allowance raises what counts as taken in, but never above what was received: unused time is not saved up.
        self._before = {fd: min(nbytes, self._before.get(fd, 0.0) + allowed) for fd, nbytes in received.items()}
        for fd in too_fast({fd: nbytes - self._before[fd] for fd, nbytes in received.items()}):
            if self._useless[fd] > _MOST_USELESS:  # a peer that sends much, but of use, is only busy
                self._stop(fd, now_s)
                self._before[fd] = received[fd]

    def _forget_ended(self, received: Mapping[int, float]) -> None:
        """Forget ended connections.

        A descriptor that has received less than before belongs to a new connection, so its old one has ended too.
        """
        for fd in [fd for fd, nbytes in self._received.items() if received.get(fd, -1.0) < nbytes]:
            for table in (self._before, self._stopped, self._inodes, self._last):
                table.pop(fd, None)

    def _stop(self, fd: int, now_s: float) -> None:
        """Stop a connection, twice as long as the last time if that is recent, but 8 s at most.

        Do nothing if it is stopped already.
        """
        if fd in self._stopped:
            return
        self.stops += 1
        at_s, pause_s = self._last.get(fd, (-_FORGET_S, 0.0))
        pause_s = min(2 * pause_s, _LONGEST_STOP_S) if now_s - at_s < _FORGET_S else _FIRST_STOP_S
        self._last[fd], self._stopped[fd] = (now_s, pause_s), now_s + pause_s
        # libzmq may close the descriptor at any moment, and the next connection get its number: it would pay for this.
        self._inodes[fd] = _inode(fd)
        _with_socket(fd, drop_packets)

    def _let_go(self, now_s: float, *, is_behind: bool) -> None:
        """Resume the connection whose stop ends first; while messages are left over, only long after that end.

        Wait if nothing has come yet from the connection resumed last, or shortly after a hang-up. A connection that was
        stopped for longer than clients tolerate is hung up on instead.
        """
        fd = min(self._stopped, key=self._stopped.__getitem__, default=-1)
        if fd < 0 or now_s < self._stopped[fd] + (_LONGEST_STOP_S if is_behind else 0.0):
            return
        # One at a time: wait while nothing has come from the connection resumed last, or shortly after a hang-up.
        if now_s < self._wait_until_s and (self._freed < 0 or _received(self._freed) == self._freed_bytes):
            return
        del self._stopped[fd]
        if self._inodes.pop(fd) != _inode(fd):  # it has ended, and the descriptor was reused
            return
        # Its client has given up and reconnected by then; of that this side hears nothing through its packet filter.
        if now_s >= self._last[fd][0] + _GIVEN_UP_S:
            self._freed, self._freed_bytes, self._wait_until_s = -1, None, now_s + _BETWEEN_S
            _with_socket(fd, _hang_up)
        else:
            self._freed, self._freed_bytes, self._wait_until_s = fd, _received(fd), now_s + _SILENCE_S
            _with_socket(fd, let_packets_in)


def _with_socket(fd: int, do: Callable[[socket.socket], _T]) -> _T | None:
    """Return what `do` returns for a socket object of libzmq's descriptor.

    Return None if `do` or the descriptor fails with OSError, because libzmq has closed it. The object is detached
    afterwards: closing it would close libzmq's own descriptor.
    """
    with contextlib.suppress(OSError):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        try:
            return do(opened)
        finally:
            opened.detach()
    return None


def _inode(fd: int) -> int:
    """Return the inode of the socket behind a descriptor, or 0 if it is closed."""
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0


def _hang_up(opened: socket.socket) -> None:
    """Shut a connection down; libzmq then closes it, but still takes in what came before.

    Raise OSError if it is not connected any more.
    """
    opened.shutdown(socket.SHUT_RDWR)


def _received(fd: int) -> float | None:
    """Return the bytes that a connection has received, or None if it is closed or the kernel does not tell."""
    info = _with_socket(fd, _tcp_info)
    if info is None or len(info) != _BYTES_RECEIVED.size:  # an older kernel fills in less than was asked for
        return None
    return float(_BYTES_RECEIVED.unpack(info)[0])


def _tcp_info(opened: socket.socket) -> bytes:
    return opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
