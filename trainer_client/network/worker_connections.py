"""All of a trainer's connections to workers: they carry out the core's instructions and report the outcomes as events.

Rules: used in the receive thread only. Nothing is decided here. A payload is written into its slot only when the core
orders it, and checked before it counts: by its digest if it came as a frame or `verify` is set, by its seal if it is
sealed. Poll registrations follow the sockets.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

import numpy as np
import zmq

from shared.errors import LostError, StokerError
from shared.events.trainer_fields import trainer_fields
from shared.hashing import digest64
from shared.huge_pages import HUGE_PAGE, collapse
from shared.logs import Log
from shared.tracing.ring import StampKind, StampRing, bare_key, stamp_key
from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.network.want_lines import WantLines
from trainer_client.network.worker_connection import WorkerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.memory import SlotMemory
    from trainer_client.core import instructions as i
    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.network.coordinator_client import ReceiverSettings

__all__ = ["WorkerConnections"]


#: Addresses of earlier large frames, which are not collapsed again: malloc returns the same few again and again.
_seen_places: set[int] = set()
_MOST_SEEN = 256


class WorkerConnections:
    """The connections to workers, by the core's id for each."""

    def __init__(  # noqa: PLR0913, PLR0917 - what the thread shares with it
        self,
        settings: ReceiverSettings,
        spec: StreamSpec,
        memory: SlotMemory,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        ring: StampRing | None = None,
    ) -> None:
        self._stamp = (StampRing() if ring is None else ring).stamp
        self._core, self._keys = settings.core, settings.worker_keys
        self._spec = spec
        self._memory = memory
        self._context = context
        self._poller = poller
        self._connections: dict[int, WorkerConnection] = {}
        #: The polled sockets of each connection.
        self._polled: dict[int, list[zmq.Socket[bytes]]] = {}
        self._by_socket: dict[zmq.Socket[bytes], int] = {}
        #: Ids of connections with queued messages.
        self._spoken_to: set[int] = set()
        self._garbage = self._fallbacks = 0
        core = settings.core
        named = trainer_fields(core.name, None if spec.work else core.ranks.rank, core.incarnation)
        self._log = Log("trainer", job=spec.job, stream=spec.stream, **named)
        self._lines = WantLines(self._log)

    # --- making and ending ---

    def open(self, order: i.Open) -> Iterator[e.Event]:
        """Connect to a worker; yield `ConnectionFailed` if no connection can be made."""
        try:
            connection = WorkerConnection(self._context, order.endpoint, self._keys)
        except (StokerError, zmq.ZMQError) as error:
            yield e.ConnectionFailed(order.connection_id, _unreachable(order.endpoint, error))
            return
        self._connections[order.connection_id] = connection
        self._poll(order.connection_id)

    def close(self, order: i.Close) -> Iterator[e.Event]:
        """Close a connection, if there is one with this id, and drop its queued messages; yield nothing."""
        self._drop(order.connection_id)
        yield from ()

    def _drop(self, connection_id: int) -> None:
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self._forget_sockets(connection_id)
            self._spoken_to.discard(connection_id)
            # Counters must never fall, so those of a closed connection stay in the totals.
            self._garbage += connection.count_garbage()
            self._fallbacks += connection.sealed.fallbacks
            connection.close()

    def renew(self, order: i.Renew) -> Iterator[e.Event]:
        """Replace a connection; yield `ConnectionFailed`, and drop it, if its endpoint can never be connected to.

        If libzmq refuses, as without a free descriptor, log a warning: the former connection stays, and the core will
        order this again.
        """
        connection = self._connections[order.connection_id]
        self._forget_sockets(order.connection_id)
        try:
            connection.renew()
        except zmq.ZMQError as error:
            self._log.warning(
                "connection to a worker cannot be made anew", worker=connection.endpoint, error=str(error)
            )
        except StokerError as error:
            self._drop(order.connection_id)
            yield e.ConnectionFailed(order.connection_id, error)
            return
        self._poll(order.connection_id)

    def _poll(self, connection_id: int) -> None:
        """Register a connection's present sockets with the poller, instead of former ones, unless they are the same."""
        sockets = self._connections[connection_id].sockets()
        if self._polled.get(connection_id) == sockets:
            return
        self._forget_sockets(connection_id)
        self._polled[connection_id] = sockets
        for socket in sockets:
            self._by_socket[socket] = connection_id
            self._poller.register(socket, zmq.POLLIN)

    def _forget_sockets(self, connection_id: int) -> None:
        for socket in self._polled.pop(connection_id, ()):
            del self._by_socket[socket]
            self._poller.unregister(socket)

    # --- receiving ---

    def read(self, ready: set[object], now_s: float) -> Iterator[e.Event]:
        """Yield the events of these sockets: messages of workers, and connections that came up or went down.

        Pongs that were held back for sealed payloads come as well, once they are due. Frames that are not valid are
        counted and dropped. Sockets that are no worker's are passed over. SettingsError of a connection's
        `read` and `read_late` passes through.
        """
        for connection_id in sorted({self._by_socket[socket] for socket in ready if socket in self._by_socket}):
            connection = self._connections[connection_id]
            if connection.monitor in ready:
                for up in connection.read_changes():
                    yield e.ConnectionUp(connection_id) if up else e.ConnectionDown(connection_id)
            if connection.sealed.socket in ready:
                for header, payload in connection.sealed.read(now_s):
                    self._lines.note_heard(connection.endpoint, header)
                    self._note_arrival(header)
                    yield e.WorkerSent(connection_id, header, payload)
            if connection.socket in ready:
                for message, content in connection.read(now_s):
                    self._lines.note_heard(connection.endpoint, message)
                    self._note_arrival(message)
                    yield e.WorkerSent(connection_id, message, self._look_at(connection, message, content))
                self._poll(connection_id)  # a Welcome may have opened the connection for sealed payloads
        if self._keys is not None:
            yield from self._read_late(now_s)

    def _read_late(self, now_s: float) -> Iterator[e.Event]:
        for connection_id, connection in self._connections.items():
            for message, _ in connection.read_late(now_s, self._spec.heartbeat_timeout_s):
                yield e.WorkerSent(connection_id, message)
                self._poll(connection_id)

    def _note_arrival(self, message: m.Message) -> None:
        """Stamp a batch or a Pong; do nothing for other messages."""
        if isinstance(message, m.Pushed):
            self._stamp(StampKind.ARRIVED, monotonic_ns(), stamp_key(message.number, message.epoch, message.ticket))
        elif isinstance(message, m.Pong):
            self._stamp(StampKind.PONGED, monotonic_ns(), bare_key(message.number))

    def _look_at(self, connection: WorkerConnection, message: m.Message, payload: object) -> object:
        """Return the payload; for a Welcome, whether the worker really holds the lock that it claims to hold.

        Return False for a Welcome that claims none.
        """
        # A claim is not enough: a lock that nobody holds looks as if its holder had died, and its slots would be lent
        # again while it writes.
        if isinstance(message, m.Welcome):
            return message.shared and self._memory.is_locked(connection.lock_byte)
        return payload

    # --- sending ---

    def greet(self, order: i.Greet) -> Iterator[e.Event]:
        """Send Hello with the order's lock byte; yield `GreetingFailed` if the connection does not take it.

        It goes behind queued messages, which are dropped as well then. Raise ValueError if Hello exceeds the protocol's
        bounds. ImportError of `make_seal` passes through.
        """
        connection, core = self._connections[order.connection_id], self._core
        connection.lock_byte = order.lock_byte
        hello = m.Hello(
            job=self._spec.job,
            stream=self._spec.stream,
            incarnation=core.incarnation,
            name=core.name,
            rank=None if self._spec.work else core.ranks.rank,
            shared=self._memory.offer(order.lock_byte) if core.shared_memory else None,
            verify=core.verify,
            yields=core.verifies,
            seal=connection.sealed.make_seal() if self._keys is not None else None,
        )
        connection.queue(hello)
        if not connection.flush():
            yield e.GreetingFailed(order.connection_id)

    def send(self, order: i.ToWorker) -> Iterator[e.Event]:
        """Queue a message for the next `flush`; yield nothing. Raise ValueError if it exceeds the protocol's bounds."""
        message = order.message
        if isinstance(message, m.Want):
            key = stamp_key(message.number, message.epoch, message.ticket, message.attempt, message.worker)
            self._stamp(StampKind.ASKED, monotonic_ns(), key)
        elif isinstance(message, m.Ping):
            self._stamp(StampKind.PINGED, monotonic_ns(), bare_key(message.number))
        connection = self._connections[order.connection_id]
        connection.queue(message)
        self._lines.note_sent(connection.endpoint, message)
        self._spoken_to.add(order.connection_id)
        yield from ()

    def flush(self) -> Iterator[e.Event]:
        """Send all messages of this turn, with one call for each worker; yield `ConnectionDown` where that fails.

        Messages to such a worker are dropped.
        """
        spoken_to, self._spoken_to = self._spoken_to, set()
        for connection_id in spoken_to:
            if not self._connections[connection_id].flush():
                yield e.ConnectionDown(connection_id)

    # --- payloads ---

    def write(self, order: i.Write) -> Iterator[e.Event]:
        """Write a payload into its slot, and yield `Checked` with whether it is the one that its header names.

        Raise SettingsError if the library of its compression is missing.
        """
        connection, header, payload = self._connections[order.connection_id], order.header, order.payload
        layout = self._spec.layout(header.shape)
        assert layout is not None, "the core has checked the header"
        place = self._memory.slot(header.ticket.slot)[: header.nbytes]
        if isinstance(payload, memoryview):
            _keep_in_huge_pages(payload)
        yield e.Checked(order.connection_id, header, connection.write(payload, header.digest, layout, place))

    def check(self, order: i.Check) -> Iterator[e.Event]:
        """Compare a slot's bytes, written by a worker, with their digest; yield `Checked`, valid if they match."""
        payload = self._memory.slot(order.header.ticket.slot)[: order.header.nbytes]
        yield e.Checked(order.connection_id, order.header, digest64(payload.data) == order.header.digest)

    def probe(self, order: i.Probe) -> Iterator[e.Event]:
        """Yield `LockGone` if no process holds the order's lock byte, which proves that its worker cannot write."""
        if not self._memory.is_locked(order.lock_byte):
            yield e.LockGone(order.incarnation)

    # --- the end ---

    def count_garbage(self) -> int:
        """Return how many frames and payloads from workers were invalid, on closed connections too."""
        return self._garbage + sum(connection.count_garbage() for connection in list(self._connections.values()))

    def count_fallbacks(self) -> int:
        """Return how many batches came by a connection for messages although sealed payloads have their own."""
        return self._fallbacks + sum(connection.sealed.fallbacks for connection in list(self._connections.values()))

    def close_all(self) -> None:
        """Close all connections; what libzmq has queued on them gets 100 ms to leave."""
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


def _keep_in_huge_pages(frame: memoryview) -> None:
    """Move the memory of a large frame to huge pages, so that the next frame there is faster to receive and to copy.

    Frames below two huge pages are left alone, as are addresses that were handled already. If the kernel does not
    provide huge pages, nothing changes.
    """
    # libzmq allocates with malloc for each frame, so nothing can be prepared before the frame is there.
    if frame.nbytes < 2 * HUGE_PAGE:
        return
    frame_bytes = np.frombuffer(frame, np.uint8)
    place = frame_bytes.ctypes.data
    if place in _seen_places:
        return
    if len(_seen_places) >= _MOST_SEEN:
        _seen_places.clear()
    _seen_places.add(place)
    collapse(frame_bytes)
