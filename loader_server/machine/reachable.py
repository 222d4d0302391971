"""Where others reach a server that listens on all addresses, and what address a name stands for now.

Both are worked out when they are needed, because a machine's address may come late or change.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["find_reachable_endpoint", "look_up", "neighbours"]

_EVERYWHERE = ("0.0.0.0", "*", "[::]")  # noqa: S104 - recognised here, bound only with keys or --insecure

#: An address that is reserved for documentation: the route to it is the route to the world.
_SOME_OTHER_HOST = "192.0.2.1"

_ROUTES = Path("/proc/net/route")


def find_reachable_endpoint(endpoint: str, coordinator: str) -> str | None:
    """Return the endpoint at which trainers reach a worker, or None if there is no route to the coordinator now.

    A worker that listens on all addresses names the one that it has on the route to the coordinator, or, if that is on
    this host, on the route to the world. A cluster's own network may have no such route: then the address is the one on
    the first network that this host is connected to.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if host not in _EVERYWHERE:
        return endpoint
    target = coordinator.partition("://")[2].rpartition(":")[0]
    local = target in _EVERYWHERE or target == "localhost" or target.startswith("127.")
    address = _find_address_towards(_SOME_OTHER_HOST if local else target)
    if address is None and local:
        near = map(_find_address_towards, neighbours(_read_routes()))
        # Without any network there is no way out of this host, and none is needed.
        address = next(filter(None, near), "127.0.0.1")
    return address and f"{scheme}://{address}:{port}"


def _read_routes() -> str:
    try:
        return _ROUTES.read_text("ascii")
    except OSError:
        return ""


def neighbours(routes: str) -> Iterator[str]:
    """Yield an address on each network that a table of routes, as in `/proc/net/route`, has without a gateway."""
    for line in routes.splitlines()[1:]:
        _interface, network, gateway, *_rest = line.split()
        if int(network, 16) and not int(gateway, 16):
            # Each number is in the byte order of memory; the network's own address cannot be connected to.
            (first,) = struct.unpack(">I", struct.pack("=I", int(network, 16)))
            yield socket.inet_ntoa(struct.pack(">I", first + 1))


def _find_address_towards(host: str) -> str | None:
    """Return our address on the route there, if there is one; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return None
        return address


def look_up(endpoint: str) -> str | None:
    """Return an endpoint with its host's address in place of its name, or None if the name cannot be looked up now."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        return f"{scheme}://{socket.gethostbyname(host)}:{port}" if host not in _EVERYWHERE else endpoint
    except OSError:
        return None
