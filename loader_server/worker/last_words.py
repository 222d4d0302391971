"""The last message of a worker that cannot begin to serve, to the coordinator.

Rules: it may get lost, and nobody answers; the next worker in its place says the same if it fails as well.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import zmq

from shared.sockets import connect_dealer
from shared.system.endpoint_file import FollowedEndpoint
from shared.wire.codec import encode
from shared.wire.messages import Failing
from shared.wire.parts import clipped

if TYPE_CHECKING:
    from shared.errors import StokerError
    from shared.keys import ClientKeys

__all__ = ["say_why"]

_CONNECT_MS = 1000
_LEAVE_MS = 500


def say_why(coordinator: str, keys: ClientKeys | None, worker: str, error: StokerError) -> None:
    """Tell the coordinator why this worker ends."""
    words = {name: clipped(text) for name, text in error.words().items()}
    address = FollowedEndpoint(coordinator, encrypted=keys is not None).address
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = connect_dealer(context, address, keys, secrets.token_bytes(16))
    if dealer.poll(_CONNECT_MS, zmq.POLLOUT):
        dealer.send(encode(Failing(worker=worker, **words)))
    dealer.close(linger=_LEAVE_MS)
    context.term()
