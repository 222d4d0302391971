"""The address where a process serves its metrics, and the right to read them.

Rules: on loopback everybody on the machine may read them. Beyond it metrics need a token, or the user's word that they
may be read openly; probes name nothing of the job, so they need neither.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.endpoints import is_connectable, is_everywhere, is_loopback
from shared.errors import SettingsError, require

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Listening", "ListeningWords", "bracketed", "listening_of"]

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningWords:
    """Names of the three settings in errors; by default those of the command line."""

    listen: str = "--metrics-listen"
    file: str = "--metrics-token"
    insecure: str = "--insecure"


_ON_COMMAND_LINES = ListeningWords()

#: Shorter tokens can be guessed.
_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Address to serve at (port 0: any free one), and the token that readers must show, if there is one."""

    host: str = _LOOPBACK
    port: int = 0
    token: str = field(default="", repr=False)

    def admits(self, authorization: str) -> bool:
        """Return whether this Authorization header may read metrics: it has the token, or none is needed.

        The token is compared in constant time.
        """
        if not self.token:
            return True
        return hmac.compare_digest(authorization.encode("utf-8", "replace"), f"Bearer {self.token}".encode())

    @property
    def local_host(self) -> str:
        """Return the host at which processes of this machine reach it: loopback if it serves at all addresses."""
        if not is_everywhere(self.host):
            return self.host
        return "::1" if ":" in self.host else _LOOPBACK


def listening_of(
    listen: str, port: int, token_file: Path | None, *, insecure: bool, words: ListeningWords = _ON_COMMAND_LINES
) -> Listening:
    """Return where to serve, from `HOST` or `HOST:PORT` (empty: loopback) and the token's file.

    `port` is used if `listen` names none. Raise SettingsError if `listen` or the token is malformed, or if anybody
    could read metrics from another machine.
    """
    host, own_port = _split(listen, words) if listen else (_LOOPBACK, None)
    token = _read_token(token_file, words) if token_file is not None else ""
    # Names of jobs, streams and hosts are in the metrics: nobody may read them from elsewhere by accident.
    require(
        token != "" or insecure or is_loopback(f"tcp://{bracketed(host)}:0"),
        expected="a token, or a loopback address such as 127.0.0.1:9100",
        got=f"{listen} without one: anyone who reaches it could read the metrics",
        where=words.listen,
        remedy=f"Write a secret into a file and name it with {words.file} FILE, or write {words.insecure}.",
    )
    return Listening(host=host, port=port if own_port is None else own_port, token=token)


def _split(listen: str, words: ListeningWords) -> tuple[str, int | None]:
    """Return host and port (None: not given) of `HOST` or `HOST:PORT`; raise SettingsError if it is neither."""
    host, colon, port = listen.rpartition(":")
    if not colon or listen.endswith("]"):  # an IPv6 address in brackets holds colons, and names no port
        host, port = listen, ""
    plain = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_host = is_connectable(f"tcp://{host}:1") or is_everywhere(plain)
    is_port = port.isascii() and port.isdigit() and int(port[:6]) <= 65535 if port else not listen.endswith(":")
    require(
        is_host and is_port,
        expected="a host, or a host and a port, such as 0.0.0.0:9100",
        got=repr(listen),
        where=words.listen,
        remedy="Write HOST:PORT; 0.0.0.0 is all addresses of this machine, and port 0 any free one.",
    )
    return plain, int(port) if port else None


def bracketed(host: str) -> str:
    """Return a host as it is written before a port: IPv6 addresses in brackets, others as they are."""
    return f"[{host}]" if ":" in host else host


def _read_token(file: Path, words: ListeningWords) -> str:
    """Return the token in a file; raise SettingsError if the file cannot be read or holds no token.

    A token has at least 16 characters, all printable ASCII without spaces.
    """
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _no_token(file, getattr(error, "strerror", None) or "no text", words) from None
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise _no_token(file, f"{len(token)} characters, or other ones", words)
    return token


def _no_token(file: Path, got: str, words: ListeningWords) -> SettingsError:
    return SettingsError(
        expected=f"a token: a line of {_SHORTEST_TOKEN} or more letters and digits",
        got=got,
        where=f"{words.file} {file}",
        remedy="Make one with `openssl rand -hex 32 > FILE && chmod 600 FILE`.",
    )
