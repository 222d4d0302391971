"""A batch on offer to consumers, and the loan of its slot.

Rules: the last reference to a batch ends its slot's loan, without a line of Python that a signal handler could
interrupt: a weak reference leaves itself in a deque, and only then is the receive thread woken.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from shared.tracing.ring import stamp_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.wire.messages import Pushed
    from trainer_client.core.instructions import Offer
    from trainer_client.core.upcoming import UpcomingBatch

__all__ = ["Claim", "Loan", "OfferedBatch"]


class Claim:
    """Token that lives as long as a slot is referenced."""

    __slots__ = ("__weakref__",)


class Loan(weakref.ref[Claim]):
    """Weak reference to a claim; its callback is a built-in method that takes the reference, so no Python runs."""

    # A Python callback could be interrupted by a signal handler that raises, and the slot would be lost.

    __slots__ = ("seq", "slot")

    seq: int
    slot: int


class _Knock:
    """Finaliser that calls a function; apart from the claim, so that an error raised in it keeps no claim alive."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


class OfferedBatch:
    """A complete batch in its slot; when the last reference to it goes, the slot is handed back."""

    # CPython releases slots in alphabetical order: the claim goes first, so the fact is in the deque before the knock
    # wakes the receive thread.
    __slots__ = ("_claim", "_knock", "batch", "built_by", "header", "key", "seq", "slot")

    def __init__(self, offer: Offer, claim: Claim, gone: Callable[[], None]) -> None:
        self.seq = offer.seq
        self.slot = offer.slot
        self.batch: UpcomingBatch = offer.batch
        header = offer.header
        self.header: Pushed = header
        #: The name of the worker that built it.
        self.built_by = offer.worker
        #: What its stamps have in common.
        self.key = stamp_key(header.number, header.epoch, header.ticket)
        self._claim = claim
        self._knock = _Knock(gone)
