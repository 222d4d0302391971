"""Messages of a worker to trainers: answers once a turn, payloads behind their headers, sealed ones apart.

Rules: used in the poll loop only; answers to one trainer keep their order; a socket never blocks, and messages for a
trainer that hung up are dropped. A buffer that libzmq still sends from is not touched until libzmq has finished with
it, which has to be polled.

A trainer that leaves too many answers unread (see `shared.fairness.unread`) gets only what its open tickets are owed,
and no more of its batches are built.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import port_beside, port_of
from shared.fairness.unread import MARK_BYTES, UnreadAnswers
from shared.hashing import digest64
from shared.logs import Log
from shared.sockets import bind_router, bind_sealed_router, read_waiting, send_now
from shared.wire.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.building.build_thread import Outcome
    from loader_server.building.send_buffers import SendBuffers
    from loader_server.machine.doors import Doors
    from loader_server.wants.session import Session
    from shared.fairness.budget import Budget
    from shared.keys import ServerKeys
    from shared.wire.messages import Message, Pushed

__all__ = ["Sender"]

_LINGER_MS = 1000


@dataclass(slots=True)
class _Peer:
    """The frames that are to be sent on one connection."""

    #: Frames for the next `flush`, and their length.
    frames: list[bytes] = field(default_factory=list)
    waiting: int = 0
    #: Whether nothing was queued since the last call of `forget_quiet`.
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class _UnreadBatch:
    """A batch that libzmq may still be sending, on the account of a trainer."""

    tracker: zmq.MessageTracker
    trainer: int
    nbytes: int
    #: Its buffer of `SendBuffers`; None if it was given back already.
    buffer: NDArray[np.uint8] | None


class Sender:
    """Owner of the sockets for trainers; `batches` counts the bytes of batches that each trainer has not read.

    Making it raises SettingsError if `listen` cannot be bound, or zmq.ZMQError if no port for sealed payloads can.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listen: str,
        keys: ServerKeys | None,
        buffers: SendBuffers,
        batches: Budget[int],
    ) -> None:
        self.router = bind_router(context, listen, keys)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        #: The sockets to poll: that for messages, and with keys that for sealed payloads.
        self.sockets = [self.router]
        # A fixed port to listen at implies a fixed port beside it for sealed payloads, which firewalls can let through.
        beside = port_beside(listen)
        if keys is not None:
            self.sockets.append(bind_sealed_router(context, self.endpoint, beside))
        self.ports = [port_of(socket.getsockopt_string(zmq.LAST_ENDPOINT)) for socket in self.sockets]
        #: The port of sealed payloads; 0 if there are none.
        self.sealed_port = self.ports[1] if keys is not None else 0
        if self.sealed_port and beside is not None and self.sealed_port != beside:
            Log("worker").warning(
                "port for sealed payloads is taken, another is used: open it to trainers, or give workers of a machine "
                "ports that are two apart",
                taken=beside,
                used=self.sealed_port,
            )
        self.buffers = buffers
        #: Bytes of batches for TCP that are being built, or have not been read yet.
        self.batches = batches
        #: Answers and small payloads.
        self._answers = UnreadAnswers(self.router)
        self._peers: dict[bytes, _Peer] = {}
        #: The connections that have frames for the next `flush`.
        self._with_frames: list[bytes] = []
        self._unread: list[_UnreadBatch] = []
        #: Messages that were dropped because their receiver does not read.
        self.left_out = 0

    # --- answers ---

    def reads(self, identity: bytes) -> bool:
        """Return whether this connection reads its answers; one that does not gets only what its tickets are owed."""
        return self._answers.reads(identity)

    def watch(self, doors: Doors) -> None:
        """Have the doors count connections to all of these sockets; raise what `Doors.watch` does, such as OSError."""
        for name, socket in zip(("messages", "sealed"), self.sockets, strict=False):
            doors.watch(name, socket)

    def drop_strays(self, ready: set[object], note_useless: Callable[[zmq.Frame], None] = lambda _: None) -> int:
        """Read and drop messages to the ROUTER for sealed payloads, where nobody may send any; return how many.

        It is read only if it is `ready`. The sender of each is passed to `note_useless`.
        """
        count = 0
        for socket in self.sockets[1:]:
            for identity, *_frames in read_waiting(socket) if socket in ready else ():
                count += 1
                note_useless(identity)
        return count

    def say(self, identity: bytes, message: Message) -> None:
        """Queue a message for the next `flush`; drop it if the other side does not read, or has too much queued.

        Raise a ValueError if it cannot be encoded.
        """
        self.say_frame(identity, encode(message))

    def say_frame(self, identity: bytes, frame: bytes) -> None:
        """Queue an encoded message; drop and count it if its peer does not read, or has too much to read."""
        peer = self._peers.get(identity)
        # A peer that asks without end in one turn must not fill our memory, although it may read the answers later.
        if (peer is None or peer.waiting <= MARK_BYTES) and self.reads(identity):
            self._queue(identity, frame)
        else:
            self.left_out += 1

    def answer(self, identity: bytes, message: Message) -> None:
        """Queue the answer to an open ticket for the next `flush`, even if the other side does not read.

        Raise a ValueError if it cannot be encoded.
        """
        self._queue(identity, encode(message))

    def _queue(self, identity: bytes, frame: bytes) -> None:
        peer = self._peers.setdefault(identity, _Peer())
        if not peer.frames:
            self._with_frames.append(identity)
        peer.frames.append(frame)
        peer.waiting += len(frame)
        peer.quiet = False

    def flush(self) -> bool:
        """Send the queued answers, those for one trainer together; return whether all trainers were still there.

        What was queued for a trainer that is gone is dropped.
        """
        identities, self._with_frames = self._with_frames, []
        reached = [self._flush_to(identity) for identity in identities]
        return all(reached)

    def _flush_to(self, identity: bytes) -> bool:
        peer = self._peers.get(identity)
        if peer is None or not peer.frames:
            return True
        frames, peer.frames, peer.waiting = peer.frames, [], 0
        is_there = self._answers.send(identity, frames)
        if not is_there:
            del self._peers[identity]
        return is_there

    def mark_all(self) -> None:
        """From now on track each answer until libzmq has sent it, because this process ends soon."""
        self._answers.marks_all = True

    def forget_quiet(self) -> None:
        """Forget connections for which nothing was queued since the last call."""
        for identity in [identity for identity, peer in self._peers.items() if peer.quiet]:
            del self._peers[identity]
            self._answers.forget(identity)
        for peer in self._peers.values():
            peer.quiet = not peer.frames

    # --- batches ---

    def push(self, outcome: Outcome, header: Pushed, session: Session, log: Log) -> None:
        """Send a batch by TCP: sealed if the trainer has its key and is connected for it, else where all messages go.

        A small batch that is not sealed goes with the next `flush`. If the trainer is gone, the batch is dropped, which
        goes to `log`. Raise a ValueError if the header cannot be encoded.
        """
        assert outcome.sent is not None
        assert outcome.payload is not None
        if outcome.sealed is not None and self._push_sealed(outcome, header, session):
            self.buffers.give_back(outcome.payload)
            return
        if not header.digest:  # left out because it was to be sealed
            header = dataclasses.replace(header, digest=digest64(outcome.payload.data))
        # A small batch is copied and travels with the answers of this turn, so its buffer is free at once.
        if outcome.sent.nbytes < MARK_BYTES:
            self._queue(session.address, encode(header))
            self._queue(session.address, bytes(outcome.sent))
            self.buffers.give_back(outcome.payload)
            return
        buffer: NDArray[np.uint8] | None = outcome.payload
        # What is sent is a copy then, which libzmq frees.
        if self.buffers.encodes:
            self.buffers.give_back(outcome.payload)
            buffer = None
        self._flush_to(session.address)  # so that answers keep their order
        head = [session.address, encode(header)]
        if not self._send_behind(self.router, head, outcome.sent, session.incarnation, buffer):
            log.debug("trainer is gone", **session.fields, epoch=header.epoch, number=header.number)

    def _push_sealed(self, outcome: Outcome, header: Pushed, session: Session) -> bool:
        sealer = outcome.build.sealer
        assert outcome.sealed is not None
        # A trainer that greeted again has another key by now, and could not open what was sealed under the earlier one.
        if sealer is None or session.sealer is not sealer or not self.sealed_port:
            return False
        number, sealed = outcome.sealed
        head = [session.sealed_identity, sealer.seal_header(number, encode(header))]
        if not self._send_behind(self.sockets[1], head, sealed.data, session.incarnation, sealed):
            return False
        session.sealed_number = number
        return True

    def _send_behind(
        self,
        socket: zmq.Socket[bytes],
        head: list[bytes],
        sent: memoryview,
        trainer: int,
        buffer: NDArray[np.uint8] | None,
    ) -> bool:
        """Send a payload behind its header, on its trainer's account; return False if the trainer is gone."""
        try:
            send_now(socket, head, more=True)
        except zmq.ZMQError:  # EHOSTUNREACH: it hung up, or is not connected yet
            return False
        self.batches.take(trainer, sent.nbytes)
        # Without a copy: libzmq sends from our memory, and the tracker tells when it has finished.
        tracker = socket.send(
            zmq.Frame(sent, track=True, copy=False, copy_threshold=0), zmq.DONTWAIT, copy=False, track=True
        )
        assert tracker is not None
        self._unread.append(_UnreadBatch(tracker, trainer, sent.nbytes, buffer))
        return True

    def take_back(self) -> None:
        """Take the batches that libzmq has finished with off the accounts, and return their buffers.

        Batches that it still sends stay on the accounts until a later call.
        """
        self._answers.take_back()
        unread, self._unread = self._unread, []
        for batch in unread:
            if not batch.tracker.done:
                self._unread.append(batch)
                continue
            self.batches.give_back(batch.trainer, batch.nbytes)
            if batch.buffer is not None:
                self.buffers.give_back(batch.buffer)

    def is_behind(self) -> bool:
        """Return whether libzmq is still sending something; it does not notify us, so the caller polls again soon."""
        return bool(self._unread) or self._answers.is_behind()

    def unsent_bytes(self) -> int:
        """Return how many bytes of built batches are still being sent; small ones that go with answers do not count."""
        return sum(batch.nbytes for batch in self._unread)

    def close(self) -> None:
        """Close the sockets; the last messages still have a moment to leave."""
        for socket in self.sockets:
            socket.close(linger=_LINGER_MS)
