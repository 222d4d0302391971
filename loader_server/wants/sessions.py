"""The sessions of all trainers of one worker, by incarnation and by connection.

Rules: pure; opening, greeting and closing a session is left to modules that know sockets and memory. The session of a
trainer that is gone stays until its last build has ended, because until then this worker may write into its
slots. Meanwhile it is still found by its connection, because a Pong without those tickets would say that their slots
are free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loader_server.wants.tickets import Tickets
    from shared.wire.message_parts import Ticket
    from shared.wire.messages import Hello

__all__ = ["Sessions", "TrainerSession"]


class TrainerSession(Protocol):
    """A trainer's session, as far as this module needs it."""

    incarnation: int
    #: Whether other trainers' wants go before its own.
    yields: bool
    #: Its present connection.
    address: bytes
    #: Whether it is gone; its session stays only until its last build has ended.
    gone: bool
    tickets: Tickets
    #: Its open tickets.
    builds: dict[Ticket, Any]

    def greet(self, address: bytes, hello: Hello) -> None:
        """Move the session to the connection of a new Hello."""

    def close(self) -> None:
        """Unmap the trainer's slots, if they are open: no batch can be written into them any more."""


S = TypeVar("S", bound=TrainerSession)


class Sessions(Generic[S]):
    """All sessions of a worker; `begin` makes a session from a first Hello."""

    def __init__(self, begin: Callable[[bytes, Hello], S]) -> None:
        self._begin = begin
        self._by_trainer: dict[int, S] = {}
        self._by_address: dict[bytes, S] = {}

    def __len__(self) -> int:
        return len(self._by_trainer)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._by_trainer.values()))

    def at(self, address: bytes) -> S | None:
        """Return the session that has this connection; None if there is none."""
        return self._by_address.get(address)

    def of(self, trainer: int) -> S | None:
        """Return the session of an incarnation; None if there is none."""
        return self._by_trainer.get(trainer)

    def welcome(self, address: bytes, hello: Hello) -> S:
        """Return the session of a trainer that greets on this connection: a new session, or its known one.

        A known session moves here from its earlier connection. Errors of `begin` and `greet` pass through.
        """
        session = self._by_trainer.get(hello.incarnation)
        if session is None:
            session = self._by_trainer[hello.incarnation] = self._begin(address, hello)
        else:
            # It reconnected: from now on messages of the earlier connection belong to no session.
            self._by_address.pop(session.address, None)
            session.greet(address, hello)
        self._by_address[address] = session
        return session

    def leave(self, session: S) -> None:
        """Mark a trainer as gone; close and forget its session now, or with `tidy` once its last build has ended.

        Raise a KeyError if the session was forgotten already.
        """
        session.gone = True
        self.tidy(session)

    def tidy(self, session: S) -> None:
        """Close and forget a session if its trainer is gone and its last build has ended.

        Raise a KeyError if it was forgotten already.
        """
        if session.gone and not session.builds:
            session.close()
            del self._by_trainer[session.incarnation]
            # Another trainer may have said Hello on this connection since.
            if self._by_address.get(session.address) is session:
                del self._by_address[session.address]

    def close(self) -> None:
        """Unmap the slots of all sessions, which are still found afterwards."""
        for session in self:
            session.close()
