"""The address at which others reach a server that listens on all addresses, and look-up of host names.

Both are worked out when they are needed, because a machine's address may come late or change.
"""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["find_reachable_endpoint", "look_up"]

_EVERYWHERE = ("0.0.0.0", "*", "[::]")  # noqa: S104 - recognised here, bound only with keys or --insecure

#: An address reserved for documentation: the route to it is the route to the world.
_SOME_OTHER_HOST = "192.0.2.1"

#: Linux's ioctl requests for a network interface's flags and address, and the flags of a working one.
_GET_FLAGS, _GET_ADDRESS = 0x8913, 0x8915
_UP_AND_RUNNING = 0x1 | 0x40


def find_reachable_endpoint(endpoint: str, coordinator: str) -> str | None:
    """Return the endpoint at which trainers reach a worker, or None if there is no route to the coordinator now.

    An endpoint with a host of its own is returned as it is. A worker that listens on all addresses uses its own address
    on the route to the coordinator or, if the coordinator is on this host, on the route to the world. On a host of a
    closed network, which has no such route, it is the address of the first working network interface or, without any,
    127.0.0.1. Raise OSError if no descriptor is left to look with.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if host not in _EVERYWHERE:
        return endpoint
    target = coordinator.partition("://")[2].rpartition(":")[0]
    is_local = target in _EVERYWHERE or target == "localhost" or target.startswith("127.")
    address = _find_address_towards(_SOME_OTHER_HOST if is_local else target)
    if address is None and is_local:  # if there is no network at all, none is needed
        address = _find_address_of_interface() or "127.0.0.1"
    return address and f"{scheme}://{address}:{port}"


def _find_address_towards(host: str) -> str | None:
    """Return our address on the route to a host; None if there is none, or its name is unknown. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return None
        return address


def _find_address_of_interface() -> str | None:
    """Return the address of the first working interface other than loopback; None if there is none.

    Interfaces without an IPv4 address, or that are down, are passed over.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                (flags,) = struct.unpack_from("H", fcntl.ioctl(probe, _GET_FLAGS, request), 16)
                address = socket.inet_ntoa(fcntl.ioctl(probe, _GET_ADDRESS, request)[20:24])
            except OSError:  # it has no address, or has just gone
                continue
            if flags & _UP_AND_RUNNING == _UP_AND_RUNNING and not address.startswith("127."):
                return address
    return None


def look_up(endpoint: str) -> str | None:
    """Return an endpoint with its host name resolved, or None if the name cannot be looked up now.

    An endpoint that stands for all addresses is returned as it is. Raise UnicodeError for a name that no host can have,
    such as one with a part of more than 63 characters.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    try:
        return f"{scheme}://{socket.gethostbyname(host)}:{port}" if host not in _EVERYWHERE else endpoint
    except OSError:
        return None
