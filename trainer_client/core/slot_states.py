"""The state of each slot, which says who may touch its bytes.

Rules: pure. A slot is lent again only after the answer to its last ticket, or when its writer is proved dead, or when
nobody could write into it anyway (the batch comes as a TCP frame and the trainer itself writes). Each lending raises
the slot's generation, so that an answer to an older ticket is recognised as stale. One reserve slot is never lent for
writing in place, so that the head can always be asked for through it. A consumer's action may have to be inferred: a
slot that is handed back must have been taken.
"""

from __future__ import annotations

import enum

from shared.wire.message_parts import Ticket

__all__ = ["SlotState", "SlotStates"]


class SlotState(enum.Enum):
    """The party that may touch a slot's bytes."""

    FREE = "free"  #: nobody
    LENT = "lent"  #: the worker that holds the ticket
    OFFERED = "offered"  #: a consumer may take the batch in it at any moment
    OUT = "out"  #: the consumer

    # Enum's own hash is Python code, and every transition of a slot hashes several states.
    __hash__ = object.__hash__


#: The allowed transitions; any other pair is a bug and raises. OFFERED goes straight to FREE by "hand back" if a signal
#: kept the consumer from reporting that it took the batch.
_NEXT = {
    (SlotState.FREE, "lend"): SlotState.LENT,
    (SlotState.LENT, "offer"): SlotState.OFFERED,
    (SlotState.LENT, "release"): SlotState.FREE,
    (SlotState.OFFERED, "take"): SlotState.OUT,
    (SlotState.OFFERED, "take back"): SlotState.FREE,
    (SlotState.OFFERED, "hand back"): SlotState.FREE,
    (SlotState.OUT, "hand back"): SlotState.FREE,
}


class SlotStates:
    """The states of `slots` ordinary slots, and of the reserve slot behind them."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.reserve = slots
        self._states = [SlotState.FREE] * (slots + 1)
        self._generations = [0] * (slots + 1)
        # A stack: the slot freed last is lent first, because its pages are warm, and slots that were never used stay
        # unallocated.
        self._free = list(range(slots - 1, -1, -1))
        self._counts = dict.fromkeys(SlotState, 0) | {SlotState.FREE: slots + 1}

    def lend(self) -> Ticket | None:
        """Lend a free ordinary slot and return its ticket; return None if all are in use."""
        return self._lend(self._free.pop()) if self._free else None

    def lend_reserve(self) -> Ticket | None:
        """Lend the reserve slot and return its ticket; return None if it is in use."""
        # All ordinary slots may be at silent workers when the head needs one. Its batch then comes by TCP: a writer in
        # place that is stopped would hold this slot as well.
        return self._lend(self.reserve) if self._states[self.reserve] is SlotState.FREE else None

    def _lend(self, slot: int) -> Ticket:
        self._move(slot, "lend")
        # The answer to a cancelled want may arrive after its slot was lent again; the generation tells them apart.
        self._generations[slot] += 1
        return Ticket(slot, self._generations[slot])

    def superfluous(self, most: int) -> tuple[int, ...]:
        """Return the free ordinary slots that stay unused if no more than `most` are in use at a time; maybe none."""
        # The slots freed last are lent first, so those at the bottom of the stack are the ones to give up.
        in_use = self.slots - len(self._free)
        return tuple(self._free[: max(0, len(self._free) - max(0, most - in_use))])

    def offer(self, ticket: Ticket) -> None:
        """Offer the slot to consumers: its batch has arrived.

        Raise AssertionError if the ticket is stale, or the slot is not lent.
        """
        self._require_current(ticket)
        self._move(ticket.slot, "offer")

    def release(self, ticket: Ticket) -> None:
        """Free a lent slot that nobody can write into any more: it got no batch, or one that is not needed.

        Raise AssertionError if the ticket is stale, or the slot is not lent.
        """
        # Not before: a worker that is stopped in the middle of a write, and whose want is built elsewhere, goes on
        # writing into whatever the slot holds by then.
        self._require_current(ticket)
        self._move(ticket.slot, "release")

    def take(self, slot: int) -> None:
        """Note that a consumer took the batch; raise AssertionError if the slot was not on offer."""
        self._move(slot, "take")

    def take_back(self, slot: int) -> None:
        """Free the slot of an offered batch that was retracted before a consumer took it.

        Raise AssertionError if the slot was not on offer.
        """
        self._move(slot, "take back")

    def hand_back(self, slot: int) -> None:
        """Free the slot after the consumer's last reference is gone.

        Raise AssertionError unless a consumer has the slot, or it is on offer: a consumer may have taken it unnoticed.
        """
        self._move(slot, "hand back")

    def state(self, slot: int) -> SlotState:
        """Return the state of this slot, which may be the reserve."""
        return self._states[slot]

    def count(self, state: SlotState) -> int:
        """Return how many slots, the reserve included, are in this state."""
        return self._counts[state]

    def _require_current(self, ticket: Ticket) -> None:
        # By now the slot may be lent to another worker, whose write a late answer would offer as its own batch.
        if self._generations[ticket.slot] != ticket.generation:
            raise AssertionError(f"{ticket} is stale: generation {self._generations[ticket.slot]} is current")

    def _move(self, slot: int, event: str) -> None:
        before = self._states[slot]
        after = _NEXT.get((before, event))
        if after is None:
            raise AssertionError(f"slot {slot}: cannot {event} while {before.value}")
        self._states[slot] = after
        # Counted here, so that metrics, which are read in another thread, need not go through all slots.
        self._counts[before] -= 1
        self._counts[after] += 1
        if after is SlotState.FREE and slot != self.reserve:
            self._free.append(slot)
