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

    def go_down(self, now_s: float) -> None:
        """Note that it is down, and that there is nobody to greet until it is up."""
        self.move("down", now_s)
        self.hello_s = float("inf")

    def greet_at(self, time_s: float) -> None:
        """Say Hello then, unless it is answered before."""
        assert self.state is ConnectionState.GREETING
        self.hello_s = time_s

    def offer(self, lock_byte: int) -> None:
        """Offer this lock byte with each Hello, until a worker locks it."""
        assert not self.lock_byte
        self.lock_byte = lock_byte

    def serve(self, incarnation: int, pause_s: float, now_s: float, *, shared: bool, locked: bool) -> None:
        """Note that this worker serves us here; a lock byte that it took is never offered again."""
        self.move("welcome, shared" if shared else "welcome", now_s)
        self.incarnation = incarnation
        if locked:
            self.lock_byte = 0
        self.hello_s, self.renew_s, self.renew_pause_s = float("inf"), float("inf"), pause_s

    def part(self) -> None:
        """Note that whoever served us here is gone, or is reached no longer."""
        self.incarnation = None

    def is_renewed(self, longest_s: float, now_s: float) -> bool:
        """Return whether to replace it now; then wait twice as long before the next time, up to `longest_s`.

        A worker that is stopped for a minute must not be met with a new connection every heartbeat.
        """
        if self.renew_s == float("inf"):
            self.renew_s = now_s
        if now_s < self.renew_s:
            return False
        self.renew_pause_s = min(2 * self.renew_pause_s, longest_s)
        self.renew_s = now_s + self.renew_pause_s
        return True

    def excuse(self, now_s: float) -> None:
        """Restart its timer."""
        self.since_s = now_s
