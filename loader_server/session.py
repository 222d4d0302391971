"""A trainer as one worker knows it: its stream, its slots, the tickets of it that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.tickets import Tickets
from shared.memory import Attachment
from shared.sealing import KEY_BYTES, Sealer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.build_thread import Job
    from shared.messages import Hello, Want

__all__ = ["Session"]


class Session:
    """Opened by a `Hello`; closed when the trainer is gone, never while a thread may write into its slots."""

    def __init__(self, hello: Hello, take: Callable[[int], NDArray[np.uint8]], now_s: float) -> None:
        self._take = take
        self.stream = hello.stream
        self.incarnation = hello.incarnation
        self.verify = hello.verify
        self.take_key(hello)
        self.heard_s = now_s
        #: Of the connection that it last spoke on; empty: there are no keys.
        self.key = ""
        self.tickets = Tickets()
        self.jobs: dict[object, Job] = {}
        self.shared: Attachment | None = None
        self.why_not_shared = "the trainer does not offer its slots" if hello.shared is None else ""
        if hello.shared is not None:
            try:
                self.shared = Attachment(hello.shared)
            except (OSError, ValueError) as error:
                self.why_not_shared = f"shared memory cannot be had: {error}"

    def take_key(self, hello: Hello) -> None:
        """Each Hello has a key of its own, and a place that sealed payloads are for."""
        seal = hello.seal
        self.sealer = Sealer(seal.key) if seal is not None and len(seal.key) == KEY_BYTES else None
        self.sealed_identity = seal.identity if seal is not None else b""
        #: The number of the last payload that was sent under it.
        self.sealed_number = 0

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
            self.shared = None
