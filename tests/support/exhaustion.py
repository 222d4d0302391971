"""A context that has no socket left for a while, as where a process has no descriptor left."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import zmq

from tests.support.loaders import wait_until

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
    wait_until(lambda: _can_be_made(context), "libzmq has let go of them")


def _can_be_made(context: zmq.Context[zmq.Socket[bytes]]) -> bool:
    """Whether there are a few again: it is a thread of libzmq's that lets go."""
    taken = []
    with suppress(zmq.ZMQError):
        while len(taken) < 8:
            taken.append(context.socket(zmq.PAIR))
    for socket in taken:
        socket.close(0)
    return len(taken) == 8
