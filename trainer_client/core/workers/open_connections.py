"""All connections of a trainer to workers: which ones to have, and the state of each.

Rules:
- A trainer talks to all workers on its own host and to a bounded number of others, chosen by a hash of the trainer and
  the worker's endpoint. So load spreads over the fleet, a restarted worker stays in its subsets, and the work of a
  decision does not grow with the fleet. Workers that are silent, draining, or refuse the head do not count towards the
  bound, and others are added.
- Being off the coordinator's list closes nothing, because a coordinator that was just started knows only a few workers.
  A connection is forgotten once its worker is off the list and gone (proved dead, gone in good order, or cut off for
  long), and never while the worker might still write into a slot.
- A worker is buried only on proof: its lock on our memory is gone. Another incarnation that answers at its endpoint is
  no such proof if the former one wrote into slots.
- Nothing that a worker sends, or turns out to be, closes more than its own connection, with a log line; it never ends
  the feed.
- One side may not know that a connection is gone, so the connection to a silent worker is replaced.
Pure: connections are known by their ids; sockets belong to `network`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m
from shared.wire.refusing import error_of
from trainer_client.core import events as e
from trainer_client.core import instructions as i
from trainer_client.core.workers.connection import SERVING, Connection, ConnectionState
from trainer_client.core.workers.known_workers import KnownWorker
from trainer_client.core.workers.worker_list import WorkerList

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shared.errors import StokerError
    from shared.wire.message_parts import WorkerAddress
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.upcoming import Upcoming
    from trainer_client.core.workers.worker_tickets import WorkerTickets

__all__ = ["MOST_REMOTE", "Connections"]

#: A trainer never has more connections to workers on other hosts than this.
MOST_REMOTE = 32

#: The range of lock bytes: behind the nonce in the shared memory, up to the protocol's bound.
_FIRST_LOCK_BYTE, _LAST_LOCK_BYTE = 16, 2**20

#: Pause before an unanswered Hello is repeated, and before one that could not be sent is tried again.
_HELLO_PAUSE_S = 0.5
_NOT_YET_S = 0.002

#: The longest back-off between replacements of a silent connection, in heartbeat timeouts.
_LONGEST_RENEWAL = 8

#: How many workers that served us once are remembered, for the error that ends the feed.
_MOST_SERVED = 64


class Connections:
    """The connections to workers, by id and endpoint, and the coordinator's list of workers."""

    def __init__(  # noqa: PLR0913, PLR0917 - the books that a worker is entered in
        self,
        settings: CoreSettings,
        heartbeat_timeout_s: float,
        upcoming: Upcoming,
        workers: dict[int, KnownWorker],
        tickets: WorkerTickets,
        out: list[i.Instruction],
    ) -> None:
        self.list = WorkerList(settings)
        #: Whether no known worker can build the head, so that up to MOST_REMOTE others are tried at a time.
        self.in_need = False
        self._settings = settings
        self._timeout_s = heartbeat_timeout_s
        self._upcoming = upcoming
        self._workers = workers
        self._tickets = tickets
        self._out = out
        self._by_id: dict[int, Connection] = {}
        self._by_endpoint: dict[str, Connection] = {}
        self._last_id = 0
        self._lock_bytes = _FIRST_LOCK_BYTE
        #: Names of workers that served us, by endpoint, the latest last; some may be off the list and gone by now.
        self._served: dict[str, str] = {}

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._by_id.values())

    # --- the list ---

    def update_list(self, version: int, workers: Iterable[WorkerAddress], now_s: float) -> None:
        """Take in the coordinator's latest list, and connect to new workers within the bound, as `top_up` does."""
        self.list.update(version, workers)
        self.top_up(now_s)

    def top_up(self, now_s: float) -> None:
        """Forget workers that are gone; connect to all workers on this host, and to others up to the bound.

        Endpoints that are connected already or left out are passed over. At MOST_REMOTE, a useless connection makes
        room.
        """
        self._forget_the_gone(now_s)
        for endpoint in filter(self._may_open, self.list.local):
            self._open(endpoint, now_s, local=True)
        self._top_up_remote(now_s)

    def _top_up_remote(self, now_s: float) -> None:
        remote = [connection for connection in self if not connection.local]
        # Only useful connections count towards the bound. Useless ones stay open up to MOST_REMOTE, because their
        # workers may recover.
        useful = sum(self._is_useful(connection, now_s) for connection in remote)
        most = MOST_REMOTE if self.in_need else min(self._settings.workers, MOST_REMOTE)
        for endpoint in filter(self._may_open, self.list.remote):
            if useful >= most:
                return
            if len(remote) >= MOST_REMOTE and not self._make_room(remote, now_s):
                return
            remote.append(self._open(endpoint, now_s, local=False))
            useful += 1

    def _may_open(self, endpoint: str) -> bool:
        return not (endpoint in self._by_endpoint or self.list.is_out(endpoint))

    def _is_useful(self, connection: Connection, now_s: float) -> bool:
        """Return whether the connection counts towards the bound: its worker can build the head, or may answer soon.

        A worker that is silent, busy, takes no wants, refused the head or does not serve us here at the moment does not
        count. A connection without a worker counts for one heartbeat timeout after it was opened, if it is on the list.
        """
        worker = self._worker_of(connection)
        if worker is None:
            return connection.endpoint in self.list and now_s - connection.opened_s <= self._timeout_s
        head = self._upcoming.entries.get(self._upcoming.head)
        refuses = head is not None and worker.incarnation in head.refused
        return connection.state in SERVING and worker.is_live(now_s) and not refuses

    def _make_room(self, remote: list[Connection], now_s: float) -> bool:
        """Close the connection that has been useless for the longest; return False if there is none to close.

        A connection whose worker might still write into a slot is never closed here. The endpoint is left out until the
        head is safe again (see `need`).
        """
        useless = [
            connection
            for connection in remote
            if not self._is_useful(connection, now_s) and self._may_forget(connection)
        ]
        if not useless:
            return False
        longest = min(useless, key=lambda connection: connection.since_s)
        self.list.give_up(longest.endpoint, self._describe(longest))
        remote.remove(longest)
        self._close(longest, now_s)
        return True

    def _forget_the_gone(self, now_s: float) -> None:
        """Close connections that are down and off the list, if their workers are gone.

        Of the others only the MOST_REMOTE that went down last are kept. A connection whose worker might still write
        into a slot is never closed here.
        """
        # A restarted coordinator's list is short until all workers have registered again, so being off the list alone
        # closes nothing.
        cut = [
            connection
            for connection in self
            if connection.state is ConnectionState.DOWN
            and connection.endpoint not in self.list
            and self._may_forget(connection)
        ]
        gone = [connection for connection in cut if self._is_gone(connection, now_s)]
        remembered = sorted(
            (connection for connection in cut if connection not in gone), key=lambda connection: connection.since_s
        )
        for connection in [*gone, *remembered[:-MOST_REMOTE]]:
            self._close(connection, now_s)

    def _is_gone(self, connection: Connection, now_s: float) -> bool:
        worker = self._worker_of(connection)
        long_s = now_s - connection.since_s
        return worker is None or worker.in_good_order or long_s > self._settings.lost_timeout_s

    def _may_forget(self, connection: Connection) -> bool:
        worker = self._worker_of(connection)
        return worker is None or not worker.could_write()

    # --- opening and closing ---

    def _open(self, endpoint: str, now_s: float, *, local: bool) -> Connection:
        self._last_id += 1
        connection = Connection(self._last_id, endpoint, local, now_s, now_s)
        connection.renew_pause_s = self._timeout_s
        self._by_id[connection.id] = self._by_endpoint[endpoint] = connection
        self._out.append(i.Open(connection.id, endpoint))
        return connection

    def _close(self, connection: Connection, now_s: float) -> None:
        worker = self._worker_of(connection)
        if worker is not None:
            self._part(connection, worker)
        connection.move("close", now_s)
        del self._by_id[connection.id], self._by_endpoint[connection.endpoint]
        self._out.append(i.Close(connection.id))

    def _part(self, connection: Connection, worker: KnownWorker) -> None:
        """Separate a worker from this connection; bury it, or probe its lock if it might still write into a slot."""
        # Another incarnation that answers at its endpoint proves nothing: the former one may be stopped, and write
        # later. So its lock is probed, and the proof comes as `LockGone`.
        self._tickets.cut(worker, by_us=connection.state is ConnectionState.DOWN)
        connection.part()
        worker.part()
        if worker.could_write():
            self._out.append(i.Probe(worker.incarnation, worker.lock_byte))
        else:
            self._bury(worker, crashed=not worker.in_good_order)

    def _turn_away(self, connection: Connection, error: StokerError, now_s: float) -> None:
        """Close this connection, because the worker refused us or cannot be reached; connect to another instead."""
        # It costs no other connection, let alone the feed: another job's worker may have come up at a reused address.
        self.list.note_turned_away(connection.endpoint, error)
        self._log("warning", "connection to a worker is closed", worker=connection.endpoint, error=str(error))
        self._close(connection, now_s)
        self.top_up(now_s)

    # --- what happens to a connection ---

    def take(self, event: e.ConnectionEvent | e.WorkerSent, now_s: float) -> None:
        """Handle what happened to a connection, or a Welcome or Refused that came; ignore it if it is closed by now."""
        connection = self._by_id.get(event.connection_id)
        if connection is None:
            return
        match event:
            case e.ConnectionUp():
                self._note_up(connection, now_s)
            case e.ConnectionDown():
                self._note_down(connection, now_s)
            case e.WorkerSent(message=m.Welcome() as welcome):
                self._welcome(connection, welcome, now_s, locked=bool(event.payload))
            case e.WorkerSent(message=m.Refused() as refusal):
                self._turn_away(connection, error_of(refusal, f"worker on connection {connection.id}"), now_s)
            case e.ConnectionFailed():
                self._turn_away(connection, event.error, now_s)
            case e.GreetingFailed():
                # The connection is up but does not take messages yet: Hello is tried again soon.
                if connection.state is ConnectionState.GREETING:
                    connection.greet_at(now_s + _NOT_YET_S)

    def _note_up(self, connection: Connection, now_s: float) -> None:
        """Note that the connection is up, after a break that was missed if it was up already, and send Hello."""
        if connection.state is not ConnectionState.DOWN:  # it broke and came back before we noticed
            self._note_down(connection, now_s)
        connection.move("up", now_s)
        self._greet(connection, now_s)

    def _note_down(self, connection: Connection, now_s: float, *, by_us: bool = False) -> None:
        """Note that the connection is down, with everything on its way; probe the lock of a worker writing in place.

        `by_us`: we replaced the connection, so the cut is no sign that a batch killed the worker.
        """
        connection.go_down(now_s)
        worker = self._worker_of(connection)
        if worker is not None:
            self._tickets.cut(worker, by_us=by_us)
            if worker.in_slot:
                self._out.append(i.Probe(worker.incarnation, worker.lock_byte))

    def greet_again(self, connection_id: int, now_s: float) -> None:
        """Send Hello again on this open connection, as the worker does not know us; do nothing if it is down."""
        connection = self._by_id[connection_id]
        if connection.state is not ConnectionState.DOWN:  # else it is greeted when it comes up
            connection.move("greet again", now_s)
            self._greet(connection, now_s)

    def _greet(self, connection: Connection, now_s: float) -> None:
        """Send Hello with a lock byte that no worker has locked yet; without an answer it is due again 0.5 s later."""
        # Two incarnations must never share a byte: the lock of one would count as proof that the other is alive.
        if not connection.lock_byte:
            connection.offer(self._lock_bytes)
            self._lock_bytes += 1
            if self._lock_bytes == _LAST_LOCK_BYTE:
                self._lock_bytes = _FIRST_LOCK_BYTE
        connection.greet(now_s, again_s=now_s + _HELLO_PAUSE_S)
        self._out.append(i.Greet(connection.id, connection.lock_byte))

    def _welcome(self, connection: Connection, welcome: m.Welcome, now_s: float, *, locked: bool) -> None:
        """Note that the worker serves us; `locked` says that it holds the lock byte that was offered last.

        Ignore a Welcome on a connection that is down. Part from a former worker there, if another incarnation answers.
        """
        # A Hello is repeated until it is answered, so a second Welcome may come; the lock taken with the first stays.
        if connection.state is ConnectionState.DOWN:
            return  # the Welcome was sent before the connection broke
        former = self._worker_of(connection)
        if former is not None and former.incarnation != welcome.incarnation:
            self._part(connection, former)
        worker = self._workers.get(welcome.incarnation) or self._get_to_know(welcome, now_s)
        took_lock = locked and connection.lock_byte > 0  # otherwise this answers a repeated Hello
        lock_byte = connection.lock_byte if took_lock else worker.lock_byte
        # A worker may write into slots only while it holds a lock: the lock's end is the only proof of its death.
        shared = welcome.shared and (locked or worker.in_slot)
        delay_s = now_s - connection.greeted_s
        worker.begin_to_serve(connection.id, shared=shared, lock_byte=lock_byte, delay_s=delay_s)
        connection.serve(worker.incarnation, self._timeout_s, now_s, shared=shared, locked=took_lock)
        self._tickets.note_arrival()
        self._tickets.hear(worker, now_s)
        way = "shared memory" if worker.in_slot else "TCP"
        self._log("info", "worker serves us", worker=worker.name, by=way, reason=welcome.reason)
        self._note_served(connection.endpoint, worker.name)

    def _note_served(self, endpoint: str, name: str) -> None:
        self._served.pop(endpoint, None)
        self._served[endpoint] = name
        if len(self._served) > _MOST_SERVED:
            del self._served[next(iter(self._served))]

    def _get_to_know(self, welcome: m.Welcome, now_s: float) -> KnownWorker:
        worker = KnownWorker(
            incarnation=welcome.incarnation,
            name=welcome.worker,
            connection_id=None,
            rank=self.list.rank(str(welcome.incarnation)),
            in_slot=False,
            lock_byte=0,
            heard_s=now_s,
            pinged_s=now_s,
        )
        self._workers[worker.incarnation] = worker
        return worker

    def drain(self, connection_id: int, now_s: float) -> None:
        """Note that the worker drains: it takes no new wants. Do nothing if no worker serves us on this connection."""
        connection = self._by_id[connection_id]
        if connection.state in SERVING:
            connection.move("drain", now_s)

    def note_lock_gone(self, incarnation: int, now_s: float) -> None:
        """Bury this worker: its lock is gone, so it cannot write into any slot any more.

        If it is alive after all, it is greeted again. Do nothing if the worker is not known.
        """
        # Only a lock that is gone proves a death: process numbers are reused, zombies answer signals, and a stopped
        # process looks dead and writes later. The kernel drops the lock with its holder.
        worker = self._workers.get(incarnation)
        if worker is None:
            return
        connection = self._by_id.get(worker.connection_id) if worker.connection_id is not None else None
        self._bury(worker, crashed=not worker.in_good_order)
        if connection is not None:
            connection.part()
            if connection.state in SERVING:  # it is alive, and released our memory because we were away for long
                self.greet_again(connection.id, now_s)

    def _bury(self, worker: KnownWorker, *, crashed: bool) -> None:
        self._log("info", "worker is gone", worker=worker.name, crashed=crashed)
        self._tickets.bury(worker, crashed=crashed)
        del self._workers[worker.incarnation]

    # --- time ---

    def tick(self, now_s: float) -> None:
        """Suspect silent workers, ping those in doubt, replace silent connections, and top up connections."""
        for worker in self._workers.values():
            if now_s - worker.heard_s > self._timeout_s:
                self._tickets.suspect(worker)
            self._ping_if_in_doubt(worker, now_s)
        for connection in list(self):
            self._renew(connection, now_s)
        self.top_up(now_s)

    def _ping_if_in_doubt(self, worker: KnownWorker, now_s: float) -> None:
        # The Pong lists the worker's open tickets, which shows a want or an answer that got lost with a connection.
        pause_s = self._timeout_s / 4
        if worker.connection_id is None or now_s - worker.pinged_s < pause_s or not worker.is_in_doubt(now_s - pause_s):
            return
        if self._by_id[worker.connection_id].state in SERVING:
            self._out.append(i.ToWorker(worker.connection_id, self._tickets.ping(worker, now_s)))

    def greet(self, now_s: float) -> None:
        """Send the Hellos that are due, again or for the first time."""
        for connection in self:
            if now_s >= connection.hello_s:
                self._greet(connection, now_s)

    def _renew(self, connection: Connection, now_s: float) -> None:
        """Replace a connection that has been up and silent for a heartbeat timeout, with back-off.

        It counts as down from then on, and its worker as cut off.
        """
        # One side may have lost it without notice, as after the reboot of a switch; then both would wait for ever.
        worker = self._worker_of(connection)
        heard_s = worker.heard_s if worker is not None else connection.since_s
        up = connection.state is not ConnectionState.DOWN
        if not up or now_s - max(heard_s, connection.since_s) <= self._timeout_s:
            return
        if connection.is_renewed(_LONGEST_RENEWAL * self._timeout_s, now_s):
            self._log("info", "connection to a silent worker is made anew", worker=connection.endpoint)
            self._note_down(connection, now_s, by_us=True)
            self._out.append(i.Renew(connection.id))

    def probe(self) -> bool:
        """Probe the locks of writers that are silent, not connected or take no wants.

        Return whether any of them holds tickets for writing in place, so that it might still write.
        """
        writers = False
        for worker in self._workers.values():
            if worker.in_slot and (worker.silent or worker.takes_no_wants or worker.connection_id is None):
                self._out.append(i.Probe(worker.incarnation, worker.lock_byte))
                writers |= worker.could_write()
        return writers

    def due_s(self) -> float:
        """Return when the next Hello is due; infinity if none is."""
        return min((connection.hello_s for connection in self), default=float("inf"))

    def excuse(self, now_s: float) -> None:
        """Restart every connection's timer, because we stalled."""
        for connection in self:
            connection.excuse(now_s)

    # --- who is there ---

    def worker_at(self, connection_id: int) -> KnownWorker | None:
        """Return the worker that serves us on this connection; None if none does, or there is no such connection."""
        connection = self._by_id.get(connection_id)
        return self._worker_of(connection) if connection is not None else None

    def serving(self) -> list[int]:
        """Return the ids of connections whose workers serve us, draining ones included; empty if none does."""
        return [connection.id for connection in self if connection.state in SERVING]

    def _worker_of(self, connection: Connection) -> KnownWorker | None:
        return self._workers.get(connection.incarnation) if connection.incarnation is not None else None

    def is_all_tried(self, now_s: float) -> bool:
        """Return whether every listed worker was tried, and none of them may still build the head.

        An empty list counts as tried.
        """
        return all(self._is_tried(endpoint, now_s) for endpoint in self.list)

    def _is_tried(self, endpoint: str, now_s: float) -> bool:
        if self.list.is_out(endpoint):
            return True
        connection = self._by_endpoint.get(endpoint)
        return connection is not None and not self._is_useful(connection, now_s)

    def need(self, *, somebody: bool) -> None:
        """Set whether the head needs another worker; if not, workers that were given up may be tried again."""
        # Up to the bound useless connections stay open, so a fleet whose first 32 workers refuse the head would never
        # be searched to its end: in need those are given up for others, and tried again once the head is safe.
        self.in_need = somebody
        if not somebody:
            self.list.try_again()

    def tried(self) -> tuple[list[str], int]:
        """Return every worker that was tried, as a sorted "name (state)", and the number of listed workers.

        Workers that served us before and are gone, and those that are left out, are among them.
        """
        gone = dict.fromkeys(self._served, "served us, and is gone")
        tried = gone | self.list.out() | {connection.endpoint: self._describe(connection) for connection in self}
        return sorted(f"{self._name(endpoint)} ({how})" for endpoint, how in tried.items()), len(self.list)

    def _name(self, endpoint: str) -> str:
        """Return the name of the worker at this endpoint: from the list, or else from when it served us.

        Return the endpoint itself if neither knows a name.
        """
        return self.list.name(endpoint) if endpoint in self.list else self._served.get(endpoint, endpoint)

    def _describe(self, connection: Connection) -> str:
        worker = self._worker_of(connection)
        if worker is None:
            return "does not answer"
        head = self._upcoming.entries.get(self._upcoming.head)
        if head is not None and worker.incarnation in head.refused:
            return "refused"
        return "silent" if worker.silent else connection.state.value

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._out.append(i.WriteLog(level, event, fields))
