"""A connection to a running coordinator for one message, and a question with its answer, for commands."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import zmq

from shared.commands import LONGEST_WAIT_S
from shared.errors import LostError
from shared.keys import ClientKeys
from shared.sockets import connect_dealer
from shared.system.endpoint_file import FollowedEndpoint
from shared.system.system_errors import refuse_small_limits_of_client
from shared.wire.codec import decode, encode
from shared.wire.messages import Refused
from shared.wire.refusing import error_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.wire.messages import Message

__all__ = ["ask_coordinator", "connected", "opened"]

#: Pause between looks at an endpoint file that names no address yet.
_LOOK_S = 0.1

_Answer = TypeVar("_Answer", bound="Message")


def ask_coordinator(
    endpoint: str, question: Message, answer: type[_Answer], *, keys: str | Path | None, timeout_s: float
) -> _Answer:
    """Send a question to the coordinator, and return its answer.

    Raises what `error_of` makes of a refusal, mostly RefusedError, LostError if its first message is no answer of the
    expected kind or none comes in time, SettingsError if a key, the endpoint or its file cannot be used, ProtocolError
    if the answer cannot be decoded, and MachineError if open files or memory run short. Errors of `connected` pass.
    """
    until_s = time.monotonic() + timeout_s
    with _opened(endpoint, keys, until_s) as (dealer, followed):
        if _wait_for(dealer, zmq.POLLOUT, until_s):
            dealer.send(encode(question))
            if _wait_for(dealer, zmq.POLLIN, until_s):
                message = decode(dealer.recv())
                if isinstance(message, answer):
                    return message
                if isinstance(message, Refused):
                    raise error_of(message, f"coordinator at {endpoint}")
        raise LostError(
            expected=f"a coordinator that answers within {timeout_s:g} s",
            got=followed.problem or "no answer",
            where=endpoint,
            remedy="Start it with `loader-server run job.toml`, or correct the endpoint.",
        )


@contextmanager
def opened(endpoint: str, *, keys: str | Path | None, timeout_s: float) -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that connects to the coordinator at an endpoint, for several questions.

    Wait up to `timeout_s` for an endpoint file that names no address yet. Raises SettingsError if a key, the endpoint
    or its file cannot be used, and MachineError if open files or memory run short; errors of `connected` pass.
    """
    with _opened(endpoint, keys, time.monotonic() + timeout_s) as (dealer, _):
        yield dealer


@contextmanager
def _opened(
    endpoint: str, keys: str | Path | None, until_s: float
) -> Iterator[tuple[zmq.Socket[bytes], FollowedEndpoint]]:
    own = ClientKeys.read_any(keys, to="coordinator") if keys else None
    followed = FollowedEndpoint(endpoint, encrypted=own is not None)
    _wait_for_address(followed, until_s)
    refuse_small_limits_of_client()  # libzmq would end the process if it cannot start a thread
    with connected(followed.address, own) as dealer:
        yield dealer, followed


@contextmanager
def connected(address: str, keys: ClientKeys | None, linger_ms: int | None = None) -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that connects to a coordinator; at the end, messages may take `linger_ms` to leave, if given.

    An empty address connects to nobody. Raise SettingsError if the address is no TCP endpoint, or zmq.ZMQError if its
    port is `*`.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = connect_dealer(context, address, keys, secrets.token_bytes(16))
    try:
        yield dealer
    finally:
        dealer.close(linger=linger_ms)
        context.term()


def _wait_for_address(followed: FollowedEndpoint, until_s: float) -> None:
    """Wait until the endpoint file, if there is one, names an address, or until this time.

    Raise SettingsError if the file is unsafe.
    """
    while not followed.address and time.monotonic() < until_s:
        time.sleep(_LOOK_S)  # a file of another host's does not wake us
        followed.look()


def _wait_for(dealer: zmq.Socket[bytes], event: int, until_s: float) -> bool:
    """Wait, and return whether the socket can be sent on, or read from, before this time (`time.monotonic`)."""
    # In short waits, because Python misses a signal that arrives just as it begins to wait (see shared.commands).
    while (left_s := until_s - time.monotonic()) > 0:
        if dealer.poll(int(1000 * min(left_s, LONGEST_WAIT_S)) + 1, event):
            return True
    return False
