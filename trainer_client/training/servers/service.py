"""A parameter server's process: its socket, its share, and its orders to the other servers.

Rules: one thread; decisions are made in `server_state`. Nobody is waited for: what cannot be sent is asked for again,
except orders, which are kept until their connection is up. Gradients that are not of this share are refused. A peer
whose messages are of no use is not heard for a moment, one that leaves answers unread is sent nothing more, and one
that sends faster than we take in is stopped (see `shared.fairness`).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import port_of
from shared.errors import ProtocolError
from shared.fairness.brakes import Brakes
from shared.fairness.budget import Patience
from shared.fairness.unread import UnreadMessages
from shared.guard import Guard
from shared.logs import Log
from shared.malloc_tuning import Aftermath
from shared.sockets import MAX_PAYLOAD, bind_router, connect_dealer, descriptors_by_port, read_waiting
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire.codec import VersionError, decode, encode, encode_refusal
from shared.wire.refusing import TO_PARAMETER_SERVER, refused
from shared.wire.topics import server_messages as m
from trainer_client.training.servers.server_instructions import Adopt, Answer, KeepOffered, Tell
from trainer_client.training.servers.server_state import ServerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.keys import ClientKeys, ServerKeys
    from shared.wire.message_parts import Message
    from trainer_client.training.servers.server_instructions import Instruction
    from trainer_client.training.servers.share_store import Gradients, ShareStore

__all__ = ["ParameterServer"]

_LOOK_MS = 200
#: How soon to look again whether libzmq has sent waiting answers, or whether a stopped connection may go on.
_SOON_MS = 20
#: Orders to the other servers are sent after each `_AT_ONCE` messages; after `_MOST_MESSAGES`, what is left waits for
#: the next turn. Trainers have one or two under way, and each may be as large as a share.
_AT_ONCE, _MOST_MESSAGES = 16, 1024
#: How often to look whether a flood has ended.
_TIDY_S = 0.5
#: How long the last messages get to leave.
_LINGER_MS = 2000
_NO_FRAME = memoryview(b"")


class ParameterServer:
    """A parameter server at one endpoint; the first server knows the others' endpoints.

    Raise SettingsError if an endpoint is none or ours cannot be bound, and MachineError if too few open files, or too
    little address space, are left for connections.
    """

    def __init__(
        self,
        endpoint: str,
        store: ShareStore,
        *,
        is_first: bool,
        others: Sequence[str] = (),
        keys: tuple[ServerKeys, ClientKeys] | None = None,
    ) -> None:
        self.state = ServerState(is_first=is_first)
        self._store = store
        self._log = Log("parameter server", endpoint=endpoint)
        refuse_small_limits_of_client()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._guard = Guard(self._context, keys[0] if keys else None, TO_PARAMETER_SERVER)
        self._router = bind_router(self._context, endpoint, keys[0] if keys else None, MAX_PAYLOAD)
        self._patience: Patience[bytes] = Patience()
        self._unread = UnreadMessages(self._router)
        self._aftermath, self._tidy_s = Aftermath(), 0.0
        port = port_of(self._router.getsockopt_string(zmq.LAST_ENDPOINT))
        self._brakes = Brakes(lambda: [fd for fd, at in descriptors_by_port() if at == port])
        #: The connection to each other server, and the orders that it could not send yet.
        self._others = [
            (connect_dealer(self._context, other, keys[1] if keys else None, secrets.token_bytes(16)), deque[bytes]())
            for other in others
        ]

    def serve(self) -> None:
        """Serve until the run is over and the other servers know, or until one that is gone was given its time.

        Raise SettingsError if the user's function returns an optimizer that is built; errors of both are passed on.
        """
        until_s = float("inf")
        while not self.state.has_ended or (not self._are_orders_sent() and time.monotonic() < until_s):
            self._router.poll(_SOON_MS if self._brakes.are_on() or self._unread.is_behind() else _LOOK_MS)
            now_s = time.monotonic()
            if self.state.has_ended:  # a server that is not there is not waited for
                until_s = min(until_s, now_s + _LINGER_MS / 1000)
            self._guard.look(now_s)
            is_behind = self._take_in_all(now_s)
            self._brakes.turn(now_s, is_behind=is_behind)
            if is_behind:
                self._aftermath.note()
            self._carry_out(self.state.look(now_s))
            self._send_orders()
            if now_s >= self._tidy_s:
                self._tidy_s = now_s + _TIDY_S
                self._aftermath.look()

    def _take_in_all(self, now_s: float) -> bool:
        """Take in what came, up to 1024 messages; return whether some may be left over.

        Errors of `_take_in` are passed on.
        """
        self._unread.take_back()
        count = 0
        while count < _MOST_MESSAGES:
            before = count
            for frames in read_waiting(self._router, _AT_ONCE):
                count += 1
                self._hear(frames, now_s)
            # Between the messages: the other servers fall behind by what lies here, and their pulls wait for it.
            self._send_orders()
            if count - before < _AT_ONCE:
                return False
        return True

    def _hear(self, frames: list[zmq.Frame], now_s: float) -> None:
        """Take in a message, unless its sender is not heard for now; note a message that was of no use.

        Errors of `_take_in` are passed on.
        """
        asker = frames[0].bytes
        if not self._patience.hears(asker, now_s):
            self._brakes.note_useless(frames[0])
            self._aftermath.note()
        elif not self._take_in(asker, frames, now_s):
            self._brakes.note_useless(frames[0])
            self._patience.bear(asker)

    def _take_in(self, asker: bytes, frames: list[zmq.Frame], now_s: float) -> bool:
        """Take in a message; return whether it was of any use.

        It is not if it cannot be read, its peer is turned away, its frame has another length than it says, what it
        brings or asks for is refused, or all that it leads to is answers without values, except to a share whose rows
        are not here. Errors of making an optimizer, and of its steps, are passed on.
        """
        message = self._read(asker, frames)
        if message is None:
            return False
        turned_away = self._guard.turn_away(self._guard.key_of(frames[0]), message)
        if turned_away is not None:
            self._send(asker, encode(turned_away))
            return False
        payload = frames[2].buffer if len(frames) == 3 else _NO_FRAME
        # The message says how long its frame is; with another one it cannot be carried out.
        if getattr(message, "nbytes", 0) != payload.nbytes:
            return False
        try:
            gradients = self._gradients(message, payload)
            if isinstance(message, m.GiveRows) and self.state.generation == 0:
                self._store.give(message, payload)
            if isinstance(message, m.PullRows | m.SaveRows) and message.generation == self.state.generation:
                self._store.refuse_unknown(message)
            # A share is tried out before it is decided on: one that we cannot hold must not replace the old one.
            if isinstance(message, m.ServeShare) and message.generation != self.state.generation:
                # Restarted since the rows were given: the chief finds that out, and gives everything once more.
                if not self._store.has_rows_of(message):
                    moved = m.Taken(serial=message.serial, code="moved", version=self.state.version, why="")
                    self._send(asker, encode(moved))
                    return True
                self._store.adopt(message, payload)
        except ProtocolError as error:
            self._log.warning("gradients or a share are refused", error=str(error))
            self._send(asker, encode(refused("share", error.expected, error.got, error.remedy)))
            return False
        instructions = self.state.handle(asker, message, now_s)
        self._carry_out(instructions, gradients, payload)
        return any(
            not isinstance(instruction, Answer) or isinstance(instruction.message, m.Values | m.TableRows)
            for instruction in instructions
        )

    def _read(self, asker: bytes, frames: list[zmq.Frame]) -> Message | None:
        """Return the message, or None if it cannot be read; a peer of another version gets a refusal, too."""
        try:
            return decode(frames[1].buffer) if len(frames) > 1 else None
        except VersionError as error:
            self._send(asker, encode_refusal(error))
        except ProtocolError:
            pass
        return None

    def _gradients(self, message: Message, payload: memoryview) -> Gradients | None:
        """Return the gradients of a push for this generation; None for any other message.

        It is None too for a push that is no step. ProtocolError of `read` is passed on, also for such a push. What is
        decided is always carried out, so gradients have to be checked before anything is decided.
        """
        if isinstance(message, m.Push) and message.generation == self.state.generation:
            gradients = self._store.read(message, payload)
            return gradients if message.is_step else None
        return None

    # --- carrying out ---

    def _carry_out(
        self, instructions: list[Instruction], gradients: Gradients | None = None, payload: memoryview = _NO_FRAME
    ) -> None:
        """Send, queue and apply what was decided, in order; `payload` is the frame that came along.

        An order that only has the version is not queued for a server that has others waiting. Errors of the optimizer
        are passed on.
        """
        for instruction in instructions:
            match instruction:
                case Answer():
                    self._answer(instruction)
                case Tell(message):
                    for _, orders in self._others:
                        # A server that is gone would gather one `agree` after another; any order has the version.
                        if not orders or message.what != "agree":
                            orders.append(encode(message))
                case Adopt(parts):  # the store has done so already, in `_take_in`
                    self._log.info("a share is served", parts=len(parts), version=self.state.version)
                case KeepOffered():
                    self._store.offered = bytes(payload)
                case _:
                    self._store.carry_out(instruction, gradients)

    def _answer(self, answer: Answer) -> None:
        """Send an answer, with the frame that belongs to it."""
        match answer:
            case Answer(to, m.TableRows() as message, asked=m.SaveRows() as asked):
                rows, arrays, frame = self._store.piece(asked)
                self._send(to, encode(replace(message, rows=rows, arrays=arrays, nbytes=len(frame))), frame)
            case Answer(to, m.Values() as message):
                frame = self._frame_of(answer)
                self._send(to, encode(replace(message, nbytes=len(frame))), frame)
            case Answer(to, m.OfferedEvaluation() as message) if message.nbytes:
                self._send(to, encode(message), self._store.offered)
            case _:
                self._send(answer.to, encode(answer.message))

    def _frame_of(self, answer: Answer) -> bytes:
        """Return the values that go with an answer: rows of a table, those of the share, or those of its cut."""
        if isinstance(answer.asked, m.PullRows):
            return self._store.rows(answer.asked)
        if answer.cut is None:
            return self._store.values()
        return self._store.copied_values() if answer.values else self._store.copied()

    def _send(self, to: bytes, *frames: bytes) -> None:
        """Send an answer, unless the peer leaves others unread, or is gone: it asks again once it reads."""
        if not self._unread.reads(to):
            self._aftermath.note()
            return
        self._unread.send(to, frames)

    def _send_orders(self) -> None:
        for dealer, orders in self._others:
            with contextlib.suppress(zmq.Again):
                while orders:
                    dealer.send(orders[0], zmq.DONTWAIT)
                    orders.popleft()

    def _are_orders_sent(self) -> bool:
        return not any(orders for _, orders in self._others)

    def close(self) -> None:
        """Close all sockets; the last messages get a moment to leave."""
        for socket in (self._router, *(dealer for dealer, _ in self._others)):
            socket.close(linger=_LINGER_MS)
        self._context.term()
