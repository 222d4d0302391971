"""A trainer as one worker knows it: its stream, its slots, its open tickets, and its present connection.

Rules: a session belongs to an incarnation of a trainer, not to a connection. A trainer that connects anew and greets
again keeps its open tickets, its slots and the lock on them, and is answered where it said Hello last; messages
on its earlier connection are ignored. A session ends once this worker can no longer write into its slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.wants.tickets import MOST_SLOTS, Tickets
from shared.events.trainer_fields import trainer_fields
from shared.memory import OpenedSlots
from shared.wire.sealing import KEY_BYTES, Sealer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.building.build_thread import Build
    from shared.wire.message_parts import Ticket
    from shared.wire.messages import Hello, Want

__all__ = ["MOST_SESSIONS", "Session"]

#: The limit on trainers of a worker: each costs it memory, and a mapping of the trainer's slots.
MOST_SESSIONS = 4096


class Session:
    """One trainer's session, opened by its first `Hello`; errors of `greet` pass, such as an ImportError."""

    def __init__(self, address: bytes, hello: Hello, take: Callable[[int], NDArray[np.uint8]]) -> None:
        self.incarnation = hello.incarnation
        #: Whether other trainers' wants go before its own; it never changes, so only the first Hello counts.
        self.yields = hello.yields
        self.heard_s = 0.0
        #: The public key of its last connection; empty if there are no keys.
        self.key = ""
        self.tickets = Tickets()
        #: The builds of its open tickets.
        self.builds: dict[Ticket, Build] = {}
        self.shared: OpenedSlots | None = None
        self._take = take
        self.greet(address, hello)

    def greet(self, address: bytes, hello: Hello) -> None:
        """Move the session to the connection of a new Hello, and take over the fields of the Hello.

        A session whose trainer was gone is so no longer. Slots that are not open yet are opened, and `yields` stays as
        the first Hello set it. Raise ImportError of `Sealer` without the library for sealing, if the Hello has a key.
        """
        #: Its present connection.
        self.address = address
        #: Whether it is gone; its session stays only until its last build has ended. A trainer that comes back before
        #: that has never been away: its tickets are as they were.
        self.gone = False
        self.stream = hello.stream
        #: What a log line about this trainer names it by.
        self.fields = {"stream": hello.stream, **trainer_fields(hello.name, hello.rank, hello.incarnation)}
        self.verify = hello.verify
        self._take_key(hello)
        self._attach(hello)

    def _take_key(self, hello: Hello) -> None:
        """Take the sealing key of a Hello, and the identity to send sealed payloads to.

        Without a key of the right length nothing is sealed. Each Hello brings a new key, so payload numbers start
        again. ImportError of `Sealer` passes.
        """
        seal = hello.seal
        self.sealer = Sealer(seal.key) if seal is not None and len(seal.key) == KEY_BYTES else None
        self.sealed_identity = seal.identity if seal is not None else b""
        #: The number of the last payload that was sent under this key.
        self.sealed_number = 0

    def _attach(self, hello: Hello) -> None:
        """Open the trainer's slots, unless they are open; note why if they are not offered or cannot be opened.

        A session never opens them twice: the first lock has to last for as long as this worker may write there.
        """
        if self.shared is not None:
            return
        self.why_not_shared = "the trainer does not offer its slots" if hello.shared is None else ""
        # What could not be opened is tried again with each Hello; meanwhile TCP serves.
        if hello.shared is not None:
            try:
                self.shared = OpenedSlots(hello.shared)
            except (OSError, ValueError) as error:
                self.why_not_shared = f"shared memory cannot be had: {error}"
        # Shared memory proves how many slots there are; otherwise only our limit bounds the numbers.
        self.tickets.slots = self.shared.offer.slots if self.shared is not None else MOST_SLOTS

    def buffer(self, want: Want) -> Callable[[int], NDArray[np.uint8]]:
        """Return the function that gives the memory for a want's batch: its slot, or a buffer to be sent.

        It is a buffer as well for a want of a slot while the slots are not shared. The function of a slot raises
        ValueError if the slots are closed, or slot or size are outside of them; that of a buffer OSError if no memory
        can be mapped.
        """
        shared = self.shared
        if want.in_slot and shared is not None:
            return lambda nbytes: shared.slot(want.ticket.slot, nbytes)
        return self._take

    def close(self) -> None:
        """Unmap the trainer's slots, if they are open: no batch can be written into them any more."""
        if self.shared is not None:
            self.shared.close()
