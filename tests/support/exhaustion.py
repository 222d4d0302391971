"""A context that has no socket left for a while, as where a process has no descriptor left."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_sockets_left"]


@contextmanager
def no_sockets_left(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[None]:
    """For the length of a block."""
    taken = []
    try:
        while True:
            taken.append(context.socket(zmq.PAIR))
    except zmq.ZMQError:
        pass
    yield
    for socket in taken:
        socket.close(0)
