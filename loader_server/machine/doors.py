"""The ports of a server: connections are counted, and enough descriptors stay free for the server's work.

Rules: made, used and closed in the server's thread. libzmq accepts connections until the process has no descriptor
left, and then no file can be opened either. So the doors are shut while too many descriptors are in use: the kernel
drops packets that would begin a connection, and clients retry by themselves. Open connections are left alone. libzmq
closes those whose handshake does not complete, so the doors open again. A connection that sends faster than the server
reads is stopped by the `brakes`, which learn at the end of each turn whether messages are left over.
"""

from __future__ import annotations

import os
import resource
import socket as posix
from collections import Counter
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import port_of
from shared.fairness.brakes import Brakes, drop_packets, let_packets_in
from shared.sockets import descriptors_by_port, read_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.logs import Log

__all__ = ["Doors"]

#: Events of a connection, and the names under which they are counted.
_CHANGES = {
    zmq.EVENT_ACCEPTED: "accepted",
    zmq.EVENT_ACCEPT_FAILED: "no_descriptor",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "admitted",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "not_understood",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "unknown_key",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "unfinished",
    zmq.EVENT_DISCONNECTED: "ended",
}

#: Shares of the descriptors at which the doors shut, and below which they open. While Python is busy, some hundreds
#: more connections may get in; a worker needs some fifty descriptors for its own work.
_SHUT, _OPEN = 5 / 8, 1 / 2

#: How often to check whether the doors can open again.
_LOOK_S = 0.2


class Doors:
    """Watcher of a process's ports; call `turn` in each turn of its loop."""

    def __init__(self, log: Log) -> None:
        #: Number of times that each event happened, by the port's name.
        self.changes: dict[str, Counter[str]] = {}
        #: Number of times that the doors were shut.
        self.times_shut = 0
        self._is_shut = False
        self._log = log
        #: The names of the watched ports, and the counts of the monitor of each.
        self._ports: dict[int, str] = {}
        self._monitors: dict[zmq.Socket[bytes], Counter[str]] = {}
        self._routers: list[zmq.Socket[bytes]] = []
        #: Duplicates of the listening sockets, on which the filter is set that drops packets.
        self._listeners: list[posix.socket] = []
        #: When to check next whether the doors can open again.
        self._look_s = 0.0
        #: Brakes for connections that send faster than we read.
        self.brakes = Brakes(self._list_connections)

    def watch(self, name: str, router: zmq.Socket[bytes]) -> None:
        """Watch a bound ROUTER, counting its connections by this name.

        Raise AssertionError if nothing in this process listens at its port, ValueError if the ROUTER is not bound to a
        port, or OSError if no descriptor is left to find its listening socket with.
        """
        port = port_of(router.getsockopt_string(zmq.LAST_ENDPOINT))
        self._ports[port] = name
        self._routers.append(router)
        self._listeners.append(_hold_listener(port))
        changes = self.changes[name] = Counter(dict.fromkeys(_CHANGES.values(), 0))
        self._monitors[router.get_monitor_socket(sum(_CHANGES))] = changes

    def monitors(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets on which libzmq reports connections that come and go, for the caller to poll."""
        return list(self._monitors)

    def _list_connections(self) -> list[int]:
        return [fd for fd, port in descriptors_by_port() if port in self._ports]

    def count_connections(self) -> dict[str, int]:
        """Return how many connections each port has, by its name; may be called from any thread.

        Raise OSError if no descriptor is left to list them with.
        """
        counts = Counter(port for _, port in descriptors_by_port())
        # Less the listening socket and our duplicate of it.
        return {name: counts[port] - 2 for port, name in self._ports.items()}

    def turn(self, now_s: float) -> None:
        """Count what happened at the ports, and shut or open the doors.

        Whether to do so is checked only if somebody connected or tried to or, while the doors are shut, every 0.2 s.
        """
        # All monitors are read before any is judged; `any` would stop at the first with news.
        news = [self._read(monitor, changes) for monitor, changes in self._monitors.items()]
        # Descriptors are counted only when somebody connected, since that lists all of them. Behind shut doors nobody
        # does, so time has to pass as well, or they would stay shut.
        if any(news) or (self._is_shut and now_s >= self._look_s):
            self._look_s = now_s + _LOOK_S
            self._judge()

    @staticmethod
    def _read(monitor: zmq.Socket[bytes], changes: Counter[str]) -> bool:
        """Count a monitor's events; return whether somebody connected or tried to."""
        before = changes["accepted"] + changes["no_descriptor"]
        for event in read_events(monitor):
            changes[_CHANGES[zmq.Event(event)]] += 1
        return changes["accepted"] + changes["no_descriptor"] > before

    def _judge(self) -> None:
        """Shut the doors if 5/8 of the descriptors are in use, or open them once less than half are.

        In between nothing changes.
        """
        # Between the two limits nothing changes, or the doors would shut and open with each connection.
        used, most = _count_descriptors()
        if not self._is_shut and used >= _SHUT * most:
            self._log.warning("too many connections: nobody is let in until some end", open_files=used, most=most)
            self.times_shut += 1
            self._set_filters(drop_packets)
        elif self._is_shut and used < _OPEN * most:
            self._log.info("connections are let in again", open_files=used, most=most)
            self._set_filters(let_packets_in)

    def _set_filters(self, change: Callable[[posix.socket], None]) -> None:
        self._is_shut = change is drop_packets
        for listener in self._listeners:
            change(listener)

    def close(self) -> None:
        """Stop watching; call this before the ROUTERs are closed."""
        for router in self._routers:
            router.disable_monitor()
        for monitor in self._monitors:
            monitor.close()
        for listener in self._listeners:
            listener.close()


def _hold_listener(port: int) -> posix.socket:
    """Return a duplicate of the socket on which libzmq listens at this port.

    Raise AssertionError if there is none, or OSError if no descriptor is left to find or duplicate it.
    """
    # libzmq does not hand out its listening socket, so it is found by its port. A duplicate is the same socket to the
    # kernel, so a filter that is set on it holds.
    for fd, at in descriptors_by_port():
        if at == port:
            return posix.socket(fileno=os.dup(fd))
    raise AssertionError(f"nobody listens at {port}")


def _count_descriptors() -> tuple[int, int]:
    """Return how many descriptors this process has open, and how many it may.

    Without a limit it may have 2**20. If none is left to count them with, all that it may have count as open.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most if most != resource.RLIM_INFINITY else 2**20
    try:
        return len(os.listdir("/proc/self/fd")), most  # noqa: PTH208
    except OSError:  # no descriptor is left to list them with
        return most, most
