"""A joining host's copies of bundles: a folder for each, whole or not there, fetched by one process at a time.

Rules: a bundle is written into a draft, where a later process resumes after a cut, and renamed when each file has the
SHA-256 of the manifest. Its name is the digest of the manifest without skipped files, so a change of files that this
host does not take changes nothing here. Nothing is written through a link. Of two processes with one state folder, on
one host or on two that share it, one fetches, and the other waits for its lock.

After a fetch, and under the lock, old bundles are removed: bundles of living processes stay, and so do the newest few
others, whole or begun, for hosts that join again. What cannot be removed is logged, and hinders nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from typing import TYPE_CHECKING

from loader_server.fleet.host_folder import bundles_in_use, lock
from shared.errors import DataError, MachineError
from shared.logs import Log
from shared.stores.own_files import open_own
from shared.wire.message_parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from loader_server.fleet.fetching import FilePiece
    from loader_server.fleet.manifest import BundleFile, Manifest

__all__ = ["KEPT", "BundleFolder", "locked", "remove_old_bundles"]

#: Pause between tries to get the lock.
_LOOK_S = 0.2

#: Number of unused bundles that stay.
KEPT = 3

_BUNDLE = re.compile(r"[0-9a-f]{32}(\.draft)?")
_REMOVED = ".removed"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a state folder's bundles; wait for its holder, however long that process fetches.

    Raise MachineError if the file system has no locks, or if something else is in the place of the lock's file. Raise
    OSError if the folder or the file cannot be made, as on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = open_own(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        _wait_for_lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, folder: Path) -> None:
    """Lock an open file once nobody has it; log once that another process has.

    Raise MachineError if the file system has no locks.
    """
    is_logged = False
    while True:
        try:
            lock(descriptor, folder)
        except BlockingIOError:
            if not is_logged:
                Log("join").info("waits for another process that fetches into this state folder", folder=str(folder))
            is_logged = True
            time.sleep(_LOOK_S)
        else:
            return


class BundleFolder:
    """One bundle below the folder of bundles, without the `skipped` files; used under the folder's lock."""

    def __init__(self, bundles: Path, manifest: Manifest, skipped: frozenset[str] = frozenset()) -> None:
        kept = manifest.without(skipped)
        name = kept.digest[:32]
        self.path = bundles / name
        self._files = kept.files
        self._draft = bundles / f"{name}.draft"

    @property
    def is_whole(self) -> bool:
        """Return whether the bundle is complete, which its folder's name alone tells."""
        return self.path.is_dir()

    def begin(self) -> dict[str, int]:
        """Create the draft or resume it; return the number of each file's first missing piece.

        For a file that is complete this is the number of its pieces. Raise DataError if a link stands in the way. Raise
        OSError if a file or folder cannot be made or read.
        """
        if self._draft.is_symlink():
            raise _in_the_way(self._draft)
        self._draft.mkdir(mode=0o700, exist_ok=True)
        # Makes the draft one of the newest bundles, which `remove_old_bundles` keeps.
        os.utime(self._draft)
        return {file.name: self._checked_pieces(file) for file in self._files}

    def _checked_pieces(self, file: BundleFile) -> int:
        """Return how many pieces of a file are here and correct; truncate the file after them.

        Create the file if it is not there. Raise DataError if a link stands in the way. Raise OSError if the file
        cannot be made, read or truncated.
        """
        # A kill or a power cut may have left any bytes behind, so each piece counts by its checksum alone.
        with self._opened(file) as descriptor:
            number = 0
            while number < file.count and file.has_piece(number, _read(descriptor, file, number)):
                number += 1
            os.ftruncate(descriptor, min(file.nbytes, number * BUNDLE_PIECE_BYTES))
        return number

    @contextlib.contextmanager
    def _opened(self, file: BundleFile) -> Iterator[int]:
        """Open a file of the draft for the block, and create it and the folders above it.

        Raise DataError if it or one of these folders is a link. Raise OSError if one cannot be opened or made.
        """
        path = self._draft / file.name
        # O_NOFOLLOW guards only the last part of a path, so the folders above are checked one by one.
        for folder in reversed(path.relative_to(self._draft).parents[:-1]):
            if (self._draft / folder).is_symlink():
                raise _in_the_way(self._draft / folder)
            (self._draft / folder).mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise (_in_the_way(path) if path.is_symlink() else error) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def write(self, piece: FilePiece) -> None:
        """Write a piece whose checksum was checked; raise DataError if a link stands in the way.

        Raise OSError if the disk does not take it, as when it is full.
        """
        with self._opened(piece.file) as descriptor:
            os.pwrite(descriptor, piece.content, piece.start)

    def finish(self) -> None:
        """Check and sync each file, and rename the draft to the bundle.

        Raise DataError if a file differs from the manifest, in which case the draft is removed, or if a link stands in
        the way. Raise OSError if a file cannot be read or synced, or the draft cannot be renamed.
        """
        for file in self._files:
            self._check(file)
        # Every file is synced by now, so a bundle that has its name is whole, even after a power cut.
        self._draft.replace(self.path)

    def note_use(self) -> None:
        """Make it the newest bundle, which is removed last; raise OSError if it is gone."""
        os.utime(self.path)

    def _check(self, file: BundleFile) -> None:
        """Sync a file of the draft; raise DataError, and remove the draft, if it differs from the manifest.

        Raise DataError, and leave the draft, if a link stands in the way. Raise OSError if it cannot be read or synced.
        """
        with self._opened(file) as descriptor:
            whole = hashlib.sha256()
            for number in range(file.count):
                whole.update(_read(descriptor, file, number))
            is_right = whole.digest() == file.digest and os.fstat(descriptor).st_size == file.nbytes
            os.fsync(descriptor)
        if not is_right:
            shutil.rmtree(self._draft)
            raise DataError(
                expected=f"{file.name} as the manifest has it",
                got="other bytes on this host's disk",
                where=str(self._draft),
                remedy="Check the disk, and join again: the file is fetched again.",
            )


def _read(descriptor: int, file: BundleFile, number: int) -> bytes:
    return os.pread(descriptor, file.piece_nbytes(number), number * BUNDLE_PIECE_BYTES)


def _in_the_way(path: Path) -> DataError:
    return DataError(
        expected="a folder or file of this host's own",
        got="a link",
        where=str(path),
        remedy="Remove it, and join again: nothing is written through links.",
    )


# --- old bundles ---


def remove_old_bundles(bundles: Path, hosts: Path) -> None:
    """Remove bundles that are neither in use nor among the three newest others; log what cannot be removed.

    If the settings of a folder in use cannot be read, only what a kill left of earlier removals is removed; if locks
    cannot be checked or bundles cannot be listed, nothing is.
    """
    try:
        for path in _removable(bundles, bundles_in_use(hosts)):
            _remove(path)
    except (OSError, MachineError) as error:
        Log("join").warning("unused bundles cannot be listed", folder=str(bundles), error=str(error))


def _remove(path: Path) -> None:
    log = Log("join", folder=str(path).removesuffix(_REMOVED))
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("an unused bundle cannot be removed", error=str(error))
    else:
        log.info("removed an unused bundle")


def _removable(bundles: Path, in_use: set[str] | None) -> Iterable[Path]:
    """Yield the folders to remove, each renamed: what a kill left of earlier removals, then old unused bundles.

    Without knowing which bundles are in use (None), yield only the former. Raise OSError if the folder cannot be
    listed, or one cannot be renamed.
    """
    folders = [path for path in bundles.iterdir() if path.is_dir() and not path.is_symlink()]
    yield from (path for path in folders if path.name.endswith(_REMOVED))
    # If a folder in use cannot be read, any bundle may be the one that it uses.
    if in_use is None:
        return
    unused = [path for path in folders if _BUNDLE.fullmatch(path.name) and path.name not in in_use]
    unused.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in unused[KEPT:]:
        # Renamed before its first file is removed, so that what a kill leaves behind is never taken for a bundle.
        yield path.rename(path.with_name(path.name + _REMOVED))
