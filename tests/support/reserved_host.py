"""An address of this machine for a process that is started, killed and started again there."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["reserved_host"]


@contextmanager
def reserved_host() -> Iterator[str]:
    """While the block lasts nobody else is given this address: it stays bound. As nobody listens, its user can."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"
