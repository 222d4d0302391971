"""A trainer as one worker knows it: its stream, its slots, the tickets of it that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loader_server.tickets import Tickets
from shared.memory import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from loader_server.build_thread import Job
    from shared.messages import Hello, Want

__all__ = ["Session"]


class Session:
    """Opened by a `Hello`; closed when the trainer is gone, never while a thread may write into its slots."""

    def __init__(self, hello: Hello, now_s: float) -> None:
        self.stream = hello.stream
        self.incarnation = hello.incarnation
        self.verify = hello.verify
        self.heard_s = now_s
        self.tickets = Tickets()
        self.jobs: dict[object, Job] = {}
        self.shared: Attachment | None = None
        self.why_not_shared = "the trainer does not offer its slots" if hello.shared is None else ""
        if hello.shared is not None:
            try:
                self.shared = Attachment(hello.shared)
            except (OSError, ValueError) as error:
                self.why_not_shared = f"shared memory cannot be had: {error}"

    def buffer(self, want: Want) -> Callable[[int], NDArray[np.uint8]]:
        """Where the batch of a want belongs: in its slot, or in fresh memory that is sent."""
        shared = self.shared
        if want.in_slot and shared is not None:
            return lambda nbytes: shared.slot(want.ticket.slot, nbytes)
        return lambda nbytes: np.empty(nbytes, np.uint8)

    def close(self) -> None:
        """Let go of the trainer's slots."""
        if self.shared is not None:
            self.shared.close()
            self.shared = None
