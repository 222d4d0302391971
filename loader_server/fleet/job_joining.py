"""Joining a job by its endpoint: a host fetches the coordinator's bundle, unless it is here, and makes a job folder.

Rules: one piece is asked for at a time, and asked for again if nothing comes. No wait is endless: a coordinator that is
silent for a minute is an error, and so is an endpoint file that names none for a minute. If the endpoint is a file,
the coordinator is followed to its next address. What was fetched before a cut is kept, and used by the next try.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from loader_server.fleet.bundle_folder import BundleFolder, locked, remove_old_bundles
from loader_server.fleet.fetching import Fetching
from loader_server.fleet.host_folder import HostFolder, JoinedFolder
from loader_server.fleet.manifest import CODE, GRAPHS, INDEX, JOB_FILE
from loader_server.index.folder import read_meta
from shared.endpoints import check_coordinator, check_endpoint
from shared.errors import DataError, LostError, ProtocolError, SettingsError
from shared.keys import ClientKeys
from shared.logs import Log
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.stores.own_files import refuse_closed, replacing
from shared.system.endpoint_file import FollowedEndpoint
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.refusing import error_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loader_server.fleet.fetching import FilePiece
    from loader_server.fleet.manifest import Manifest

__all__ = ["JoinSettings", "fetch", "join"]

#: How long to wait for an answer before asking again: at first, and once answers have come.
_FIRST_S, _AGAIN_S = 1.0, 5.0
#: Interval of checks whether the connection is up.
_LOOK_S = 0.05
#: Interval of checks whether the endpoint file names another address.
_FOLLOW_S = 0.25
#: A coordinator that is silent for this long counts as lost; and when to log that we wait for it.
_LOST_S = 60.0
_LOG_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """Settings of a host that joins; `data` stands for the job's folder, `index` for its state folder."""

    #: The coordinator's endpoint, or its file (`file:///…`).
    endpoint: str
    state: Path
    keys: Path | None = None
    data: Path | None = None
    index: Path | None = None
    #: Whether a job on another host may be joined without keys.
    insecure: bool = False
    #: Whether to fetch the user's own modules, and import them.
    accepts_code: bool = False
    #: Port before those of the workers' metrics; 0: any free ports.
    metrics_port: int = 0

    @property
    def bundles(self) -> Path:
        """Return the folder of bundles, an absolute path below the state folder."""
        return self.state.resolve() / "bundles"

    @property
    def hosts(self) -> Path:
        """Return the folder with the hosts' own folders, an absolute path below the state folder."""
        return self.state.resolve() / "hosts"

    def options(self) -> tuple[str, ...]:
        """Return the command-line options with the same meaning, except the endpoint and `--insecure`.

        Settings that are not given are left out.
        """
        folders = {"--state": self.state, "--keys": self.keys, "--data": self.data, "--index": self.index}
        words = (
            word for name, folder in folders.items() if folder is not None for word in (name, str(folder.resolve()))
        )
        metrics_port = ("--metrics-port", str(self.metrics_port)) if self.metrics_port else ()
        return (*words, *metrics_port, *(["--accept-code"] if self.accepts_code else []))

    def follow(self) -> FollowedEndpoint:
        """Return the coordinator's address, followed if it is in a file.

        Raise SettingsError if the endpoint is malformed, if others may write its file and there are no keys, or if it
        is known already that it may not be joined.
        """
        check_coordinator(self.endpoint, where="loader-server run")
        followed = FollowedEndpoint(self.endpoint, encrypted=self.keys is not None)
        self.refuse_open(followed.address)
        return followed

    def refuse_open(self, address: str) -> None:
        """Raise SettingsError if an address is malformed, or on another host with neither keys nor `insecure`.

        Do nothing if the address is empty, because none is known yet.
        """
        if address:
            encrypted = self.keys is not None
            check_endpoint(address, where=f"joining {self.endpoint}", encrypted=encrypted, insecure=self.insecure)


def join(settings: JoinSettings) -> HostFolder:
    """Fetch what is missing, and return a folder with the job as this host serves it, for this process alone.

    Raises:
        SettingsError: The endpoint may not be joined, keys cannot be read, or the state folder cannot be written to.
        LostError: No coordinator of this release answers there.
        RefusedError: The coordinator refuses, for instance because this host's key lacks the role `worker`.
        DataError: The bundle is too large, damaged, or does not fit this host's own index, or a link is in its way.
        MachineError: The state folder's file system has no locks, or something else is in the place of our files.
        OSError: A file or folder cannot be made, read or written, as on a full disk.
    """
    with _whole_bundle(settings) as (manifest, bundle):
        host = HostFolder.take(settings.hosts, manifest.job)
        try:
            _settle(host.path, host.tag, settings, manifest, bundle)
        except BaseException:  # nobody else lets go of the folder
            host.close()
            raise
        return host


def fetch(settings: JoinSettings, into: Path | None = None) -> None:
    """Fetch what is missing; if `into` is a host's folder, bring it up to date as well.

    To be called by the process that has that folder, or on its behalf. Raise as `join` does, and DataError if another
    job is served there now, or if `into` lacks this host's settings. SettingsError of `beside` and LostError and
    MachineError of `_whole_bundle` pass through.
    """
    with _whole_bundle(settings) as (manifest, bundle):
        if into is None:
            return
        joined = JoinedFolder.beside(into / JOB_FILE)
        if joined is None or into.name != manifest.job:
            raise DataError(
                expected=f"the job {into.name}, which this host joined",
                got=manifest.job,
                where=settings.endpoint,
                remedy="Join the job that is served there by a `loader-server run` of its own.",
            )
        _settle(into, joined.tag, settings, manifest, bundle)


@contextlib.contextmanager
def _whole_bundle(settings: JoinSettings) -> Iterator[tuple[Manifest, BundleFolder]]:
    """Hold the lock of the bundles with the coordinator's bundle complete; remove old bundles at the end.

    Raise as `join` does. StokerError of `_learn_manifest` passes through.
    """
    refuse_closed(settings.state.resolve(), where="--state")
    with contextlib.closing(_FetchConnection(settings)) as connection, contextlib.ExitStack() as held:
        fetching = Fetching()
        _learn_manifest(connection, fetching)  # before the lock, not to hold it while waiting
        held.enter_context(locked(settings.bundles))
        manifest, bundle = _fetched(connection, fetching, settings)
        bundle.note_use()
        yield manifest, bundle
        remove_old_bundles(settings.bundles, settings.hosts)


def _settle(folder: Path, tag: str, settings: JoinSettings, manifest: Manifest, bundle: BundleFolder) -> None:
    """Write the job file of a host's folder, and beside it this host's own settings.

    Raise OSError if one cannot be written, or the bundle's job file cannot be read.
    """
    index = settings.index.resolve() if settings.index is not None else bundle.path / INDEX
    joined = JoinedFolder(
        endpoint=settings.endpoint,
        data=str(settings.data.resolve() if settings.data is not None else manifest.folder),
        state=str(folder.parent),
        index=str(index),
        keys=str(settings.keys.resolve()) if settings.keys is not None else "",
        code=str(bundle.path / CODE) if settings.accepts_code and manifest.names_below(CODE) else "",
        bundle=bundle.path.name,
        tag=tag,
        metrics_port=settings.metrics_port,
        again=(*settings.options(), "--into", str(folder)),
        named={path: str(bundle.path / name) for path, name in manifest.named.items()},
    )
    # The settings before the job file: a job file without them would pass for this host's own.
    joined.write(folder / JOB_FILE)
    with replacing(folder / JOB_FILE) as file:
        file.write((bundle.path / JOB_FILE).read_bytes())


def _learn_manifest(connection: _FetchConnection, fetching: Fetching) -> Manifest:
    """Return the manifest, after asking for it until it is here.

    Raise LostError if the coordinator is silent or of another release, SettingsError if its new address may not be
    joined, DataError if the manifest is malformed or damaged again and again, or the error with which the coordinator
    refuses.
    """
    while fetching.manifest is None:
        connection.ask(fetching)
    return fetching.manifest


def _fetched(connection: _FetchConnection, fetching: Fetching, settings: JoinSettings) -> tuple[Manifest, BundleFolder]:
    """Return the manifest and the folder of the complete bundle, after fetching what is missing of it.

    Raise DataError if this host's own index differs, the bundle is too large, pieces or files of it are damaged, or a
    link is in the way; OSError if the disk takes no file; and the other errors of `_learn_manifest`.
    """
    while True:
        manifest = _learn_manifest(connection, fetching)
        # Workers fetch graphs themselves, as these may come at any time.
        skipped = _own_index(manifest, settings.index) | manifest.names_below(GRAPHS)
        skipped |= frozenset[str]() if settings.accepts_code else manifest.names_below(CODE)
        _refuse_too_large(manifest, skipped, settings.endpoint)
        folder = BundleFolder(settings.bundles, manifest, skipped)
        if not folder.is_whole and not _fetch_files(connection, fetching, folder):
            continue  # the coordinator was started again, with another bundle
        return manifest, folder


def _fetch_files(connection: _FetchConnection, fetching: Fetching, folder: BundleFolder) -> bool:
    """Fetch all files that are missing; return False if the coordinator has another bundle now.

    Raise DataError if pieces or files are damaged, or a link is in the way; OSError if the disk takes no file; and the
    other errors of `_learn_manifest`.
    """
    manifest = fetching.manifest
    fetching.need(folder.begin())
    log = Log("join", endpoint=connection.endpoint)
    log.info("fetches what the job needs", nbytes=fetching.left_nbytes, folder=str(folder.path))
    begun_s = time.monotonic()
    while fetching.wanted() is not None:
        piece = connection.ask(fetching)
        if fetching.manifest is not manifest:
            return False
        if piece is not None:
            folder.write(piece)
    folder.finish()
    log.info("has fetched it", seconds=round(time.monotonic() - begun_s, 1))
    return True


def _own_index(manifest: Manifest, index: Path | None) -> frozenset[str]:
    """Return the index files if this host has an equal index of its own, nothing if it has none.

    Raise DataError if its own index differs, is missing or damaged.
    """
    if index is None:
        return frozenset()
    for name, fingerprint in manifest.indexes.items():
        folder = index / name.removeprefix(f"{INDEX}/")
        try:
            got = read_meta(folder).fingerprint
        except DataError as error:
            got = f"{error.got} in {error.where}"
        if got != fingerprint:
            raise DataError(
                expected=f"an index with the fingerprint {fingerprint}, as the coordinator's",
                got=got,
                where=f"--index, {folder}",
                remedy="Name the folder <state>/<job> in which `loader-server index` made it of the same data, or "
                "leave --index out: then it is fetched.",
            )
    return manifest.names_below(INDEX)


def _refuse_too_large(manifest: Manifest, skipped: frozenset[str], endpoint: str) -> None:
    """Raise DataError if the coordinator would not send a file that this host needs, for the bundle's size."""
    if manifest.refused - skipped:
        raise DataError(
            expected=f"at most {manifest.limit} bytes to fetch, as bundle_bytes says",
            got=f"{manifest.nbytes} bytes in {len(manifest.files)} files",
            where=f"the job {manifest.job} at {endpoint}",
            remedy="Keep the job in a folder that both hosts share, and run `loader-server worker job.toml "
            "--coordinator ENDPOINT` there; or name an index of this host's own with --index FOLDER. Or raise "
            "bundle_bytes in [job] of the job file.",
        )


class _FetchConnection:
    """The connection to the coordinator: one request, one answer.

    Making it raises SettingsError if the endpoint may not be joined, if the endpoint's file is unsafe, or if this
    host's keys cannot be read.
    """

    def __init__(self, settings: JoinSettings) -> None:
        self.endpoint = settings.endpoint
        self._settings = settings
        self._log = Log("join", endpoint=settings.endpoint)
        self._followed = settings.follow()
        self._keys = ClientKeys.read(settings.keys, "worker", to="coordinator") if settings.keys is not None else None
        #: The address that we are connected to; empty while none is known.
        self._connected = ""
        #: When the coordinator was last heard or, before that, first asked.
        self._heard_s = time.monotonic()
        self._has_answered = self._is_wait_logged = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._dealer = self._connect()
        except BaseException:  # nobody else ends the context
            self._context.term()
            raise

    def _connect(self) -> zmq.Socket[bytes]:
        """Return a socket that connects to the coordinator, or to nobody while its address is not known.

        Raise SettingsError if that address is malformed, or may not be joined.
        """
        address = self._followed.address
        # Again, because a coordinator that is followed by its file may have moved to another host.
        self._settings.refuse_open(address)
        try:
            dealer = connect_dealer(self._context, address, self._keys, secrets.token_bytes(16))
        except zmq.ZMQError as error:
            raise SettingsError(
                expected="the endpoint of a coordinator, such as tcp://loader-1:7400",
                got=f"{address}: {error}",
                where="loader-server run",
                remedy="Name host and port at which the job is served.",
            ) from None
        self._connected, self._has_answered = address, False
        return dealer

    def ask(self, fetching: Fetching) -> FilePiece | None:
        """Send the next request until it is answered; return the bytes of a file, or None for anything else.

        Raise LostError if the coordinator is silent for a minute or of another release, SettingsError if its new
        address may not be joined or its file is unsafe, DataError if the answer is malformed or damaged too often, or
        the error with which it refuses.
        """
        wanted = fetching.wanted()
        assert wanted is not None
        self._heard_s, due_s = time.monotonic(), 0.0
        while True:
            now_s = time.monotonic()
            if now_s - self._heard_s > _LOST_S:
                raise self._lost()
            if self._follow(now_s):
                due_s = 0.0  # the request went to the former address
            self._log_waiting(now_s)
            if now_s >= due_s and send_if_up(self._dealer, encode(wanted)):
                due_s = now_s + (_AGAIN_S if self._has_answered else _FIRST_S)
            piece = self._hear(min(_FOLLOW_S, max(_LOOK_S, due_s - now_s)))
            if piece is not None:
                return fetching.take(piece)

    def _hear(self, wait_s: float) -> m.BundlePiece | None:
        """Wait at most this long for a message; return the piece in it, or None if none came.

        Raise the error with which the coordinator refuses, or LostError if it is of another release.
        """
        if not self._dealer.poll(int(1000 * wait_s)):
            return None
        pieces = (self._read(frames[0]) for frames in read_waiting(self._dealer, 1))
        return next(filter(None, pieces), None)

    def _follow(self, now_s: float) -> bool:
        """Connect to the coordinator's new address if its file names another one; return whether it does.

        Raise SettingsError if the new address may not be joined, or if the file is unsafe and no address is known yet.
        """
        quiet_s = now_s - self._heard_s if self._connected else math.inf
        if not self._followed.has_moved(self._connected, quiet_s, now_s):
            return False
        former, self._dealer = self._dealer, self._connect()
        former.close(linger=0)
        return True

    def _log_waiting(self, now_s: float) -> None:
        """Log once, long before giving up, that we wait for the coordinator."""
        if now_s - self._heard_s > _LOG_AFTER_S and not self._is_wait_logged:
            self._is_wait_logged = True
            reason = self._followed.problem or "no answer"
            self._log.warning("waits for the coordinator", reason=reason, seconds=_LOST_S)

    def _read(self, frame: zmq.Frame) -> m.BundlePiece | None:
        """Return the piece in an answer, None for another message.

        Raise the error with which the coordinator refuses, or LostError if the message cannot be decoded.
        """
        self._heard_s = time.monotonic()
        try:
            message = decode(frame.buffer)
        except ProtocolError as error:
            raise LostError(
                expected="a coordinator of this release", got=str(error), where=self.endpoint,
                remedy="Run the same release of Stoker on both hosts.",
            ) from None  # fmt: skip
        if isinstance(message, m.Refused):
            raise error_of(message, f"coordinator at {self.endpoint}")
        self._has_answered = True
        return message if isinstance(message, m.BundlePiece) else None

    def _lost(self) -> LostError:
        return LostError(
            expected="a coordinator that gives this host what the job needs",
            got=self._followed.problem or "no answer for a minute",
            where=self.endpoint,
            remedy="Start the job there, correct the endpoint, or name the folder with this host's keys by --keys.",
        )

    def close(self) -> None:
        """Close the socket, and end libzmq's threads."""
        self._dealer.close(linger=0)
        self._context.term()
