"""Trainers as one worker knows them: the stream, the slots, the open tickets of each, and where it speaks from.

Rules: a session belongs to an incarnation of a trainer, not to a connection. One that connects anew and says Hello
again keeps its open tickets, its slots and the lock on them, and is answered where it said Hello last; what comes on
its earlier connection is nobody's. A session goes when nothing of ours can write into its slots any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.tickets import MOST_SLOTS, Tickets
from shared.memory import Attachment
from shared.sealing import KEY_BYTES, Sealer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.build_thread import Job
    from shared.messages import Hello, Ticket, Want

__all__ = ["MOST_SESSIONS", "Session", "Sessions"]

#: More trainers than this no worker serves: each costs it memory, and a mapping of its slots.
MOST_SESSIONS = 4096


class Session:
    """One trainer; opened by its first `Hello`."""

    def __init__(self, address: bytes, hello: Hello, take: Callable[[int], NDArray[np.uint8]]) -> None:
        self.incarnation = hello.incarnation
        self.heard_s = 0.0
        #: Of the connection that it last spoke on; empty: there are no keys.
        self.key = ""
        self.tickets = Tickets()
        #: Its open tickets.
        self.jobs: dict[Ticket, Job] = {}
        self.shared: Attachment | None = None
        self._take = take
        self.greet(address, hello)

    def greet(self, address: bytes, hello: Hello) -> None:
        """Take in a Hello."""
        #: The connection that it speaks on.
        self.address = address
        #: It is gone, and its session stays only until the last job has ended.
        self.gone = False
        self.stream = hello.stream
        self.verify = hello.verify
        self._take_key(hello)
        self._attach(hello)

    def _take_key(self, hello: Hello) -> None:
        """Each Hello has a key of its own, and a place that sealed payloads are for."""
        seal = hello.seal
        self.sealer = Sealer(seal.key) if seal is not None and len(seal.key) == KEY_BYTES else None
        self.sealed_identity = seal.identity if seal is not None else b""
        #: The number of the last payload that was sent under it.
        self.sealed_number = 0

    def _attach(self, hello: Hello) -> None:
        """What we hold already stays: its lock has to last while anything of ours may write there."""
        if self.shared is not None:
            return
        self.why_not_shared = "the trainer does not offer its slots" if hello.shared is None else ""
        if hello.shared is not None:
            try:
                self.shared = Attachment(hello.shared)
            except (OSError, ValueError) as error:
                self.why_not_shared = f"shared memory cannot be had: {error}"
        self.tickets.slots = self.shared.offer.slots if self.shared is not None else MOST_SLOTS

    def buffer(self, want: Want) -> Callable[[int], NDArray[np.uint8]]:
        """Where the batch of a want belongs: in its slot, or in fresh memory that is sent."""
        shared = self.shared
        if want.in_slot and shared is not None:
            return lambda nbytes: shared.slot(want.ticket.slot, nbytes)
        return self._take

    def close(self) -> None:
        """Let go of the trainer's slots."""
        if self.shared is not None:
            self.shared.close()


class Sessions:
    """All of them, by trainer and by connection."""

    def __init__(self, take: Callable[[int], NDArray[np.uint8]]) -> None:
        self._take = take
        self._by_trainer: dict[int, Session] = {}
        self._by_address: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_trainer)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_trainer.values()))

    def at(self, address: bytes) -> Session | None:
        """The trainer that speaks on this connection."""
        return self._by_address.get(address)

    def of(self, trainer: int) -> Session | None:
        """The session of an incarnation."""
        return self._by_trainer.get(trainer)

    def welcome(self, address: bytes, hello: Hello) -> Session:
        """The trainer that says Hello on this connection, known or new."""
        session = self._by_trainer.get(hello.incarnation)
        if session is None:
            session = self._by_trainer[hello.incarnation] = Session(address, hello, self._take)
        else:
            self._by_address.pop(session.address, None)
            session.greet(address, hello)
        self._by_address[address] = session
        return session

    def leave(self, session: Session) -> None:
        """The trainer is gone; its memory is let go once nothing of ours can write there."""
        session.gone = True
        if self._by_address.get(session.address) is session:
            del self._by_address[session.address]
        self.tidy(session)

    def tidy(self, session: Session) -> None:
        """Forget a trainer that is gone, once its last job has ended."""
        if session.gone and not session.jobs:
            session.close()
            del self._by_trainer[session.incarnation]

    def close(self) -> None:
        """Let go of all memory."""
        for session in self:
            session.close()
