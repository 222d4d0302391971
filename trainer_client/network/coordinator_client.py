"""A trainer's connection to the coordinator, and the check that one answers.

Rules: used in one thread only; the caller decides what to send and when. A message that cannot be sent right now is
dropped, because the caller will repeat it. A coordinator whose address is in a file is followed: while it is silent,
the file is checked with each message, and the connection is replaced if the address has changed. So `socket` may be
another one after each call.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from shared.endpoints import check_coordinator
from shared.errors import LostError, ProtocolError
from shared.silence import Silence
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.system.endpoint_file import FollowedEndpoint
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.refusing import error_of
from trainer_client.network.trainer_log import process_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.keys import ClientKeys
    from trainer_client.core.settings import CoreSettings

__all__ = [
    "WARN_AFTER_S",
    "CoordinatorClient",
    "ReceiverSettings",
    "lone_client",
    "nobody_answers",
    "wait_for_coordinator",
]

#: How long to wait for a coordinator before the log mentions it: the endpoint may be wrong, and the timeout is long.
WARN_AFTER_S = 5.0

#: How often to ask whether a coordinator is there, and after how much silence to replace the connection.
_PAUSE_S = 0.1
_SILENT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """The coordinator to attach to, the keys, and the trainer's identity (`core`)."""

    core: CoreSettings
    endpoint: str
    coordinator_keys: ClientKeys | None
    worker_keys: ClientKeys | None
    connect_timeout_s: float


class CoordinatorClient:
    """A DEALER socket to the coordinator; its identity survives replacing the socket.

    Making one raises SettingsError if the endpoint is invalid or its file unsafe, and zmq.ZMQError if libzmq cannot
    connect. A file without an address is no error: the connection is made when it has one.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None) -> None:
        #: How many frames were not valid messages.
        self.garbage = 0
        self._context = context
        self._followed = FollowedEndpoint(endpoint, encrypted=keys is not None)
        #: The address of the present connection, and when the last message came from there.
        self._connected = ""
        self._heard_s = time.monotonic()
        self._keys = keys
        self._identity = secrets.token_bytes(16)
        self.socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        address = self._followed.address
        socket = connect_dealer(self._context, address, self._keys, self._identity)
        self._connected = address
        return socket

    @property
    def problem(self) -> str:
        """Return why no address is known, if the coordinator's address is in a file; empty if there is no problem."""
        return self._followed.problem

    def renew(self) -> None:
        """Replace the connection; raise zmq.ZMQError if that fails, and keep the former one.

        Raise SettingsError if the coordinator's address is in an unsafe file, and none is known yet.
        """
        self._followed.look()
        former, self.socket = self.socket, self._connect()
        former.close(linger=0)

    def read(self) -> Iterator[m.Message]:
        """Yield the messages that have arrived, at most 256 in a call; count and skip invalid ones."""
        for frames in read_waiting(self.socket):
            self._heard_s = time.monotonic()
            try:
                yield decode(frames[0].buffer)
            except ProtocolError:
                self.garbage += 1

    def send(self, message: m.Message) -> bool:
        """Send a message if the connection is up, else drop it; return whether it was sent.

        If the coordinator has moved, the connection is replaced first. Raise SettingsError if its address is in an
        unsafe file and none is known yet, and ValueError if the message exceeds the protocol's bounds.
        """
        # A coordinator that was started on another host has written its new address into the file: this connection
        # would wait for the old one for ever.
        now_s = time.monotonic()
        if self._followed.has_moved(self._connected, now_s - self._heard_s, now_s):
            with contextlib.suppress(zmq.ZMQError):  # perhaps no descriptor is left: a later message tries again
                self.renew()
        return send_if_up(self.socket, encode(message))

    def close(self) -> None:
        """Close the socket; queued messages get 100 ms to leave."""
        self.socket.close(linger=100)


@contextlib.contextmanager
def lone_client(endpoint: str, keys: ClientKeys | None) -> Iterator[CoordinatorClient]:
    """Yield a connection with a context of its own, for a caller that has no feed yet; close both at the end.

    Raise MachineError if this process may open too few files or has too little address space left, SettingsError if the
    endpoint is invalid or its file unsafe, and zmq.ZMQError if libzmq cannot connect.
    """
    refuse_small_limits_of_client()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = CoordinatorClient(context, endpoint, keys)
    try:
        yield client
    finally:
        client.close()
        context.term()


def wait_for_coordinator(endpoint: str, keys: ClientKeys | None, timeout_s: float) -> None:
    """Return once the coordinator answers.

    Raises:
        LostError: No answer came within `timeout_s`.
        RefusedError: The coordinator refused us; by its code another error of `error_of`.
        SettingsError: The endpoint is invalid, or its file unsafe.
        MachineError: Too few open files, or too little address space, are left.
        zmq.ZMQError: libzmq cannot connect, the first time or after silence.
    """
    # This comes before anything that takes long or takes a rank from another trainer: what it finds is cheap to find.
    check_coordinator(endpoint, where="connect")
    with lone_client(endpoint, keys) as client:
        answer = _first_answer(client, endpoint, timeout_s)
    if isinstance(answer, m.Refused):
        raise error_of(answer, f"coordinator at {endpoint}")


def _first_answer(client: CoordinatorClient, endpoint: str, timeout_s: float) -> m.Message:
    began_s, silence = time.monotonic(), Silence()
    warn_s = began_s + WARN_AFTER_S
    while (now_s := time.monotonic()) < began_s + timeout_s:
        if now_s > warn_s:
            warn_s = math.inf
            process_log().warning("no coordinator answers yet: it goes on asking", endpoint=endpoint)
        if silence.lose_patience(now_s, _SILENT_S):
            client.renew()
        client.send(m.StatusQuery())
        if client.socket.poll(int(1000 * _PAUSE_S)):
            for answer in client.read():
                return answer
    raise nobody_answers(endpoint, client.problem or "no answer", timeout_s)


def nobody_answers(endpoint: str, got: str, timeout_s: float) -> LostError:
    """Return the LostError for a coordinator that does not answer in time; `got` is its last word, or "no answer"."""
    return LostError(
        expected=f"a coordinator that answers within {timeout_s:g} s",
        got=got,
        where=endpoint,
        remedy="Start the loaders (`loader-server run job.toml`), correct the endpoint, or allow more time with "
        "connect_timeout_s.",
    )
