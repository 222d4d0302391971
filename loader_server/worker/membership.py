"""A worker's standing with the coordinator: when to register, to send a heartbeat, and to reconnect.

Rules: pure. A coordinator answers every heartbeat, so a connection on which nothing comes may be one that only this
side still believes in (see `silence`). Any message may be lost, so a heartbeat names the version of the list of
culprits that is known here, and is followed by the culprits that are not on it yet. A worker that has left sends
nothing more, because a heartbeat would register it again. A worker whose coordinator speaks another protocol or builds
other bytes keeps registering, because either of them may be replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.building.culprits import culprit_key
from shared.silence import Silence
from shared.wire import messages as m

if TYPE_CHECKING:
    from shared.wire.messages import Message

__all__ = ["Membership"]

#: Heartbeat timeout until the coordinator has named the job's.
_USUAL_TIMEOUT_S = 2.0

#: How long a worker that was never answered keeps trying: its coordinator may start later than it does.
_FIRST_TIME_S = 60.0

#: Pause before registering again.
_PAUSE_S = 0.5
#: The same while we are refused.
_REFUSED_PAUSE_S = 1.0

#: Codes of refusals that end once a release is replaced, ours or the coordinator's: of the protocol, and of the
#: builder.
_WAITED_FOR = ("version", "builder")

#: Pause before sending again what could not be sent, as there is no connection yet.
_NOT_YET_S = 0.02


class Membership:
    """A worker's membership, independent of the connection."""

    def __init__(self) -> None:
        self.heartbeat_timeout_s = _USUAL_TIMEOUT_S
        self.registered = False
        self.left = False
        self._first_try_s: float | None = None
        #: Whether the coordinator has ever accepted us.
        self.was_registered = False
        #: Whether the coordinator refuses us because its release does not fit ours.
        self.is_refused = False
        #: When the coordinator was last heard.
        self.heard_s = 0.0
        #: When to send the next message.
        self.due_s = 0.0
        #: The version of the latest list of culprits; 0 before the first.
        self.culprits = 0
        #: By key: culprits that were found here and are not on the coordinator's list yet.
        self._unlisted: dict[int, m.Culprit] = {}
        self._silence = Silence()

    def hear(self, now_s: float) -> float | None:
        """Note that the coordinator sent something now, which resets the back-off; return a long silence that is over.

        It is in seconds; None if there was none.
        """
        self.heard_s = now_s
        return self._silence.hear(now_s)

    def falls_silent(self) -> bool:
        """Return whether the silence that cost patience is news: once for each, never before the first message."""
        return self._silence.begins()

    def take_in(self, message: Message, now_s: float) -> None:
        """Handle a message that concerns our membership; ignore others.

        `Registered` accepts us, with the heartbeat timeout, and a heartbeat is due at once. A refusal as unknown, or of
        our release, ends the registration, and the next is due at once or after a second. `Culprits` has the list by
        which our own finds are known to be listed.
        """
        match message:
            case m.Registered():
                self.heartbeat_timeout_s = message.heartbeat_timeout_ms / 1000
                self.registered, self.due_s = True, now_s
                self.was_registered, self.is_refused = True, False
            case m.Refused() if message.code in _WAITED_FOR:
                self.registered, self.is_refused = False, True
                # Asked again before long: in a rolling restart the coordinator or this worker is replaced sooner or
                # later.
                self.due_s = now_s + _REFUSED_PAUSE_S
            case m.Refused(code="unknown"):
                self.registered, self.due_s = False, now_s
            case m.Culprits():
                self.culprits = message.version
                for key in message.keys:
                    self._unlisted.pop(key, None)

    def convict(self, culprit: m.Culprit) -> None:
        """Report a sample that killed decoders here, now and with every heartbeat until the coordinator lists it."""
        # Any message may be lost, and a verdict on a sample costs up to five workers.
        self._unlisted[culprit_key(culprit.stream, culprit.identity)] = culprit
        self.due_s = 0.0

    def unlisted(self) -> list[m.Culprit]:
        """Return the culprits to be sent with a heartbeat; none before we are registered."""
        return list(self._unlisted.values()) if self.registered else []

    def move(self, now_s: float) -> None:
        """Register again, as trainers have to find us at another address; do nothing if we are not registered."""
        if self.registered:
            self.registered, self.due_s = False, now_s

    def lose_patience(self, now_s: float) -> bool:
        """Return whether to reconnect now; registration is due then, as a new connection has no worker.

        Return False after leaving, and while the coordinator has not been silent for long enough.
        """
        if self.left or not self._silence.lose_patience(now_s, self.heartbeat_timeout_s):
            return False
        self.registered, self.due_s = False, now_s
        return True

    def gives_up(self, now_s: float) -> bool:
        """Return whether no coordinator has answered within a minute after the first call.

        An acceptance counts as an answer, and so does a refusal that may end with another release.
        """
        if self._first_try_s is None:
            self._first_try_s = now_s
        was_answered = self.was_registered or self.is_refused
        return not was_answered and now_s - self._first_try_s > _FIRST_TIME_S

    def is_due(self, now_s: float) -> bool:
        """Return whether a heartbeat or a registration is due now; never after leaving."""
        return now_s >= self.due_s and not self.left

    def say(self, now_s: float, *, sent: bool) -> None:
        """Set when to send next, after a message that was sent, or soon after one that could not be."""
        self.due_s = now_s + (self._pause_s() if sent else _NOT_YET_S)

    def _pause_s(self) -> float:
        if self.registered:
            return self.heartbeat_timeout_s / 4
        return _REFUSED_PAUSE_S if self.is_refused else _PAUSE_S
