"""The state of the connection to one worker, and a table of its transitions.

Rules: pure. A transition that is not in the table raises, naming the connection, the state and the event.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["SERVING", "Connection", "ConnectionState"]


class ConnectionState(enum.Enum):
    """The state of a connection to a worker."""

    DOWN = "down"  #: libzmq is connecting, perhaps again
    GREETING = "greeting"  #: it is up, but Hello is not answered yet
    SHARED = "by shared memory"  #: the worker serves us and writes into our slots
    TCP = "by TCP"  #: the worker serves us with frames
    DRAINING = "draining"  #: the worker answers the wants that it has, and takes no new ones
    CLOSED = "closed"  #: we hung up


SERVING = (ConnectionState.SHARED, ConnectionState.TCP, ConnectionState.DRAINING)

#: The allowed transitions; any other pair is a bug and raises. A repeated Hello may bring a second Welcome, so a
#: welcome is allowed in every serving state; so is a new greeting, because a restarted worker does not know us.
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
    """One connection to an endpoint; it survives restarts of the worker there."""

    id: int
    endpoint: str
    local: bool
    opened_s: float
    #: Since when the connection has been in this state.
    since_s: float
    state: ConnectionState = ConnectionState.DOWN
    #: The incarnation of the worker that serves us here; None if none does.
    incarnation: int | None = None
    #: The lock byte to offer with Hello; 0 before the first Hello, and once a worker has locked it.
    lock_byte: int = 0
    #: When to send Hello (again).
    hello_s: float = float("inf")
    #: When Hello was sent last.
    greeted_s: float = 0.0
    #: When to replace the connection if it stays silent, and the back-off before the next replacement.
    renew_s: float = float("inf")
    renew_pause_s: float = 0.0

    def move(self, event: str, now_s: float) -> None:
        """Make the transition for this event; raise AssertionError if it is not allowed in the present state."""
        after = _NEXT.get((self.state, event))
        if after is None:
            raise AssertionError(f"connection to {self.endpoint}: cannot {event} while {self.state.value}")
        if after is not self.state:
            self.state, self.since_s = after, now_s

    def go_down(self, now_s: float) -> None:
        """Note that the connection is down; no Hello is due until it is up again.

        Raise AssertionError if the connection is closed.
        """
        self.move("down", now_s)
        self.hello_s = float("inf")

    def greet_at(self, time_s: float) -> None:
        """Schedule the next Hello, which a Welcome makes unnecessary; the connection must be waiting for one."""
        assert self.state is ConnectionState.GREETING
        self.hello_s = time_s

    def greet(self, now_s: float, again_s: float) -> None:
        """Note that Hello is sent, and schedule the next one; the connection must be waiting for a Welcome."""
        self.greet_at(again_s)
        self.greeted_s = now_s

    def offer(self, lock_byte: int) -> None:
        """Offer this lock byte with each Hello until a worker locks it; none may be on offer already."""
        assert not self.lock_byte
        self.lock_byte = lock_byte

    def serve(self, incarnation: int, pause_s: float, now_s: float, *, shared: bool, locked: bool) -> None:
        """Note that this worker serves us here; a lock byte that it `locked` is not offered again.

        No Hello is due any more. `pause_s` resets the back-off between replacements of the connection for silence.
        Raise AssertionError if the connection is down or closed.
        """
        self.move("welcome, shared" if shared else "welcome", now_s)
        self.incarnation = incarnation
        if locked:
            self.lock_byte = 0
        self.hello_s, self.renew_s, self.renew_pause_s = float("inf"), float("inf"), pause_s

    def part(self) -> None:
        """Note that no worker serves us here any more, until one welcomes us again."""
        self.incarnation = None

    def is_renewed(self, longest_s: float, now_s: float) -> bool:
        """Return whether to replace the silent connection now; if so, double the back-off, up to `longest_s`.

        The first call after the connection was made, or after a worker began to serve on it, returns True.
        """
        # Without back-off, a worker that is stopped for a minute would get a new connection in every heartbeat timeout.
        if self.renew_s == float("inf"):
            self.renew_s = now_s
        if now_s < self.renew_s:
            return False
        self.renew_pause_s = min(2 * self.renew_pause_s, longest_s)
        self.renew_s = now_s + self.renew_pause_s
        return True

    def excuse(self, now_s: float) -> None:
        """Restart the timer of the present state, because we stalled."""
        self.since_s = now_s
