"""What the coordinator sends in a turn: which messages are promises, and which ones a later one makes needless.

Rules: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.wire import messages as m

if TYPE_CHECKING:
    from loader_server.coordinator.events import Send

__all__ = ["drop_older_members", "is_promise"]


def is_promise(message: m.Message) -> bool:
    """Return whether it promises what must survive a crash: leases, places in a world, attachment to a queue."""
    return isinstance(message, (m.Leases, m.Placed)) or (isinstance(message, m.Attached) and bool(message.work))


def drop_older_members(orders: list[Send]) -> list[Send]:
    """Drop all but the last list of workers, if any, for each peer: in a fleet, workers register by the dozen."""
    last = {order.peer: order for order in orders if isinstance(order.message, m.Members)}
    return [order for order in orders if not isinstance(order.message, m.Members) or last[order.peer] is order]
