"""Sockets as ZeroMQ has them: a DEALER with one peer (`Port`), a ROUTER (`Server`), and TCP connections in between.

Rules: one connection keeps its order; where it is cut, what is on it is lost or still arrives, and each side learns of
it in its own time, or late by the heartbeats of libzmq. A DEALER takes nothing while it has no connection, and makes
the next one by itself. What a DEALER had received before the cut may be read after it, among what comes by the next
connection; a ROUTER reads nothing of an old connection once the same peer has a new one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.simulation.process import Process
    from tests.support.simulation.scheduler import Scheduler

__all__ = ["Network", "Port", "Server", "Wire"]

#: libzmq: pauses between attempts to connect, and when it gives up a connection on which nothing comes.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
HEARTBEAT_TIMEOUT_S, HEARTBEAT_TTL_S = 5.0, 10.0

_NEVER_S = float("inf")


class Wire:
    """One TCP connection."""

    __slots__ = (
        *("dead_down", "dead_up", "delay_s", "due_down_s", "due_up_s", "held_down", "held_up", "network", "port"),
        *("server", "socket"),
    )

    def __init__(self, network: Network, port: Port, server: Server, delay_s: float) -> None:
        self.network = network
        self.port = port
        #: The client's socket that it belongs to.
        self.socket = port.socket
        self.server = server
        self.delay_s = delay_s
        #: Nothing arrives any more: up is to the server.
        self.dead_up = self.dead_down = False
        self.due_up_s = self.due_down_s = 0.0
        #: What waits for the way to be free; None: it is free.
        self.held_up: deque[Any] | None = None
        self.held_down: deque[Any] | None = None

    def send_up(self, message: Any) -> None:
        network = self.network
        scheduler = network.scheduler
        due_s = max(self.due_up_s, scheduler.now_s + network.delay_s(self.delay_s))
        self.due_up_s = due_s
        scheduler.at(due_s, self._arrive_up, message)
        if network.doubles and scheduler.chance(network.doubles):
            scheduler.at(due_s, self._arrive_up, message)

    def send_down(self, message: Any) -> None:
        if self.port.wire is not self:
            return  # the client has given it up, and the server does not know yet
        network = self.network
        scheduler = network.scheduler
        due_s = max(self.due_down_s, scheduler.now_s + network.delay_s(self.delay_s))
        self.due_down_s = due_s
        scheduler.at(due_s, self._arrive_down, message)
        if network.doubles and scheduler.chance(network.doubles):
            scheduler.at(due_s, self._arrive_down, message)

    def _arrive_up(self, message: Any) -> None:
        if self.dead_up:
            return
        if self.held_up is not None:
            self.held_up.append(message)
            return
        process = self.server.process
        process.call(self._read_up, message)

    def _read_up(self, message: Any) -> None:
        if not self.dead_up:
            self.server.process.receive(self.port.identity, message)

    def _arrive_down(self, message: Any) -> None:
        port = self.port
        if self.dead_down or port.socket != self.socket:
            return
        if self.held_down is not None:
            self.held_down.append(message)
        else:
            port.take_in(self, message)

    def hold(self, *, up: bool, down: bool) -> None:
        """Nothing gets through for now."""
        if up and self.held_up is None:
            self.held_up = deque()
        if down and self.held_down is None:
            self.held_down = deque()

    def free(self) -> None:
        """What waited gets through, before anything that is still on its way."""
        held_up, self.held_up = self.held_up or (), None
        held_down, self.held_down = self.held_down or (), None
        for message in held_up:
            self._arrive_up(message)
        for message in held_down:
            self._arrive_down(message)

    def lose_server(self) -> None:
        """The server's end is gone, and what it did not read."""
        self.dead_up = True
        self.server.forget(self)

    def lose_client(self) -> None:
        """The client's end is gone, and what did not arrive."""
        if self.port.wire is self:
            self.port.lose()


class Port:
    """A client's DEALER. Its process reads `news` (up: true) and `messages` when it is notified."""

    def __init__(self, network: Network, process: Process, endpoint: str, identity: bytes) -> None:
        self.network = network
        self.process = process
        self.endpoint = endpoint
        self.identity = identity
        #: Counts the sockets that it has had, since each loses what the one before received.
        self.socket = 0
        self.wire: Wire | None = None
        self.news: list[bool] = []
        self._messages: list[tuple[Wire, Any]] = []
        self._pause_s = _FIRST_PAUSE_S
        self._begin(0.0)

    def send(self, message: Any) -> bool:
        """Send it, if there is a connection."""
        if self.wire is None:
            return False
        self.wire.send_up(message)
        return True

    def take_in(self, wire: Wire, message: Any) -> None:
        """Something arrived."""
        self._messages.append((wire, message))
        self.process.notify(self)

    def read(self) -> list[Any]:
        """What arrived; what came by several connections is read in turn, that of each in its order."""
        arrived, self._messages = self._messages, []
        if all(wire is arrived[0][0] for wire, _ in arrived):
            return [message for _, message in arrived]
        by_wire: dict[int, deque[Any]] = {}
        for wire, message in arrived:
            by_wire.setdefault(id(wire), deque()).append(message)
        queues, read = list(by_wire.values()), []
        while queues:
            queue = self.network.scheduler.random.choice(queues)
            read.append(queue.popleft())
            queues = [waiting for waiting in queues if waiting]
        return read

    # --- connections ---

    def _begin(self, pause_s: float) -> None:
        self.network.scheduler.after(pause_s, self._connect, self.socket)

    def _connect(self, socket: int) -> None:
        if socket != self.socket or self.wire is not None or not self.process.alive:
            return
        server = self.network.servers.get(self.endpoint)
        delay_s = self.network.path_s(self.process, server) if server is not None else 0.0
        if server is None or not (server.process.answers and self.process.answers) or delay_s < 0:
            self._begin(self._pause_s * self.network.scheduler.between(1.0, 1.2))
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return
        self.network.scheduler.after(2 * delay_s, self._come_up, socket, server)

    def _come_up(self, socket: int, server: Server) -> None:
        """The handshake is over: both sides are there."""
        if socket != self.socket or self.wire is not None or not self.process.alive:
            return
        delay_s = self.network.path_s(self.process, server)
        if not (server.process.answers and self.process.answers) or delay_s < 0:
            self._begin(_FIRST_PAUSE_S)
            return
        self._pause_s = _FIRST_PAUSE_S
        self.wire = Wire(self.network, self, server, delay_s)
        server.take_in(self.identity, self.wire)
        self.network.wires.append(self.wire)
        self.news.append(True)
        self.process.notify(self)

    def lose(self) -> None:
        """The connection is gone; the next one is begun."""
        if self.wire is None:
            return
        self.wire = None
        self.news.append(False)
        self.process.notify(self)
        self._begin(_FIRST_PAUSE_S * self.network.scheduler.between(1.0, 1.5))

    def renew(self) -> None:
        """Another socket under the same identity; nobody learns of it, and what was not read is gone."""
        self.close()
        self._pause_s = _FIRST_PAUSE_S
        self._begin(0.0)

    def close(self) -> None:
        """Hang up."""
        wire, self.wire = self.wire, None
        self.socket += 1
        self._messages.clear()
        self.news.clear()
        if wire is not None:
            self.network.hang_up(wire)


class Server:
    """A process's ROUTER: it reaches those who are connected, by their identity."""

    def __init__(self, network: Network, process: Process, endpoint: str) -> None:
        self.process = process
        self.network = network
        self.endpoint = endpoint
        self.wires: dict[bytes, Wire] = {}
        network.servers[endpoint] = self

    def send(self, identity: bytes, message: Any) -> bool:
        """Send it, if the peer is connected as far as is known here."""
        wire = self.wires.get(identity)
        if wire is None:
            return False
        wire.send_down(message)
        return True

    def take_in(self, identity: bytes, wire: Wire) -> None:
        """A connection stands; one that the same peer had before is read no more."""
        old = self.wires.get(identity)
        if old is not None:
            old.dead_up = True
        for other in self.network.wires:
            if other.server is self and other.port.identity == identity:
                other.dead_up = True
        self.wires[identity] = wire

    def forget(self, wire: Wire) -> None:
        """A connection is gone."""
        if self.wires.get(wire.port.identity) is wire:
            del self.wires[wire.port.identity]


class Network:
    """Which way is open, how long it takes, and all connections."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.servers: dict[str, Server] = {}
        self.wires: list[Wire] = []
        #: How often a frame comes twice.
        self.doubles = 0.0
        #: How much longer a frame may take than the way is long.
        self.jitter = 3.0
        #: Seconds between processes of one host, and of two.
        self.near_s, self.far_s = 0.0002, 0.001
        #: Places that cannot reach each other: (client, server).
        self._cut_off: dict[tuple[str, str], int] = {}
        self._joined_s: dict[tuple[str, str], float] = {}
        self.host_of: dict[str, str] = {}

    def delay_s(self, way_s: float) -> float:
        """How long this frame takes."""
        return way_s * (1.0 + self.jitter * self.scheduler.random.random())

    def path_s(self, client: Process, server: Server) -> float:
        """How long the way is; below zero: there is none."""
        place = server.process.name
        if (client.name, place) in self._cut_off:
            return -1.0
        near = self.host_of.get(client.name) == self.host_of.get(place)
        return self.near_s if near else self.far_s

    def are_joined_since(self, client: str, server: str) -> float:
        """Since when the way is open."""
        return _NEVER_S if (client, server) in self._cut_off else self._joined_s.get((client, server), 0.0)

    def between(self, client: str, server: str) -> list[Wire]:
        """The connections between two places."""
        return [wire for wire in self.wires if wire.port.process.name == client and wire.server.process.name == server]

    def forget_dead(self) -> None:
        """Connections that carry nothing any more."""
        self.wires = [wire for wire in self.wires if not (wire.dead_up and wire.port.wire is not wire)]

    # --- faults ---

    def cut_off(self, client: str, server: str, *, up: bool = True, down: bool = True) -> None:
        """Nothing gets through between two places, or only one way; libzmq notices in the end."""
        key = (client, server)
        self._cut_off[key] = self._cut_off.get(key, 0) + 1
        for wire in self.between(client, server):
            wire.hold(up=up, down=down)
            self.watch(wire)

    def rejoin(self, client: str, server: str) -> None:
        """The way is open again; what was not given up meanwhile arrives."""
        if self._cut_off.pop((client, server), None) is not None:
            self._joined_s[client, server] = self.scheduler.now_s
            for wire in self.between(client, server):
                wire.free()

    def rejoin_all(self) -> None:
        """All ways are open again."""
        for client, server in list(self._cut_off):
            self.rejoin(client, server)

    def watch(self, wire: Wire) -> None:
        """libzmq on either side gives the connection up unless it is heard again in time."""
        between = self.scheduler.between
        self.scheduler.after(between(HEARTBEAT_TIMEOUT_S, HEARTBEAT_TIMEOUT_S + 1), self._client_gives_up, wire)
        self.scheduler.after(between(HEARTBEAT_TTL_S, HEARTBEAT_TTL_S + 1), self._server_gives_up, wire)

    def _client_gives_up(self, wire: Wire) -> None:
        if wire.held_up is None and wire.held_down is None and wire.server.process.answers and not wire.dead_up:
            return
        if wire.port.process.answers:
            wire.dead_down = True
            wire.lose_client()

    def _server_gives_up(self, wire: Wire) -> None:
        held = wire.held_up is not None or wire.held_down is not None
        if wire.server.process.answers and (held or not wire.port.process.answers or wire.port.wire is not wire):
            wire.lose_server()

    def cut(self, wire: Wire, *, client_s: float, server_s: float, up_lost: bool, down_lost: bool) -> None:
        """The connection breaks; each side learns of it after so long."""
        if up_lost:
            wire.dead_up = True
        if down_lost:
            wire.dead_down = True
        self.scheduler.after(client_s, wire.port.process.call_threads, wire.lose_client)
        self.scheduler.after(server_s, wire.server.process.call_threads, wire.lose_server)

    def hang_up(self, wire: Wire) -> None:
        """The client closed its socket: what it sent still arrives, if anything gets through, then the server knows."""
        wire.dead_down = True
        if wire.held_up is None:
            self.scheduler.at(max(wire.due_up_s, self.scheduler.now_s) + wire.delay_s, self._hung_up, wire)

    def _hung_up(self, wire: Wire) -> None:
        wire.server.process.call(wire.lose_server)

    def kill(self, process: Process, *, silently: bool) -> None:
        """All connections of a process that died: its peers get notice, or have to find out."""
        for wire in self.wires:
            if wire.server.process is process:
                wire.dead_up = True
                wire.dead_down = wire.dead_down or self.scheduler.chance(0.5)
                pause_s = HEARTBEAT_TIMEOUT_S if silently or wire.held_down is not None else 2 * wire.delay_s
                self.scheduler.after(pause_s, wire.port.process.call_threads, wire.lose_client)
            elif wire.port.process is process:
                pause_s = HEARTBEAT_TTL_S if silently or wire.held_up is not None else 2 * wire.delay_s
                self.scheduler.after(pause_s, wire.server.process.call_threads, wire.lose_server)
