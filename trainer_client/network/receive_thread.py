"""A feed's one receive thread, and everything that it owns: the sockets, and the memory that workers write into.

Rules: every socket is made, used and closed in this thread. The loop wakes for a message, for a consumer, or at the
time that the receiver's last turn returned. While it waits it references the receiver weakly: a feed without references
dies, which wakes the thread, and the thread leaves the job and ends. So finalisers only signal, and all waiting at the
end happens here. A forked child has no such thread: without `watch_forks` it would wait for ever for a batch that no
thread brings, or at a lock that the lost thread held. So each feed raises there at once; the parent's feeds go on.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Protocol

import zmq

from shared.errors import SettingsError
from shared.memory import SlotMemory, boot_id
from shared.sockets import Waker
from shared.tracing.answering import page_of
from shared.tracing.ring import StampRing
from shared.wire import messages as m
from trainer_client.core import events as e
from trainer_client.network.coordinator_client import CoordinatorClient
from trainer_client.network.trainer_log import process_log
from trainer_client.network.worker_connections import WorkerConnections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.core.stream_spec import StreamSpec
    from trainer_client.network.coordinator_client import ReceiverSettings

__all__ = ["Wires", "run_turns", "used_after_fork", "watch_forks"]

#: libzmq's own limit would be 1023 sockets; a connection to a worker takes up to four.
_MOST_SOCKETS = 4096
#: Limit of questions for stamps that wait for an answer.
_MOST_QUESTIONS = 64


class TakesTurns(Protocol):
    """The part of a receiver that its thread uses."""

    def turn(self, ready: set[object], /) -> int:
        """Run one turn with these ready sockets; return the wait for the next one, in ms. An error stops the feed."""

    def fail(self, error: BaseException, /) -> None:
        """Stop the feed with this error, which waiting and later callers get."""

    def lose_thread(self) -> None:
        """Make every later call raise, because this is a forked child."""


class Wires:
    """The sockets and memory that the thread owns from `open` to `close`; other threads may call `end`, and read."""

    coordinator: CoordinatorClient

    def __init__(self, settings: ReceiverSettings) -> None:
        self.waker = Waker()
        #: What happened to this trainer's batches.
        self.ring = StampRing()
        self._trace_questions: deque[m.TraceWanted] = deque(maxlen=_MOST_QUESTIONS)
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

    # --- for the thread ---

    def open(self) -> None:
        """Make the context and the poller, and connect to the coordinator.

        Raise a SettingsError if its address cannot be connected to, or its file is unsafe; nothing stays open then, nor
        after any other error.
        """
        settings = self._settings
        self.ring.stream_number(settings.core.stream)  # the first, and so 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.max_sockets = _MOST_SOCKETS
        self._poller = zmq.Poller()
        self._poller.register(self.waker.fileno(), zmq.POLLIN)
        try:
            self.coordinator = CoordinatorClient(self._context, settings.endpoint, settings.coordinator_keys)
        except BaseException as error:  # re-raised: nobody closes what was never open
            self._context.term()
            self.waker.close()
            if isinstance(error, zmq.ZMQError):
                raise SettingsError(
                    expected="an address that can be connected to", got=str(error), where="endpoint",
                    remedy="Correct the endpoint: tcp://HOST:PORT.",
                ) from error  # fmt: skip
            raise
        self._polled = self.coordinator.socket
        self._poller.register(self._polled, zmq.POLLIN)

    def make_slots(self, slots: int, spec: StreamSpec) -> None:
        """Make the slots' memory, and the (still empty) connections to workers; raise OSError if there is no memory."""
        self.memory = SlotMemory(slots, spec.largest_bytes())
        self.workers = WorkerConnections(self._settings, spec, self.memory, self._context, self._poller, self.ring)

    def wait(self, timeout_ms: int) -> set[object]:
        """Wait at most this long for messages or a wake-up; return the sockets that are ready, none after that time.

        The waker is among them by its descriptor.
        """
        if self._polled is not self.coordinator.socket:  # the client has replaced it
            self._poller.unregister(self._polled)
            self._polled = self.coordinator.socket
            self._poller.register(self._polled, zmq.POLLIN)
        # A consumer's wake-up is a byte on a socket pair, so one poll waits for it and for messages alike.
        ready: set[object] = {socket for socket, _ in self._poller.poll(timeout_ms)}
        if self.waker.fileno() in ready:
            self.waker.clear()
        return ready

    def read(self, ready: set[object], now_s: float) -> Iterator[e.Event]:
        """Yield the events of these sockets: messages of the coordinator and, once there are slots, those of workers.

        Connections to workers that came up or went down are events too, and so are held-back Pongs that are due,
        whichever sockets are ready. Questions for stamps are kept for
        `answer_question` instead. SettingsError of the workers' `read` passes through.
        """
        if self.coordinator.socket in ready:
            for message in self.coordinator.read():
                if isinstance(message, m.TraceWanted):  # it decides nothing, so the core has nothing to do with it
                    self._trace_questions.append(message)
                else:
                    yield e.CoordinatorSent(message)
        if self.workers is not None:
            yield from self.workers.read(ready, now_s)

    def answer_question(self) -> int | None:
        """Send the answer to one question for stamps, if there is one; return 0 if more are waiting, else None.

        An answer that cannot be sent is dropped, and so is the oldest of too many questions. SettingsError of the
        coordinator's `send` passes through.
        """
        # One a turn, after all else that the turn had to send: a heartbeat must not wait for anybody's curiosity.
        if self._trace_questions:
            wanted, process = self._trace_questions.popleft(), self._settings.core.incarnation
            now_ns = time.monotonic_ns()
            self.coordinator.send(page_of(self.ring, wanted, process=process, boot_id=boot_id(), now_ns=now_ns))
        return 0 if self._trace_questions else None

    def leave(self) -> None:
        """Send the coordinator word that we leave the job; it is dropped if the connection is down.

        Raise SettingsError if the coordinator's address is in an unsafe file, and none is known yet.
        """
        core = self._settings.core
        self.coordinator.send(m.Detach(stream=core.stream, rank=core.ranks.rank, incarnation=core.incarnation))

    def close(self) -> None:
        """Close sockets and memory, then run the functions in `at_end`; slots that are still referenced stay valid.

        An error of such a function is only logged, and the others still run.
        """
        if self.workers is not None:
            self.workers.close_all()
        self.coordinator.close()
        # libzmq waits here until all sockets of the context are closed and what lingers is sent or given up.
        self._context.term()
        self.waker.close()
        if self.memory is not None:
            self.memory.close()
        for close in self.at_end:
            try:
                close()
            except Exception as error:  # nobody waits here to get it, and the functions behind this one must run
                process_log().error("feed does not end in good order", error=str(error))


def run_turns(held: weakref.ref[TakesTurns], wires: Wires) -> None:
    """Run a receiver's turns until its wires have to end, or the receiver is not referenced any more.

    The coordinator is then notified that we leave. An error in opening the wires or in a turn is not raised here: it
    stops the feed, so that the consumer raises it, and nothing is sent. Wires that were opened are closed in any case.
    """
    pause_ms = 0
    try:
        wires.open()
    except BaseException as error:  # as below: a thread that dies in silence lets the consumer wait for its timeout
        _fail(held, error)
        return
    try:
        while not wires.is_over:
            ready = wires.wait(pause_ms)
            # Referenced only for the turn: a feed that nobody else references dies in the wait, and its weak
            # reference's callback wakes us.
            receiver = held()
            if receiver is None:
                break
            pause_ms = receiver.turn(ready)
            del receiver
            soon_ms = wires.answer_question()
            pause_ms = pause_ms if soon_ms is None else soon_ms
        wires.leave()
    except BaseException as error:  # it would end in the thread: the consumer has to raise it
        _fail(held, error)
    finally:
        wires.close()


def _fail(held: weakref.ref[TakesTurns], error: BaseException) -> None:
    receiver = held()
    if receiver is not None:
        receiver.fail(error)


# --- forked children ---


_watched: weakref.WeakSet[TakesTurns] = weakref.WeakSet()


def watch_forks(owner: TakesTurns) -> None:
    """Call `owner.lose_thread` in each child forked from now on, as long as the owner exists (a weak reference)."""
    _register_once()
    _watched.add(owner)


@functools.cache
def _register_once() -> None:
    # Python cannot forget such a function, so one for each feed would keep all feeds for ever.
    os.register_at_fork(after_in_child=_lose_threads)


def _lose_threads() -> None:
    for owner in list(_watched):
        owner.lose_thread()


def used_after_fork(name: str) -> SettingsError:
    """Return the SettingsError for a feed that is used in a forked child of the trainer with this name."""
    return SettingsError(
        expected=f"a feed that is used by the process that connected it, {name}",
        got=f"process {os.getpid()}, which was forked from it and has no connection to the loaders",
        where="feed",
        remedy="Connect in the process that reads; leave out a framework's own worker processes (num_workers=0): "
        "the job's workers prepare batches ahead.",
    )
