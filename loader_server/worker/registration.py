"""A worker's talk with the coordinator: it registers, sends heartbeats, and learns of samples that kill decoders.

Rules: used in the worker's poll loop only; when to say what is decided in `membership`. A machine's address may come
late or change, so where trainers reach us is worked out anew with each registration and each heartbeat. If the
coordinator is away we wait for it, and register again when it is back; attached trainers are served meanwhile. A
coordinator that was never there is waited for only so long. One that speaks another protocol or has other bytes is
waited for as well: in a rolling restart it was upgraded before us, or we before it. What differs is said once, and
whenever that changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from typing import TYPE_CHECKING

import zmq

from loader_server.machine.reachable import find_reachable_endpoint, look_up
from loader_server.worker.membership import Membership
from shared.endpoints import is_connectable
from shared.errors import LostError, ProtocolError
from shared.logs import Log
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.system.endpoint_file import FollowedEndpoint
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.parts import clipped
from shared.wire.refusals import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.errors import StokerError
    from shared.keys import ClientKeys

__all__ = ["Registration"]

#: How often the coordinator is told why this worker does not serve, or not all.
_FAILING_PAUSE_S = 2.0


class Registration:
    """One DEALER to the coordinator; `socket` is replaced when the connection is made anew."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        coordinator: str,
        keys: ClientKeys | None,
        register: m.Register,
        parts: Callable[[], tuple[tuple[str, str], ...]] = tuple,
    ) -> None:
        self.membership = Membership()
        self._context = context
        self._followed = FollowedEndpoint(coordinator, encrypted=keys is not None)
        #: The coordinator's address that we are connected to.
        self._connected = ""
        self._keys = keys
        #: With the endpoint that we are bound to, which may be that of all addresses.
        self._bound = register
        self._register = register
        #: The coordinator's endpoint by address, once its name was looked up. That may take long, most of all while the
        #: network is down, so it is looked up again only when the coordinator has taken us in.
        self._looked_up: str | None = None
        self._looks_up_again = False
        self.socket = self._connect()
        self._log = Log("worker", worker=register.worker)
        self._pieces: list[m.BundlePiece] = []
        #: What our builder fingerprint is made of.
        self._parts = parts
        #: Why the coordinator does not take us in, if we wait until it or we are replaced.
        self.refusal: m.Refused | None = None
        #: The same before it says which part differs, if it has not said so since we registered last.
        self._unexplained: m.Refused | None = None
        #: Why this worker serves only in part, or not at all.
        self._failing: m.Failing | None = None
        self._failing_s = 0.0
        #: Whether there is a stream that it can serve: only then does it register.
        self._may_register = True

    def _connect(self) -> zmq.Socket[bytes]:
        address = self._followed.address
        dealer = connect_dealer(self._context, address, self._keys, secrets.token_bytes(16))
        if address != self._connected:
            self._connected, self._looked_up = address, None
        return dealer

    def tell_metrics(self, bound: str) -> None:
        """Name the place where our metrics are served in what we register with from now on."""
        self._bound = dataclasses.replace(self._bound, metrics=bound)
        self._register = dataclasses.replace(self._register, metrics=bound)

    @property
    def heartbeat_timeout_s(self) -> float:
        """The job's, once we are registered."""
        return self.membership.heartbeat_timeout_s

    def due_s(self) -> float:
        """When the next turn is due at the latest."""
        return self.membership.due_s

    def turn(self, now_s: float, load: Callable[[], m.Beat], *, spoken_to: bool) -> list[m.Culprits]:
        """Take in what was said and say what is due; returns the lists of culprits that came."""
        culprits: list[m.Culprits] = []
        for frames in read_waiting(self.socket) if spoken_to else ():
            self.membership.hear(now_s)
            with contextlib.suppress(ProtocolError):
                culprits += self._take_in(decode(frames[0].buffer), now_s)
        if self._may_register and self.membership.gives_up(now_s):
            raise self._nobody()
        if self.membership.lose_patience(now_s):
            self._renew()
        if self.membership.is_due(now_s):
            self._follow(now_s)
            self._look_where_we_are(now_s)
            self._say_what_is_due(now_s, load)
        return culprits

    def _follow(self, now_s: float) -> None:
        """Connect to where the coordinator is now, if it is quiet and its file says another place; register there."""
        if self._followed.has_moved(self._connected, now_s - self.membership.heard_s, now_s):
            self._log.info("coordinator is elsewhere", before=self._connected, now=self._followed.address)
            self.membership.move(now_s)
            self._renew()

    def _say_what_is_due(self, now_s: float, load: Callable[[], m.Beat]) -> None:
        message = load() if self.membership.registered else self._register
        sent = True
        if self._unexplained is not None:
            self._note_refusal(self.refusal or self._unexplained, now_s)
        if self._may_register or self.membership.registered:
            sent = is_connectable(self._register.endpoint) and self._send(message)
        if sent and self._failing is not None and not self.membership.is_refused and now_s >= self._failing_s:
            sent = self._send(self._failing)
            self._failing_s = now_s + _FAILING_PAUSE_S
        for culprit in self.membership.unlisted() if sent else ():
            self._send(culprit)
        self.membership.say(now_s, sent=sent)

    def note_data(self, failing: m.Failing | None, *, may_register: bool, now_s: float) -> None:
        """Take in what data are missing here: the coordinator is told, and a worker without any does not register.

        Once there is less missing than before it registers again, because that takes back what was told.
        """
        if self._failing is not None and failing != self._failing:
            self.membership.move(now_s)
        self._failing, self._may_register = failing, may_register
        self._failing_s = self.membership.due_s = now_s

    def _look_where_we_are(self, now_s: float) -> None:
        """Work out our address; while there is no route we keep the one we had, because it may come back."""
        if not self._connected:
            return
        if self._looks_up_again or self._looked_up is None:
            self._looked_up, self._looks_up_again = look_up(self._connected) or self._looked_up, False
        endpoint = find_reachable_endpoint(self._bound.endpoint, self._looked_up or self._connected)
        if endpoint is not None and endpoint != self._register.endpoint:
            if self.membership.registered:
                self._log.info("worker has another address", before=self._register.endpoint, now=endpoint)
            self._register = dataclasses.replace(self._bound, endpoint=endpoint)
            self.membership.move(now_s)

    def _nobody(self) -> LostError:
        return LostError(
            expected="a coordinator that takes this worker in",
            got=self._followed.problem or "no answer for a minute", where=self._followed.given,
            remedy="Start it with `loader-server coordinator job.toml`, or correct --coordinator.",
        )  # fmt: skip

    def _renew(self) -> None:
        self._followed.look()
        try:
            former, self.socket = self.socket, self._connect()
        except zmq.ZMQError as error:  # no descriptor, say
            self._log.warning("connection to the coordinator cannot be made anew yet", error=str(error))
        else:
            former.close(linger=0)

    def _take_in(self, message: m.Message, now_s: float) -> list[m.Culprits]:
        self.membership.take_in(message, now_s)
        if isinstance(message, m.Culprits):
            return [message]
        self._looks_up_again |= isinstance(message, m.Registered)
        if isinstance(message, m.BundlePiece):
            self._pieces.append(message)
        if isinstance(message, m.Registered) and self.refusal is not None:
            self._log.info("the coordinator takes this worker in again", coordinator=self._connected)
            self.refusal = self._unexplained = None
        if isinstance(message, m.Refused) and message.code == "builder":
            self._hear_refusal(message, now_s)
        elif isinstance(message, m.Refused) and message.code == "version":
            self._note_refusal(message, now_s)
        elif isinstance(message, m.Refused) and message.code != "unknown":
            raise self.error_of(message)
        return []

    def _hear_refusal(self, refusal: m.Refused, now_s: float) -> None:
        """Ask what differs; a Register that was said twice brings the same refusal twice."""
        if self._unexplained is None:
            self._unexplained = refusal
            self._send(m.BuilderParts(worker=self._register.worker, parts=self._parts()))
        elif refusal != self._unexplained:
            self._note_refusal(refusal, now_s)

    def _note_refusal(self, refusal: m.Refused, now_s: float) -> None:
        """Tell people what we wait for: the log once, the coordinator now and then.

        That follows a refusal, and not a Register, which may be the one that lets us in.
        """
        self._unexplained = None
        words = self.error_of(refusal).words()
        if refusal != self.refusal:
            self.refusal, self._failing_s = refusal, now_s
            self._log.warning("this worker waits until it or its coordinator is replaced", **words)
        if refusal.code == "builder" and now_s >= self._failing_s:
            self._failing_s = now_s + _FAILING_PAUSE_S
            self._send(m.Failing(worker=self._register.worker, **{name: clipped(text) for name, text in words.items()}))

    def error_of(self, refusal: m.Refused) -> StokerError:
        """Return what the coordinator said as an error."""
        return error_of(refusal, f"coordinator at {self._connected}")

    def take_pieces(self) -> list[m.BundlePiece]:
        """Pieces of the bundle that came since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def ask(self, wanted: Iterable[m.BundleWanted]) -> None:
        """Ask for pieces of the bundle; what does not get out is asked for again."""
        for one in wanted:
            self._send(one)

    def leave(self) -> None:
        """Say that we are leaving, so that no new wants come; only once."""
        if not self.membership.left:
            leave = m.Leave(worker=self._register.worker, incarnation=self._register.incarnation)
            self.membership.left = self._send(leave)

    def _send(self, message: m.Message) -> bool:
        return send_if_up(self.socket, encode(message))

    def close(self) -> None:
        """Hang up."""
        self.socket.close(linger=100)
