"""CURVE keys in a folder: the pairs of each role, and the public keys that may connect.

    coordinator.key_secret   the coordinator's pair: it serves with it
    worker.key_secret        the workers' pair: they serve trainers with it, and show it to the coordinator
    trainer.key_secret       the pair that trainers show
    *.key                    their public halves: a client needs that of its server
    allowed/ROLE/*.key       public halves that may connect, each in the folder of its role, under any name

Rules: no key, secret or public, ever appears in a repr, a log or a message; only keys in `allowed` may connect. That
folder is watched: a key removed from it is unknown from the next look on. A secret that everybody on the machine may
read, or a folder that everybody may add keys to, is accepted with a warning, because secrets that a cluster mounts
often have that mode, where there are no other users.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError, require
from shared.logs import Log
from shared.wire.message_parts import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import zmq

    from shared.wire.message_parts import Role

__all__ = ["ALLOWED", "AllowedKeys", "ClientKeys", "ServerKeys", "make_keys"]

#: Length of a key in its text form, Z85.
_KEY_CHARACTERS = 40

#: The folder with the public halves that may connect.
ALLOWED = "allowed"

_MAY_READ = "Let this user read it and its folder (chown, chmod), or run as the user that they belong to."
_REMEDY = "Make keys with `loader-server keys FOLDER` and copy what each machine needs."


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Key pair of a serving socket, and the folder with the allowed keys."""

    folder: Path
    _public: bytes = field(repr=False)
    _secret: bytes = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path, role: Role) -> ServerKeys:
        """Return the pair that this role serves with.

        Raise SettingsError if the pair is missing or unusable, or if the folder of allowed keys cannot be read; it may
        be missing, and then nobody may connect.
        """
        keys = cls(Path(folder), *_load_pair(Path(folder), role))
        try:  # to the end, because a role's own folder may be the closed one: all its clients would be turned away
            list(_list_key_files(Path(folder) / ALLOWED))
        except OSError as error:
            raise SettingsError(
                expected=f"a folder of allowed keys that user {os.geteuid()} may look into",
                got=str(error.strerror),
                where=str(error.filename),
                remedy=_MAY_READ,
            ) from None
        return keys

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Turn a socket into a CURVE server.

        Only the context's guard limits it to allowed clients: without one, anyone with our public key could connect.
        """
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_server = True


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """Key pair of a connecting socket, and its server's public key."""

    folder: Path
    _public: bytes = field(repr=False)
    _secret: bytes = field(repr=False)
    _server: bytes = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path, role: Role, *, to: Role) -> ClientKeys:
        """Return the pair that this role shows and the public key of server `to`.

        Raise SettingsError if one of them is missing or unusable.
        """
        folder = Path(folder)
        return cls(folder, *_load_pair(folder, role), _load_key(folder / f"{to}.key")[0])

    @classmethod
    def of_trainer(cls, folder: str | None, *, to: Role) -> ClientKeys | None:
        """Return the keys that a trainer shows to server `to`; None without a folder, where nothing is encrypted.

        Raise SettingsError if a key is missing or unusable.
        """
        return cls.read(folder, "trainer", to=to) if folder else None

    @classmethod
    def read_any(cls, folder: str | Path, *, to: Role) -> ClientKeys:
        """Return the first pair, in the order of ROLES, that this machine has, with the public key of server `to`.

        It is for a person at a machine. Raise SettingsError if there is no pair, or a key is missing or unusable.
        """
        roles = (role for role in ROLES if _is_there(Path(folder) / f"{role}.key_secret"))
        return cls.read(folder, next(roles, "trainer"), to=to)  # without any pair the error names the trainer's

    def use(self, socket: zmq.Socket[bytes]) -> None:
        """Show our key on a socket, and accept only the server that holds the expected one."""
        socket.curve_publickey = self._public
        socket.curve_secretkey = self._secret
        socket.curve_serverkey = self._server


class AllowedKeys:
    """Table of `allowed`: the roles of each key. One thread watches the folder; any thread may ask.

    It is read at once; if it cannot be read, a warning is logged and the table is empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = Log("keys", folder=folder)
        #: By public key, as text; replaced as a whole, so that other threads see the old table or the new one.
        self._roles: dict[str, frozenset[Role]] = {}
        #: The files that the table was read from, each with inode, size and time of change.
        self._files: dict[Path, tuple[int, ...]] | None = None
        self._problem = ""
        self.follow()

    def roles(self, key: str) -> frozenset[Role]:
        """Return the roles of a public key; none if it is not allowed."""
        return self._roles.get(key, frozenset())

    def follow(self) -> bool:
        """Read the folder again if it changed, and return whether it did.

        If it cannot be read, the table stays as it is, a warning is logged once, and False is returned. A missing
        folder has no keys. Unusable keys are left out and logged.
        """
        try:
            files = dict(_list_key_files(self._folder))
        except OSError as error:  # a file system that is away locks nobody out
            if str(error) != self._problem:
                self._log.warning("allowed keys cannot be read again: those read before stay valid", error=str(error))
            self._problem = str(error)
            return False
        self._problem = ""
        if files == self._files:  # by inode, size and time: a look at them is cheaper than reading the keys again
            return False
        self._files = files
        self._read(files)
        return True

    def _read(self, files: dict[Path, tuple[int, ...]]) -> None:
        """Replace the table by the keys in these files; leave out and log unusable keys, and keys without a role.

        Warn of folders that everybody may write to. A key in the folders of several roles has all of them.
        """
        for folder in sorted({self._folder, *(path.parent for path in files)}):
            if _is_open_to_all(folder, stat.S_IWOTH):
                self._log.warning("everybody on this machine may let keys in: chmod o-w", folder=folder)
        roles: dict[str, frozenset[Role]] = {}
        counts = dict.fromkeys(ROLES, 0)
        for path in files:
            role = next((role for role in ROLES if path.parent == self._folder / role), None)
            if role is None:
                self._log.warning(f"key has no role: put it into one of the folders {', '.join(ROLES)}", file=path)
                continue
            try:
                key = _load_key(path)[0].decode()
            except SettingsError as error:
                self._log.warning("key is left out", error=str(error))
                continue
            roles[key] = roles.get(key, frozenset()) | {role}  # the same key may lie in several roles' folders
            counts[role] += 1
        self._roles = roles
        self._log.info("allowed keys were read", **counts)


def _list_key_files(folder: Path) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield the key files in a folder and directly below it, each with its inode, size and time of change.

    Yield nothing if the folder is missing; raise OSError if it or a folder below it cannot be read.
    """
    below = [Path(entry.path) for entry in _list_entries(folder) if entry.is_dir()]
    for place in (folder, *below):  # keys directly in the folder have no role, and are warned about
        for entry in _list_entries(place):
            if entry.name.endswith(".key"):
                with contextlib.suppress(FileNotFoundError):  # removed just now, or a link to nowhere
                    state = entry.stat()
                    yield Path(entry.path), (state.st_ino, state.st_size, state.st_mtime_ns)


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return a folder's entries, sorted by name; none if it does not exist. Raise OSError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def make_keys(folder: str | Path) -> None:
    """Make a fresh pair for each role, all of them allowed; raise SettingsError if the folder holds keys already.

    Raise OSError if it cannot be written, or if its folder of allowed keys has a folder of a role already.
    """
    import zmq.auth  # only this command needs it

    folder = Path(folder)
    require(
        not any(folder.glob("*.key*")),
        expected="a folder without keys",
        got="keys are there already",
        where=str(folder),
        remedy="Name another folder.",
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A folder that existed before may be open to others: make the pairs in a closed one, and move them once chmod has
    # run, so that no secret is readable for a moment.
    with tempfile.TemporaryDirectory(dir=folder) as closed:
        for role in ROLES:
            for file in zmq.auth.create_certificates(closed, role):
                path = Path(file)
                path.chmod(0o600 if path.suffix == ".key_secret" else 0o644)
                path.replace(folder / path.name)
            (folder / ALLOWED / role).mkdir(parents=True)
            (folder / ALLOWED / role / f"{role}.key").write_bytes((folder / f"{role}.key").read_bytes())


def _load_pair(folder: Path, role: Role) -> tuple[bytes, bytes]:
    """Return the public and the secret key of a role; raise SettingsError if the pair is missing or unusable."""
    path = folder / f"{role}.key_secret"
    require(
        _is_there(path) or not any(_is_there(folder / f"{name}.key_secret") for name in ("server", "client")),
        expected=path.name,
        got="keys without roles, which an earlier release made",
        where=str(folder),
        remedy=_REMEDY,
    )
    public, secret = _load_key(path)
    if secret is None:
        raise _unreadable(path, "no secret key in it")
    if _is_open_to_all(path, stat.S_IROTH):
        Log("keys", folder=folder).warning("everybody on this machine may read a secret key: chmod 600", file=path)
    return public, secret


def _is_there(path: Path) -> bool:
    """Return whether a file exists; False if that cannot be seen, as in a folder that is closed to this user."""
    with contextlib.suppress(OSError):
        return path.exists()
    return False


def _is_open_to_all(path: Path, right: int) -> bool:
    """Return whether everybody has a permission on a path and may enter its folder; False if that cannot be seen."""
    with contextlib.suppress(OSError):
        return bool(path.stat().st_mode & right and path.parent.stat().st_mode & stat.S_IXOTH)
    return False


def _load_key(path: Path) -> tuple[bytes, bytes | None]:
    """Return the public and, if there is one, the secret key in a file; raise SettingsError if it is unusable."""
    import zmq.auth

    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("a folder, pipe or device")
        public, secret = zmq.auth.load_certificate(path)
    except PermissionError:
        raise SettingsError(
            expected="a CURVE key that this user may read",
            got="permission denied",
            where=str(path),
            remedy=_MAY_READ,
        ) from None
    except (OSError, ValueError, IndexError) as error:
        raise _unreadable(path, str(error)) from None
    if any(len(key) != _KEY_CHARACTERS or not key.isascii() for key in (public, secret) if key is not None):
        raise _unreadable(path, "something else")
    return public, secret


def _unreadable(path: Path, got: str) -> SettingsError:
    return SettingsError(expected="a CURVE key", got=got, where=str(path), remedy=_REMEDY)
