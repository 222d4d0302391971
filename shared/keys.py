"""CURVE keys in a folder: who may serve, who may ask.

    server.key_secret   the loaders' pair; stays on loader machines
    server.key          its public half; trainers need it to know whom they talk to
    client.key_secret   the pair that trainers, and workers towards the coordinator, show
    allowed/*.key       public halves of the clients that are let in

Rules: key material never appears in a repr, a log or a message; without `allowed` nobody is let in.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zmq

__all__ = ["ClientKeys", "ServerKeys", "make_keys"]


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """What a serving socket needs."""

    folder: Path
    _public: bytes = field(repr=False)
    _secret: bytes = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> ServerKeys:
        """The server's pair of a key folder."""
        public, secret = _load(Path(folder) / "server.key_secret")
        return cls(Path(folder), public, secret)

    @contextmanager
    def guarding(self, context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[None]:
        """While this is open, serving sockets let in the clients in `allowed` (read once, now) and no others."""
        from zmq.auth.thread import ThreadAuthenticator  # noqa: PLC0415 - only with keys

        guard = ThreadAuthenticator(context)
        guard.start()
        try:
            (self.folder / "allowed").mkdir(exist_ok=True)
            guard.configure_curve(domain="*", location=str(self.folder / "allowed"))
            yield
        finally:
            guard.stop()

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Only clients that the context's guard knows get in; without a guard all would who know our public key."""
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_server = True


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What an asking socket needs."""

    folder: Path
    _public: bytes = field(repr=False)
    _secret: bytes = field(repr=False)
    _server: bytes = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> ClientKeys:
        """The client's pair and the server's public half of a key folder."""
        public, secret = _load(Path(folder) / "client.key_secret")
        server, _ = _load(Path(folder) / "server.key", secret=False)
        return cls(Path(folder), public, secret, server)

    def use(self, socket: zmq.Socket[bytes]) -> None:
        """Show who we are, and insist on who they are."""
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_serverkey = self._server


def make_keys(folder: str | Path) -> None:
    """A fresh pair for servers and one for clients, the client's let in."""
    import zmq.auth  # noqa: PLC0415 - only this command needs it

    folder = Path(folder)
    if any(folder.glob("*.key*")):
        raise SettingsError(
            expected="a folder without keys",
            got="keys are there already",
            where=str(folder),
            remedy="Name another folder.",
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "allowed").mkdir(exist_ok=True)
    # A folder that was there may be open to others: the pairs are made in one that is not, and moved.
    with tempfile.TemporaryDirectory(dir=folder) as closed:
        for name in ("server", "client"):
            for made in zmq.auth.create_certificates(closed, name):
                path = Path(made)
                path.chmod(0o600 if path.suffix == ".key_secret" else 0o644)
                path.replace(folder / path.name)
    (folder / "allowed" / "client.key").write_bytes((folder / "client.key").read_bytes())


def _load(path: Path, *, secret: bool = True) -> tuple[bytes, bytes]:
    import zmq.auth  # noqa: PLC0415

    try:
        public, private = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None
    if secret and private is None:
        raise _unreadable(path, "no secret key in it")
    return public, private or b""


def _unreadable(path: Path, got: str) -> SettingsError:
    return SettingsError(
        expected="a CURVE key",
        got=got,
        where=str(path),
        remedy="Make keys with `loader-server keys FOLDER` and copy what each machine needs.",
    )
