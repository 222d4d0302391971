"""Where others reach a server that listens on all addresses, and what address a name stands for now.

Both are worked out when they are needed, because a machine's address may come late or change.
"""

from __future__ import annotations

import socket

__all__ = ["find_reachable_endpoint", "look_up"]

_EVERYWHERE = ("0.0.0.0", "*", "[::]")  # noqa: S104 - recognised here, bound only with keys or --insecure

#: An address that is reserved for documentation: the route to it is the route to the world.
_SOME_OTHER_HOST = "192.0.2.1"


def find_reachable_endpoint(endpoint: str, coordinator: str) -> str | None:
    """Return the endpoint at which trainers reach a worker, or None if there is no route to the coordinator now.

    A worker that listens on all addresses names the one that it has on the route to the coordinator, or, if that is on
    this host, on the route to the world.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if host not in _EVERYWHERE:
        return endpoint
    target = coordinator.partition("://")[2].rpartition(":")[0]
    local = target in _EVERYWHERE or target == "localhost" or target.startswith("127.")
    address = _find_address_towards(_SOME_OTHER_HOST if local else target)
    if address is None and local:  # no way out of this host, and none is needed
        address = "127.0.0.1"
    return address and f"{scheme}://{address}:{port}"


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
