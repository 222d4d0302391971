"""A host joins a job: it fetches the bundle from the coordinator, unless it is here, and makes a job folder of it.

Rules: one piece is asked for at a time, and asked for again if nothing comes. Nobody is waited for without end: a
coordinator that says nothing for a minute is an error. What was fetched before a cut is kept, and used by the next try.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from loader_server.fleet.bundle_folder import BundleFolder, locked
from loader_server.fleet.fetching import Fetching
from loader_server.fleet.joined_folder import JoinedFolder
from loader_server.fleet.manifest import INDEX, JOB_FILE
from loader_server.job_folder import JobFolder
from loader_server.sources.index.folder import read_meta
from shared.command import LONGEST_WAIT_S
from shared.errors import DataError, LostError, ProtocolError, SettingsError, StokerError
from shared.keys import ClientKeys
from shared.logs import Log
from shared.sockets import connect_dealer, read_waiting, send_if_up
from shared.system.closed_places import refuse_closed
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.refusals import error_of

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from loader_server.fleet.fetching import FilePiece
    from loader_server.fleet.manifest import Manifest

__all__ = ["JoinSettings", "join"]

#: How long to wait for an answer before asking again: at first, and once answers have come.
_FIRST_S, _AGAIN_S = 1.0, 5.0
#: How often to look whether the connection is up.
_LOOK_S = 0.05
#: A coordinator that says nothing for so long is not there.
_LOST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """What a host says of itself when it joins; `data` stands for the job's folder, `index` for its state folder."""

    endpoint: str
    state: Path
    keys: Path | None = None
    data: Path | None = None
    index: Path | None = None

    def options(self) -> tuple[str, ...]:
        """Return the options of a command that say the same."""
        folders = {"--state": self.state, "--keys": self.keys, "--data": self.data, "--index": self.index}
        given = ((name, str(folder.resolve())) for name, folder in folders.items() if folder is not None)
        return tuple(word for option in given for word in option)


def join(settings: JoinSettings) -> JobFolder:
    """Fetch what is lacking, and return the job as this host serves it.

    Raises:
        LostError: No coordinator answers there.
        RefusedError: This host's key lacks the role `worker`.
        DataError: The bundle is too large, damaged, or does not fit this host's own index.

    """
    state = settings.state.resolve()
    refuse_closed(state, where="--state")
    bundles = state / "bundles"
    with locked(bundles):
        with _FetchConnection(settings) as connection:
            manifest, bundle = _fetched(connection, settings, bundles)
        index = settings.index.resolve() if settings.index is not None else bundle.path / INDEX
        folder = state / "hosts" / os.uname().nodename / manifest.job
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.path / JOB_FILE, folder / JOB_FILE)
        joined = JoinedFolder(
            endpoint=settings.endpoint,
            data=str(settings.data.resolve() if settings.data is not None else manifest.folder),
            state=str(folder.parent),
            index=str(index),
            keys=str(settings.keys.resolve()) if settings.keys is not None else "",
            again=settings.options(),
            named={said: str(bundle.path / name) for said, name in manifest.named.items()},
        )
        joined.write(folder / JOB_FILE)
        return JobFolder(folder / JOB_FILE)


def _fetched(connection: _FetchConnection, settings: JoinSettings, bundles: Path) -> tuple[Manifest, BundleFolder]:
    """Return the manifest, and the bundle's folder, which is whole."""
    fetching = Fetching()
    while True:
        while fetching.manifest is None:
            connection.ask(fetching)
        manifest = fetching.manifest
        skipped = _own_files(manifest, settings.index)
        _refuse_too_large(manifest, skipped, settings.endpoint)
        folder = BundleFolder(bundles, manifest, skipped)
        if not folder.is_whole and not _fetch_files(connection, fetching, folder):
            continue  # the coordinator was started again, with another bundle
        return manifest, folder


def _fetch_files(connection: _FetchConnection, fetching: Fetching, folder: BundleFolder) -> bool:
    """Fetch all files that are lacking; return False if the coordinator has another bundle now."""
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


def _own_files(manifest: Manifest, index: Path | None) -> frozenset[str]:
    """Return the files that need not be fetched, because this host has an index of its own that is equal."""
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
    return frozenset(file.name for file in manifest.files if file.name.startswith(f"{INDEX}/"))


def _refuse_too_large(manifest: Manifest, skipped: frozenset[str], endpoint: str) -> None:
    refused = manifest.refused - skipped
    if refused:
        raise DataError(
            expected=f"at most {manifest.limit} bytes to fetch, as bundle_bytes says",
            got=f"{manifest.nbytes} bytes in {len(manifest.files)} files",
            where=f"the job {manifest.job} at {endpoint}",
            remedy="Keep the job in a folder that both hosts share, and run `loader-server worker job.toml "
            "--coordinator ENDPOINT` there; or name an index of this host's own with --index FOLDER. Or raise "
            "bundle_bytes in [job] of the job file.",
        )


def _no_endpoint(got: str) -> SettingsError:
    return SettingsError(
        expected="the endpoint of a coordinator, such as tcp://loader-1:7400",
        got=got,
        where="loader-server run",
        remedy="Name host and port at which the job is served.",
    )


class _FetchConnection:
    """The way to the coordinator: one request, one answer."""

    def __init__(self, settings: JoinSettings) -> None:
        self.endpoint = settings.endpoint
        keys = ClientKeys.read(settings.keys, "worker", to="coordinator") if settings.keys is not None else None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._dealer = connect_dealer(self._context, settings.endpoint, keys, secrets.token_bytes(16))
        except BaseException as error:
            self._context.term()
            if isinstance(error, zmq.ZMQError):
                raise _no_endpoint(f"{settings.endpoint}: {error}") from None
            raise
        self._heard_s = time.monotonic()
        self._has_answered = False

    def ask(self, fetching: Fetching) -> FilePiece | None:
        """Ask for what is wanted next; return the bytes of a file if they came, and None if something else did."""
        wanted = fetching.wanted()
        assert wanted is not None
        due_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s - self._heard_s > _LOST_S:
                raise self._lost()
            if now_s >= due_s and send_if_up(self._dealer, encode(wanted)):
                due_s = now_s + (_AGAIN_S if self._has_answered else _FIRST_S)
            if self._dealer.poll(int(1000 * min(LONGEST_WAIT_S, max(_LOOK_S, due_s - now_s)))):
                for frames in read_waiting(self._dealer, 1):
                    piece = self._read(frames[0])
                    if piece is not None:
                        return fetching.take(piece)

    def _read(self, frame: zmq.Frame) -> m.BundlePiece | None:
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

    def _lost(self) -> StokerError:
        return LostError(
            expected="a coordinator that gives this host what the job needs",
            got="no answer for a minute",
            where=self.endpoint,
            remedy="Start the job there, correct the endpoint, or name the folder with this host's keys by --keys.",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._dealer.close(linger=0)
        self._context.term()
