"""Endpoints: where a server may listen, and what others can connect to.

Rules: pure; names are not looked up, so a well-formed host may still not exist.
"""

from __future__ import annotations

import ipaddress
import re

from shared.errors import SettingsError

__all__ = [
    "at_any_port",
    "at_port",
    "check_endpoint",
    "is_connectable",
    "is_loopback",
    "leads_elsewhere",
    "port_beside",
    "port_of",
]

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")


def check_endpoint(endpoint: str, *, where: str, encrypted: bool, insecure: bool) -> None:
    """Refuse anything but a TCP endpoint, and to serve beyond loopback without keys."""
    _, port = _split(endpoint, where)
    if encrypted or insecure or is_loopback(endpoint):
        return
    raise SettingsError(
        expected="keys, or a loopback address such as tcp://127.0.0.1:7400",
        got=f"{endpoint} without keys: anyone who reaches it could feed on it",
        where=where,
        remedy=(
            "Name a key directory (keys = …, made with `loader-server keys`), "
            f"or write --insecure to serve port {port} openly."
        ),
    )


def _split(endpoint: str, where: str) -> tuple[str, str]:
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not (port == "*" or _is_port(port, lowest=0)):
        raise SettingsError(
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
    """Whether another machine can try to connect to it: tcp, one host and a port."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    return scheme == "tcp" and _is_port(port, lowest=1) and _is_host(host)


def _is_host(host: str) -> bool:
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if in_brackets else host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None and not host.rpartition(".")[2].isdigit()
    return in_brackets == (address.version == 6) and not address.is_unspecified and not address.is_multicast


def leads_elsewhere(endpoint: str, peer_host: str) -> bool:
    """Return whether others would reach another process than the peer that names this endpoint as its own.

    A loopback endpoint leads every host to itself, so only a peer that itself comes by loopback may name one.
    `peer_host` is the address that the peer's connection comes from, or empty if it is not known.
    """
    return bool(peer_host) and is_loopback(endpoint) and not _is_loopback_host(peer_host)


def port_of(endpoint: str) -> int:
    """The port of a bound endpoint."""
    return int(endpoint.rpartition(":")[2])


def at_port(endpoint: str, port: int) -> str:
    """The same host at another port."""
    return f"{endpoint.rpartition(':')[0]}:{port}"


def port_beside(endpoint: str) -> int | None:
    """Return the port after the one that an endpoint names, or None if it leaves the port open or there is none."""
    port = endpoint.rpartition(":")[2]
    return int(port) + 1 if _is_port(port, lowest=1) and int(port) < 65535 else None


def at_any_port(endpoint: str) -> str:
    """The same host at whichever port is free."""
    return f"{endpoint.rpartition(':')[0]}:*"


def is_loopback(endpoint: str) -> bool:
    """Whether only processes on this host can reach it."""
    host, _ = _split(endpoint, "endpoint")
    return _is_loopback_host(host)


def _is_loopback_host(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
