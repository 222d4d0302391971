"""All of a trainer's connections to workers: carries out what the core orders, and reports what came of it.

Rules: used in the receive thread only. Nothing is decided here. A payload is written into its slot only when the core
says so, and checked before it counts: by its digest if it came as a frame or `verify` is set, by its seal if it is
sealed. Poll registrations follow the sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from shared.errors import LostError, StokerError
from shared.hashing import digest64
from shared.logs import Log
from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.network.frame_memory import keep_in_huge_pages
from trainer_client.network.worker_connection import WorkerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.keys import ClientKeys
    from shared.memory import SlotMemory
    from trainer_client.core import instructions as i
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.stream_spec import StreamSpec

__all__ = ["WorkerConnections", "WorkerConnectionsParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConnectionsParts:
    """What all connections need."""

    context: zmq.Context[zmq.Socket[bytes]]
    poller: zmq.Poller
    keys: ClientKeys | None
    settings: CoreSettings
    spec: StreamSpec
    memory: SlotMemory


class WorkerConnections:
    """Connections, by the id that the core gave them."""

    def __init__(self, parts: WorkerConnectionsParts) -> None:
        self._parts = parts
        self._spec = parts.spec
        self._memory = parts.memory
        self._connections: dict[int, WorkerConnection] = {}
        #: Polled sockets, by connection.
        self._polled: dict[int, list[zmq.Socket[bytes]]] = {}
        self._by_socket: dict[zmq.Socket[bytes], int] = {}
        #: Ids of those with something to send.
        self._spoken_to: set[int] = set()
        self._garbage = self._fallbacks = 0
        self._log = Log("trainer", stream=parts.spec.stream)

    def __len__(self) -> int:
        return len(self._connections)

    # --- making and ending ---

    def open(self, order: i.Open) -> Iterator[e.Event]:
        """Connect."""
        try:
            connection = WorkerConnection(self._parts.context, order.endpoint, self._parts.keys)
        except (StokerError, zmq.ZMQError) as error:
            yield e.ConnectionFailed(order.connection_id, _unreachable(order.endpoint, error))
            return
        self._connections[order.connection_id] = connection
        self._poll(order.connection_id)

    def close(self, order: i.Close) -> Iterator[e.Event]:
        """Hang up."""
        self._drop(order.connection_id)
        yield from ()

    def _drop(self, connection_id: int) -> None:
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self._forget_sockets(connection_id)
            self._spoken_to.discard(connection_id)
            self._garbage += connection.count_garbage()
            self._fallbacks += connection.count_fallbacks()
            connection.close()

    def renew(self, order: i.Renew) -> Iterator[e.Event]:
        """Replace a connection."""
        connection = self._connections[order.connection_id]
        self._forget_sockets(order.connection_id)
        try:
            connection.renew()
        except zmq.ZMQError as error:  # no descriptor left, say; the core will order it again
            self._log.warning(
                "connection to a worker cannot be made anew", worker=connection.endpoint, error=str(error)
            )
        except StokerError as error:
            self._drop(order.connection_id)
            yield e.ConnectionFailed(order.connection_id, error)
            return
        self._poll(order.connection_id)

    def _poll(self, connection_id: int) -> None:
        """Register its current sockets; they change when it is replaced."""
        sockets = self._connections[connection_id].sockets()
        if self._polled.get(connection_id) == sockets:
            return
        self._forget_sockets(connection_id)
        self._polled[connection_id] = sockets
        for socket in sockets:
            self._by_socket[socket] = connection_id
            self._parts.poller.register(socket, zmq.POLLIN)

    def _forget_sockets(self, connection_id: int) -> None:
        for socket in self._polled.pop(connection_id, ()):
            del self._by_socket[socket]
            self._parts.poller.unregister(socket)

    # --- what comes ---

    def read(self, ready: set[object], now_s: float) -> Iterator[e.Event]:
        """Yield what workers said, and what happened to connections."""
        for connection_id in sorted({self._by_socket[one] for one in ready if one in self._by_socket}):
            connection = self._connections[connection_id]
            if connection.monitor in ready:
                for up in connection.read_changes():
                    yield e.ConnectionUp(connection_id) if up else e.ConnectionDown(connection_id)
            if connection.sealed is not None and connection.sealed.socket in ready:
                for message, payload in connection.read_sealed(now_s):
                    yield e.WorkerSaid(connection_id, message, payload)
            if connection.socket in ready:
                for message, raw in connection.read(now_s):
                    yield e.WorkerSaid(connection_id, message, self._look_at(connection, message, raw))
                self._poll(connection_id)
        if self._parts.keys is not None:
            yield from self._read_late(now_s)

    def _read_late(self, now_s: float) -> Iterator[e.Event]:
        for connection_id, connection in self._connections.items():
            for message, _ in connection.read_late(now_s, self._spec.heartbeat_timeout_s):
                yield e.WorkerSaid(connection_id, message)
                self._poll(connection_id)

    def _look_at(self, connection: WorkerConnection, message: m.Message, payload: object) -> object:
        """The payload; for a Welcome, whether the worker really holds the lock that it says it does."""
        if isinstance(message, m.Welcome):
            return message.shared and self._memory.is_locked(connection.lock_byte)
        return payload

    # --- what is said ---

    def greet(self, order: i.Greet) -> Iterator[e.Event]:
        """Say Hello."""
        connection, settings = self._connections[order.connection_id], self._parts.settings
        connection.lock_byte = order.lock_byte
        hello = m.Hello(
            job=self._spec.job,
            stream=self._spec.stream,
            incarnation=settings.incarnation,
            shared=self._memory.offer(order.lock_byte) if settings.shared_memory else None,
            verify=settings.verify,
            yields=settings.verifies,
            seal=connection.sealed.make_seal() if connection.sealed is not None else None,
        )
        connection.queue(hello)
        if not connection.flush():
            yield e.GreetingFailed(order.connection_id)

    def send(self, order: i.ToWorker) -> Iterator[e.Event]:
        """Queue a message for the next `flush`."""
        self._connections[order.connection_id].queue(order.message)
        self._spoken_to.add(order.connection_id)
        yield from ()

    def flush(self) -> Iterator[e.Event]:
        """Send all that was ordered in this turn, with one call for each worker."""
        spoken_to, self._spoken_to = self._spoken_to, set()
        for connection_id in spoken_to:
            if not self._connections[connection_id].flush():
                yield e.ConnectionDown(connection_id)

    # --- payloads ---

    def write(self, order: i.Write) -> Iterator[e.Event]:
        """Put a payload into its slot."""
        connection, header, payload = self._connections[order.connection_id], order.header, order.payload
        layout = self._spec.layout(header.shape)
        assert layout is not None, "the core has checked the header"
        place = self._memory.slot(header.ticket.slot)[: header.nbytes]
        if isinstance(payload, memoryview):
            keep_in_huge_pages(payload)
        yield e.Checked(order.connection_id, header, connection.write(payload, header.digest, layout, place))

    def check(self, order: i.Check) -> Iterator[e.Event]:
        """Check what a worker wrote in place."""
        payload = self._memory.slot(order.header.ticket.slot)[: order.header.nbytes]
        yield e.Checked(order.connection_id, order.header, digest64(payload.data) == order.header.digest)

    def probe(self, order: i.Probe) -> Iterator[e.Event]:
        """Check whether a worker still holds its lock."""
        if not self._memory.is_locked(order.lock_byte):
            yield e.LockGone(order.incarnation)

    # --- the end ---

    def count_garbage(self) -> int:
        """How many frames from workers were not valid messages."""
        return self._garbage + sum(connection.count_garbage() for connection in list(self._connections.values()))

    def count_fallbacks(self) -> int:
        """Return how many batches came by the connection for messages instead of that for sealed payloads."""
        return self._fallbacks + sum(connection.count_fallbacks() for connection in list(self._connections.values()))

    def close_all(self) -> None:
        """Hang up on everyone."""
        for connection in self._connections.values():
            connection.close()


def _unreachable(endpoint: str, error: Exception) -> StokerError:
    if isinstance(error, StokerError):
        return error
    return LostError(
        expected=f"a connection to the worker at {endpoint}",
        got=str(error),
        where="trainer",
        remedy="Look at that worker's endpoint, and at this machine's limit of open files.",
    )
