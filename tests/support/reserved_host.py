"""An address of this machine for a process that is started, killed and started again there."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reserved_host", "reserved_pair"]


@contextmanager
def reserved_host() -> Iterator[str]:
    """Reserve an address while the block lasts: it stays bound, and as nothing listens there, its user can."""
    with _bound(0) as port:
        yield f"127.0.0.1:{port}"


@contextmanager
def reserved_pair() -> Iterator[str]:
    """Reserve an address and the one with the next port, which another process may have by chance: then try others."""
    with ExitStack() as stack:
        while True:
            with ExitStack() as attempt:
                port = attempt.enter_context(_bound(0))
                try:
                    attempt.enter_context(_bound(port + 1))
                except OSError:
                    continue
                stack.push(attempt.pop_all())
            break
        yield f"127.0.0.1:{port}"


@contextmanager
def _bound(port: int) -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", port))
        yield reserved.getsockname()[1]
