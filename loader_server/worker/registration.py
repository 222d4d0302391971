"""A worker's connection to the coordinator: registration, heartbeats, and the list of samples that kill decoders.

Rules: used in the worker's poll loop only; `membership` decides when to send what. A machine's address may come late or
change, so the address at which trainers reach us is worked out anew with each registration and each heartbeat. While
the coordinator is away we wait for it, serve attached trainers, and register again when it is back. A coordinator that
was never there is waited for only for a limited time. A coordinator that speaks another protocol or builds other bytes
is waited for as well: in a rolling restart it was upgraded before us, or we before it. The difference is logged once,
and again when it changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

import zmq

from loader_server.machine.reachable import find_reachable_endpoint, look_up
from loader_server.worker.membership import Membership
from shared.endpoints import is_connectable
from shared.errors import LostError, ProtocolError
from shared.logs import Log
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.system.endpoint_file import FollowedEndpoint
from shared.system.system_errors import system_error
from shared.tracing.answering import page_of
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import clipped
from shared.wire.refusing import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.errors import StokerError
    from shared.keys import ClientKeys
    from shared.tracing.ring import StampRing

__all__ = ["Registration"]

#: Interval of reports to the coordinator that this worker serves no stream, or not all.
_FAILING_PAUSE_S = 2.0
#: Limit of questions for stamps that wait for an answer.
_MOST_QUESTIONS = 64


class Registration:
    """One DEALER to the coordinator; `socket` is replaced when it reconnects.

    Making it raises SettingsError if `coordinator` is neither an endpoint nor a file, or others may write the file and
    no keys are used, and zmq.ZMQError if the socket cannot be made.
    """

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
        #: The endpoint that this worker is bound to, which may be that of all addresses.
        self._bound = register.endpoint
        #: Its registration, with the endpoint at which trainers reach it.
        self._register = register
        #: The coordinator's endpoint by address, once its name was resolved. Resolving may take long, most of all while
        #: the network is down, so it is repeated only after the coordinator has accepted us.
        self._looked_up: str | None = None
        self._looks_up_again = False
        #: Whether it could not even look for its own address last.
        self._is_blind = False
        self.socket = self._connect()
        self._log = Log("worker", worker=register.worker)
        self._pieces: list[m.BundlePiece] = []
        #: Questions for stamps; the oldest of too many are dropped.
        self._trace_questions: deque[m.TraceWanted] = deque(maxlen=_MOST_QUESTIONS)
        #: The parts of our builder fingerprint.
        self._parts = parts
        #: The refusal that lasts until the coordinator or this worker is replaced.
        self.refusal: m.Refused | None = None
        #: A refusal whose differing parts we have asked for; None once they are known.
        self._unexplained: m.Refused | None = None
        #: The reason why this worker serves only a part of its streams, or none.
        self._failing: m.Failing | None = None
        self._failing_s = 0.0
        #: Whether there is a stream that it can serve: only then does it register.
        self._may_register = True

    def _connect(self) -> zmq.Socket[bytes]:
        address = self._followed.address
        dealer = connect_dealer(self._context, address, self._keys, secrets.token_bytes(16))
        # A name that was resolved belongs to the former address.
        if address != self._connected:
            self._connected, self._looked_up = address, None
        return dealer

    def tell_metrics(self, bound: str) -> None:
        """Put the address of our metrics into all further registrations."""
        self._register = dataclasses.replace(self._register, metrics=bound)

    def turn(self, now_s: float, load: Callable[[], m.Beat], *, spoken_to: bool) -> list[m.Culprits]:
        """Handle the coordinator's messages and send what is due; return the lists of culprits that came.

        Raises LostError if no coordinator has answered for a minute after the start, the error with which the
        coordinator refuses this worker for good, or SettingsError if the coordinator's endpoint file is unsafe and no
        address is known yet. A message that cannot be encoded raises a ValueError. Errors of `_find_endpoint`, `load`
        and `parts` pass through.
        """
        culprits: list[m.Culprits] = []
        for frames in read_waiting(self.socket) if spoken_to else ():
            silent_s = self.membership.hear(now_s)
            if silent_s is not None:
                self._log.info("the coordinator answers again", coordinator=self._connected, seconds=round(silent_s, 1))
            with contextlib.suppress(ProtocolError):
                culprits += self._take_in(decode(frames[0].buffer), now_s)
        # Only before its first answer: one that served once is waited for without end, as trainers go on without it.
        if self._may_register and self.membership.gives_up(now_s):
            raise LostError(
                expected="a coordinator that takes this worker in",
                got=self._followed.problem or "no answer for a minute",
                where=self._followed.given,
                remedy="Start it with `loader-server coordinator job.toml`, or correct --coordinator.",
            )
        if self.membership.lose_patience(now_s):
            if self.membership.falls_silent():
                self._log.warning("the coordinator is silent", coordinator=self._connected)
            self._renew()
        if self.membership.is_due(now_s):
            self._follow(now_s)
            self._find_endpoint(now_s)
            self._send_due(now_s, load)
        return culprits

    def _follow(self, now_s: float) -> None:
        """Connect to the coordinator's new address if it is quiet and its file names another one; register there.

        Raise SettingsError if the file is unsafe and no address is known yet.
        """
        if self._followed.has_moved(self._connected, now_s - self.membership.heard_s, now_s):
            self._log.info("coordinator is elsewhere", before=self._connected, now=self._followed.address)
            self.membership.move(now_s)
            self._renew()

    def _send_due(self, now_s: float, load: Callable[[], m.Beat]) -> None:
        message = load() if self.membership.registered else self._register
        sent = True
        # The coordinator has not answered `BuilderParts` since the last turn that was due, so the refusal is reported
        # without the parts.
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
        """Record which data are missing (None: none), for the coordinator; register only if `may_register`.

        When an earlier report changes it registers again, because registering withdraws that report.
        """
        if self._failing is not None and failing != self._failing:
            self.membership.move(now_s)
        self._failing, self._may_register = failing, may_register
        self._failing_s = self.membership.due_s = now_s

    def _find_endpoint(self, now_s: float) -> None:
        """Work out this worker's address anew, and register again if it has changed.

        Without a route keep the former address, because the route may come back; keep it also, with a warning, while no
        descriptor is left to look with. Do nothing before the coordinator's address is known. Raise UnicodeError for an
        impossible name.
        """
        if not self._connected:
            return
        if self._looks_up_again or self._looked_up is None:
            self._looked_up, self._looks_up_again = look_up(self._connected) or self._looked_up, False
        try:
            endpoint = find_reachable_endpoint(self._bound, self._looked_up or self._connected)
        except OSError as error:
            if not self._is_blind:
                self._log.warning("this worker's address cannot be looked for yet", **system_error(error).words())
            self._is_blind = True
            return
        self._is_blind = False
        if endpoint is not None and endpoint != self._register.endpoint:
            if self.membership.registered:
                self._log.info("worker has another address", before=self._register.endpoint, now=endpoint)
            self._register = dataclasses.replace(self._register, endpoint=endpoint)
            self.membership.move(now_s)

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
        match message:
            case m.Culprits():
                return [message]
            case m.BundlePiece():
                self._pieces.append(message)
            case m.TraceWanted():
                self._trace_questions.append(message)
            case m.Registered():
                self._looks_up_again = True
                if self.refusal is not None:
                    self._log.info("the coordinator takes this worker in again", coordinator=self._connected)
                    self.refusal = self._unexplained = None
            case m.Refused(code="builder"):
                self._hear_refusal(message, now_s)
            # It would not understand a question about the difference.
            case m.Refused(code="version"):
                self._note_refusal(message, now_s)
            case m.Refused() if message.code != "unknown":
                raise self.error_of(message)
        return []

    def _hear_refusal(self, refusal: m.Refused, now_s: float) -> None:
        """Ask which parts of the fingerprint differ; note the refusal for good when another one comes as the answer.

        A repeated Register brings the same refusal twice, which changes nothing. Errors of `parts` pass through.
        """
        if self._unexplained is None:
            self._unexplained = refusal
            self._send(m.BuilderParts(worker=self._register.worker, parts=self._parts()))
        elif refusal != self._unexplained:
            self._note_refusal(refusal, now_s)

    def _note_refusal(self, refusal: m.Refused, now_s: float) -> None:
        """Record a lasting refusal; log it once, and if it is of the builder report it to the coordinator now and then.

        The report follows a refusal and not a Register, because the Register may be the one that is accepted.
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
        """Return a coordinator's refusal as an error that names the coordinator's address."""
        return error_of(refusal, f"coordinator at {self._connected}")

    def take_pieces(self) -> list[m.BundlePiece]:
        """Return the pieces of the bundle that came since the last call; empty if none came."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def ask(self, wanted: Iterable[m.BundleWanted]) -> None:
        """Send requests for pieces of the bundle; those that cannot be sent are dropped, and the caller asks again."""
        for request in wanted:
            self._send(request)

    def answer_trace(self, ring: StampRing) -> None:
        """Send the answers to all questions for stamps that have come; those that cannot be sent are dropped."""
        # After the heartbeat of the turn, which nobody's question may delay.
        while self._trace_questions:
            wanted, process = self._trace_questions.popleft(), self._register.incarnation
            now_ns = time.monotonic_ns()
            page = page_of(ring, wanted, process=process, boot_id=self._register.boot_id, now_ns=now_ns)
            self._send(page)

    def leave(self) -> None:
        """Announce that we are leaving, so that no new wants come; do nothing once that was sent.

        If it cannot be sent, the next call tries again. Raise a ValueError if it cannot be encoded.
        """
        if not self.membership.left:
            self.membership.left = self._send(
                m.Leave(worker=self._register.worker, incarnation=self._register.incarnation)
            )

    def _send(self, message: m.Message) -> bool:
        return send_if_up(self.socket, encode(message))

    def close(self) -> None:
        """Close the connection; what was sent last has 0.1 s to leave."""
        self.socket.close(linger=100)
