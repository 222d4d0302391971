"""A process that has no descriptor left for a while, and a context that has no socket left."""

from __future__ import annotations

import resource
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_descriptor_left", "no_sockets_left"]


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """For the length of a block; those that are open stay."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_sockets_left(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[None]:
    """For the length of a block."""
    taken = [context.socket(zmq.PAIR)]  # the first one starts libzmq's own threads, which have mailboxes too
    before = _mailboxes()
    try:
        while True:
            taken.append(context.socket(zmq.PAIR))
    except zmq.ZMQError:
        pass
    try:
        yield
    finally:
        for socket in taken:
            socket.close(0)
    wait_until(lambda: _mailboxes() <= before, "libzmq has let go of them")


def _mailboxes() -> int:
    """How many sockets of this process libzmq keeps, those included that it has yet to let go of: a thread of its does.

    Making sockets to see whether they can be made would show nothing: they too are let go of later.
    """
    kept = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            kept += descriptor.readlink() == Path("anon_inode:[eventfd]")
    return kept
