"""How the connection to one worker stands: a table of states, and what is known of it.

Rules: pure. A pair that is not in the table raises, naming the connection, the state and the event.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["SERVING", "Connection", "ConnectionState"]


class ConnectionState(enum.Enum):
    """How the connection to a worker stands."""

    DOWN = "down"  #: it is being made
    GREETING = "greeting"  #: it is up, but Hello was not answered yet
    SHARED = "by shared memory"  #: the worker serves us and writes into our slots
    TCP = "by TCP"  #: the worker serves us with frames
    DRAINING = "draining"  #: the worker answers what it has, and takes nothing new
    CLOSED = "closed"  #: we hung up


SERVING = (ConnectionState.SHARED, ConnectionState.TCP, ConnectionState.DRAINING)

#: What may happen to a connection; any other pair is a bug of ours and raises.
_NEXT: dict[tuple[ConnectionState, str], ConnectionState] = {
    (ConnectionState.DOWN, "up"): ConnectionState.GREETING,
    (ConnectionState.GREETING, "greet again"): ConnectionState.GREETING,
    **{(state, "greet again"): ConnectionState.GREETING for state in SERVING},
    **{(state, "welcome, shared"): ConnectionState.SHARED for state in (ConnectionState.GREETING, *SERVING)},
    **{(state, "welcome"): ConnectionState.TCP for state in (ConnectionState.GREETING, *SERVING)},
    **{(state, "drain"): ConnectionState.DRAINING for state in SERVING},
    **{(state, "down"): ConnectionState.DOWN for state in ConnectionState if state is not ConnectionState.CLOSED},
    **{(state, "close"): ConnectionState.CLOSED for state in ConnectionState if state is not ConnectionState.CLOSED},
}


@dataclass(slots=True, eq=False)
class Connection:
    """One connection; it survives restarts of the worker at the same endpoint."""

    id: int
    endpoint: str
    local: bool
    opened_s: float
    #: Since when it has been in this state.
    since_s: float
    state: ConnectionState = ConnectionState.DOWN
    #: The incarnation that answered last.
    incarnation: int | None = None
    #: The lock byte that was offered with the last Hello.
    lock_byte: int = 0
    #: When to say Hello (again).
    hello_s: float = float("inf")
    #: When to replace it if nothing is heard until then, and how long to wait before the next time.
    renew_s: float = float("inf")
    renew_pause_s: float = 0.0

    def move(self, event: str, now_s: float) -> None:
        """Apply what happened to it."""
        after = _NEXT.get((self.state, event))
        if after is None:
            raise AssertionError(f"connection to {self.endpoint}: cannot {event} while {self.state.value}")
        if after is not self.state:
            self.state, self.since_s = after, now_s
