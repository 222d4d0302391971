"""A feed's one receive thread, and everything that it owns: the sockets, and the memory that workers write into.

Rules: every socket is made, used and closed in this thread. The loop wakes for a message, for a consumer, or at the
time that the receiver's last turn returned. While it waits it references the receiver weakly: a feed without references
dies, which wakes the thread, and the thread leaves the job and ends. So finalisers only signal, and all waiting at the
end happens here.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import zmq

from shared.logs import Log
from shared.memory import SlotMemory
from shared.sockets import Waker
from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.network.coordinator_client import CoordinatorClient
from trainer_client.network.worker_connections import WorkerConnections, WorkerConnectionsParts

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterator

    from shared.keys import ClientKeys
    from trainer_client.core.settings import CoreSettings
    from trainer_client.core.stream_spec import StreamSpec

__all__ = ["ReceiverSettings", "Wires", "run_turns"]

#: libzmq's own limit would be 1023 sockets; a connection to a worker takes up to four.
_MOST_SOCKETS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The coordinator to attach to, the keys, and the trainer's identity (`core`)."""

    core: CoreSettings
    endpoint: str
    coordinator_keys: ClientKeys | None
    worker_keys: ClientKeys | None
    connect_timeout_s: float


class TakesTurns(Protocol):
    """The part of a receiver that its thread uses."""

    def turn(self, ready: set[object], /) -> int:
        """Run one turn with these ready sockets; return how long to wait for the next one, in ms."""

    def fail(self, error: BaseException, /) -> None:
        """End the feed with this error."""


class Wires:
    """The sockets and memory that the thread owns from `open` to `close`; other threads may call `end`, and read."""

    coordinator: CoordinatorClient

    def __init__(self, settings: ReceiverSettings) -> None:
        self.waker = Waker()
        #: Whether the thread has to end after its turn.
        self.is_over = False
        #: None until the coordinator has agreed, because only then the size of a slot is known.
        self.memory: SlotMemory | None = None
        self.workers: WorkerConnections | None = None
        #: Functions to call at the end of the thread.
        self.at_end: list[Callable[[], object]] = []
        self._settings = settings

    def end(self) -> None:
        """Make the thread end after its turn; do not wait for it."""
        self.is_over = True
        self.waker.wake()

    def count_garbage(self) -> int:
        """Return how many frames were not valid messages."""
        workers = self.workers.count_garbage() if self.workers is not None else 0
        return workers + self.coordinator.garbage

    def count_fallbacks(self) -> int:
        """Return how many batches came by the connection for messages although sealed payloads have their own."""
        return self.workers.count_fallbacks() if self.workers is not None else 0

    # --- for the thread ---

    def open(self) -> None:
        """Make the context and the poller, and connect to the coordinator."""
        settings = self._settings
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = _MOST_SOCKETS
        self._poller = zmq.Poller()
        self._poller.register(self.waker.fileno(), zmq.POLLIN)
        self.coordinator = CoordinatorClient(self._context, settings.endpoint, settings.coordinator_keys)
        self._polled = self.coordinator.socket
        self._poller.register(self._polled, zmq.POLLIN)

    def make_slots(self, slots: int, spec: StreamSpec) -> None:
        """Make the slots' memory, and the (still empty) connections to workers."""
        self.memory = SlotMemory(slots, spec.largest_bytes())
        self.workers = WorkerConnections(
            WorkerConnectionsParts(
                context=self._context,
                poller=self._poller,
                keys=self._settings.worker_keys,
                settings=self._settings.core,
                spec=spec,
                memory=self.memory,
            )
        )

    def wait(self, timeout_ms: int) -> set[object]:
        """Wait at most this long for messages or a wake-up; return the sockets that are ready."""
        if self._polled is not self.coordinator.socket:  # the client has replaced it
            self._poller.unregister(self._polled)
            self._polled = self.coordinator.socket
            self._poller.register(self._polled, zmq.POLLIN)
        ready: set[object] = {socket for socket, _ in self._poller.poll(timeout_ms)}
        if self.waker.fileno() in ready:
            self.waker.clear()
        return ready

    def read(self, ready: set[object], now_s: float) -> Iterator[e.Event]:
        """Yield the events of messages on these sockets."""
        if self.coordinator.socket in ready:
            for message in self.coordinator.read():
                yield e.CoordinatorSaid(message)
        if self.workers is not None:
            yield from self.workers.read(ready, now_s)

    def leave(self) -> None:
        """Tell the coordinator that we leave the job."""
        core = self._settings.core
        self.coordinator.send(m.Detach(stream=core.stream, rank=core.ranks.rank, incarnation=core.incarnation))

    def close(self) -> None:
        """Close sockets and memory, then run the functions in `at_end`; slots that are still referenced stay valid."""
        if self.workers is not None:
            self.workers.close_all()
        self.coordinator.close()
        # libzmq waits here until all sockets of the context are closed and what lingers is sent or given up.
        self._context.term()
        self.waker.close()
        if self.memory is not None:
            self.memory.close()
        for close in self.at_end:
            with _logged():
                close()


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log an exception instead of raising it: at the end of the thread no caller waits for it."""
    try:
        yield
    except Exception as error:  # each function at the end must run, whatever the one before it raised
        Log("trainer").error("feed does not end in good order", error=str(error))


def run_turns(held: weakref.ref[TakesTurns], wires: Wires) -> None:
    """Run a receiver's turns until its wires are told to end, or the receiver is not referenced any more.

    An error in a turn stops the feed, so that it is raised in the consumer; the wires are closed in any case.
    """
    wires.open()
    pause_ms = 0
    try:
        while not wires.is_over:
            ready = wires.wait(pause_ms)
            receiver = held()
            if receiver is None:
                break
            pause_ms = receiver.turn(ready)
            del receiver  # while we wait, only its users may keep it
        wires.leave()
    except BaseException as error:  # it would end in the thread: the consumer has to raise it
        receiver = held()
        if receiver is not None:
            receiver.fail(error)
    finally:
        wires.close()
