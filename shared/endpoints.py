"""Endpoints: where a server may listen, and what clients can connect to.

Rules: pure; names are not looked up, so a well-formed host may still not exist.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TypeAlias

from shared.errors import SettingsError, require

__all__ = [
    "advertised",
    "at_any_port",
    "at_port",
    "check_coordinator",
    "check_endpoint",
    "file_of",
    "is_connectable",
    "is_everywhere",
    "is_loopback",
    "leads_elsewhere",
    "port_beside",
    "port_of",
    "scrape_address",
]

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Prefix that marks a coordinator's endpoint file where an endpoint is expected.
_FILE = "file://"

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")


def check_endpoint(endpoint: str, *, where: str, encrypted: bool, insecure: bool) -> None:
    """Raise SettingsError unless `endpoint` is a TCP endpoint that may be served: beyond loopback only with keys.

    `insecure` allows serving beyond loopback without keys. The port may be 0 or `*`, for any free one.
    """
    _, port = _split(endpoint, where)
    require(
        encrypted or insecure or is_loopback(endpoint),
        expected="keys, or a loopback address such as tcp://127.0.0.1:7400",
        got=f"{endpoint} without keys: anyone who reaches it could feed on it",
        where=where,
        remedy=(
            "Name a key directory (keys = …, made with `loader-server keys`), "
            f"or write --insecure to serve port {port} openly."
        ),
    )


def check_coordinator(endpoint: str, *, where: str = "coordinator") -> None:
    """Raise SettingsError unless `endpoint` names a coordinator: a TCP endpoint, or file:// with an absolute path."""
    if not endpoint.startswith(_FILE):
        _split(endpoint, where)
    elif not file_of(endpoint).startswith("/"):
        raise SettingsError(
            expected="a file with its whole path, such as file:///shared/digits/endpoint",
            got=repr(endpoint),
            where=where,
            remedy="Write three slashes: two of file:// and the path's first.",
        )


def file_of(endpoint: str) -> str:
    """Return the path of the file that holds the endpoint, or "" if `endpoint` is an endpoint itself."""
    return endpoint.removeprefix(_FILE) if endpoint.startswith(_FILE) else ""


def advertised(bound: str, host: str, *, where: str = "--advertise") -> str:
    """Return the endpoint for others to connect to: the bound one, or `host` with its own or the bound port.

    Raise SettingsError if `host` is given and nobody could connect to it, or ValueError if `bound` leaves its port
    open.
    """
    if not host:
        return bound
    # With its own port first: an address that others reach may be translated to another port than ours.
    for endpoint in (f"tcp://{host}", f"tcp://{host}:{port_of(bound)}"):
        if is_connectable(endpoint):
            return endpoint
    raise SettingsError(
        expected="a host that others reach, such as loader-1 or 203.0.113.7:17400",
        got=repr(host),
        where=where,
        remedy="Name a host, and its port if that is another one than that of --listen.",
    )


def _split(endpoint: str, where: str) -> tuple[str, str]:
    """Return host (without brackets) and port of a TCP endpoint; raise SettingsError if it is not one.

    The port may be 0 or `*`; the host is not checked but for being there.
    """
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")  # from the right, because IPv6 addresses hold colons
    require(
        scheme == "tcp" and host != "" and (port == "*" or _is_port(port, lowest=0)),
        expected="an endpoint like tcp://127.0.0.1:7400",
        got=repr(endpoint),
        where=where,
        remedy="Write scheme, host and port.",
    )
    return host.strip("[]"), port


def _is_port(text: str, *, lowest: int) -> bool:
    # Length first, because `int` is slow on long strings; isascii, because isdigit alone accepts superscripts.
    return len(text) <= 5 and text.isascii() and text.isdigit() and lowest <= int(text) <= 65535


def is_connectable(endpoint: str) -> bool:
    """Return whether a client could connect to it: tcp, one definite host and a port."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    return scheme == "tcp" and _is_port(port, lowest=1) and _is_host(host)


def _is_host(host: str) -> bool:
    """Return whether a text is a host name, or an address that can be connected to (IPv6 in brackets)."""
    in_brackets = host.startswith("[") and host.endswith("]")
    address = _address(host[1:-1] if in_brackets else host)
    if address is None:
        # A name whose last part is a number is a malformed IPv4 address, such as 10.0.0.300.
        return _HOST_NAME.fullmatch(host) is not None and not host.rpartition(".")[2].isdigit()
    # 0.0.0.0 can be listened at, but is no place to connect to.
    return in_brackets == (address.version == 6) and not address.is_unspecified and not address.is_multicast


def leads_elsewhere(endpoint: str, peer_host: str) -> bool:
    """Return whether others would reach a different process than the peer that names this endpoint as its own.

    A loopback endpoint leads every host to itself, so only a peer that connects over loopback may name one. `peer_host`
    is the address of the peer's connection; return False if it is empty, because it is unknown. Raise SettingsError if
    `endpoint` is not an endpoint and `peer_host` is given.
    """
    return bool(peer_host) and is_loopback(endpoint) and not _is_loopback_host(peer_host)


def scrape_address(bound: str, peer_host: str) -> str:
    """Return the address where others can read metrics that a peer serves at `bound`, or "" if there is none.

    There is none if a part is malformed, or if the peer serves at another address than it connects from, such as
    loopback. The host is always that of the peer's connection, so a peer cannot direct scrapers to another machine. For
    a peer on this host that serves on all addresses the host is left out: `:9101`.
    """
    host, _, port = bound.rpartition(":")
    peer, served = _address(peer_host), _address(host.strip("[]"))
    if not _is_port(port, lowest=1) or peer is None or served is None:
        return ""
    peer, served = _unmapped(peer), _unmapped(served)
    if not served.is_unspecified and served != peer:
        return ""  # it serves at another of its addresses than it connects from, such as loopback
    if peer.is_loopback and served.is_unspecified:
        return f":{port}"
    return f"[{peer}]:{port}" if peer.version == 6 else f"{peer}:{port}"


def _address(host: str) -> _Address | None:
    """Return a host's address; None if the text is a name, or nothing at all."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _unmapped(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address stands for, or else the address itself."""
    # A socket for both families reports IPv4 peers as ::ffff:a.b.c.d, which must compare equal to a.b.c.d.
    return getattr(address, "ipv4_mapped", None) or address


def port_of(endpoint: str) -> int:
    """Return the port of a bound endpoint; raise ValueError if it has none or leaves it open, as `*`."""
    return int(endpoint.rpartition(":")[2])


def at_port(endpoint: str, port: int) -> str:
    """Return the endpoint of the same host at another port."""
    return f"{endpoint.rpartition(':')[0]}:{port}"


def port_beside(endpoint: str) -> int | None:
    """Return the port after the endpoint's, or None if the endpoint leaves its port open or has the last one."""
    port = endpoint.rpartition(":")[2]
    return int(port) + 1 if _is_port(port, lowest=1) and int(port) < 65535 else None


def at_any_port(endpoint: str) -> str:
    """Return the endpoint of the same host with `*` as its port, which means any free one."""
    return f"{endpoint.rpartition(':')[0]}:*"


def is_loopback(endpoint: str) -> bool:
    """Return whether only processes on this host can reach it; raise SettingsError if it is not an endpoint.

    Names are not looked up: only `localhost` and loopback addresses count.
    """
    host, _ = _split(endpoint, "endpoint")
    return _is_loopback_host(host)


def _is_loopback_host(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and _unmapped(address).is_loopback)


def is_everywhere(host: str) -> bool:
    """Return whether a host is the address that stands for all addresses of the machine."""
    address = _address(host)
    return address is not None and address.is_unspecified
