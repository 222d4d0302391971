"""A folder of checkpoints: numbered files of plain arrays and a record, of which the newest intact one is read.

Rules it keeps:
- A checkpoint is one file, written under another name, synced and renamed: it is there whole or not at all.
- Arrays of embedding tables, which may be larger than memory, are written in pieces, and stay in the file when read.
- It ends with a hash of all its bytes. A file whose hash does not match is damaged, wherever the damage is.
- Where several processes may take themselves for the writer, checkpoints are a chain: each follows the one that its
  writer read or wrote last. A writer that was overtaken, such as a chief that was stopped and taken for dead, fails.
- A damaged file is named and skipped, and the one before it is read. If none is left, that is an error: only a folder
  without any checkpoint means starting from nothing.

It must not know models, feeds or TensorFlow.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import xxhash

from shared.errors import DataError, WorldChangedError
from shared.stores.own_files import draft_of, open_own, refuse_closed
from shared.system.system_errors import system_error
from trainer_client.network.trainer_log import process_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

__all__ = ["TABLES", "Arrays", "CheckpointFolder", "StreamedArray"]

Arrays = dict[str, "NDArray[np.generic]"]
#: An array that may be larger than memory: name, dtype, shape, and the bytes in pieces.
StreamedArray = tuple[str, str, tuple[int, ...], "Iterable[memoryview]"]

#: Arrays whose names begin so are left in the file when it is read, and mapped: their pages are read when needed.
TABLES = "tables/"

#: Format 1 had no hash of the file, only the checksum of each array.
_FORMAT = 2
_RECORD = "record"
#: An empty file beside the checkpoints: training has ended.
_FINISHED = "finished"
#: Stands before the hash at the end of the file; readers of plain .npz files ignore what follows the archive.
_SEAL = b"stoker checkpoint, xxh3-128 of all before this: "
_TAIL_BYTES = len(_SEAL) + 16
_PIECE_BYTES = 2**20
#: Errors of file systems that have no hard links, such as many network mounts.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
#: Where an archive states its number of entries.
_ENTRIES_FROM_END = -12
#: The length of an archive's local header without its variable parts, and where in it the lengths of these stand.
_LOCAL_HEADER, _NAME_LENGTH_AT = 30, 26


class _DamagedError(Exception):
    """An error of a file that is not an intact checkpoint; the message says why."""


class CheckpointFolder:
    """Numbered checkpoint files in a folder, of which the newest `keep` intact ones are kept.

    With `chained` they are a chain, which has to be read before it is written.
    """

    def __init__(self, folder: str | Path, keep: int, *, chained: bool = False) -> None:
        self._folder = Path(folder)
        self._keep = keep
        self._chained = chained
        #: The number of the newest file when we last read or wrote: in a chain, a higher one is another writer's.
        self._last = 0
        #: The checkpoint that was read or written last.
        self.newest_used: Path | None = None
        #: Files that were passed over, because they are damaged.
        self._damaged: set[Path] = set()
        self._log = process_log()

    def __str__(self) -> str:
        return str(self._folder)

    def refuse_closed(self) -> None:
        """Raise SettingsError if no checkpoint can be written here, which is better known before training."""
        refuse_closed(self._folder, where="checkpoints")

    def write(
        self, arrays: Mapping[str, NDArray[np.generic]], record: Mapping[str, Any], tables: Iterable[StreamedArray] = ()
    ) -> Path:
        """Commit one checkpoint, whole or not at all, then remove old ones; return its path.

        Arrays of `tables` are written piece by piece as they come; their errors are passed on, but one that has an
        OSError behind it as MachineError. Raise that also if the system refuses to write the file, OSError if it
        refuses to make, read or sync the folder or to name the file, and, in a chain, WorldChangedError if another
        trainer has written a checkpoint since we last read or wrote one.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        newest = self._newest_number()
        # Refused early, before much is written; another writer may still come in between, which `_put` finds out.
        if self._chained and newest != self._last:
            raise _overtaken(self._folder, newest)
        path = self._folder / f"{newest + 1:08d}.npz"
        temporary = draft_of(path)
        try:
            with temporary.open("x+b") as file:
                _write(file, arrays, record, tables)
                file.flush()
                os.fsync(file.fileno())
        except Exception as error:  # whatever it is, no draft stays behind
            temporary.unlink(missing_ok=True)
            _raise_in_our_words(error, self._folder)
            raise
        self._put(temporary, path)
        self._last = newest + 1
        self.newest_used = path
        # A rename outlasts a power failure only once its folder is synced, so old checkpoints go after that.
        _sync_folder(self._folder)
        self._drop_old()
        return path

    def _put(self, temporary: Path, path: Path) -> None:
        """Give the draft its name; in a chain, raise WorldChangedError if another writer has taken it.

        That is raised too if another writer has removed the draft. Raise OSError if the system refuses.
        """
        if not self._chained:
            temporary.replace(path)
            return
        try:
            _name(temporary, path)
        except (FileExistsError, FileNotFoundError):  # or the other has removed our draft
            raise _overtaken(self._folder, self._newest_number()) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _newest_number(self) -> int:
        return max((int(path.stem) for path in self._list_paths()), default=0)

    def read_last(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Return the arrays and record of the newest intact checkpoint; None if there is no checkpoint at all.

        Raise DataError if there are some, but all are damaged, and OSError if the folder cannot be read.
        """
        found = self.read_newest_whole()
        return None if found is None else found[1:]

    def read_newest_whole(self) -> tuple[str, Arrays, dict[str, Any]] | None:
        """Return file name, arrays and record of the newest intact checkpoint; None if there is no checkpoint at all.

        Damaged ones that are newer are passed over, with a warning in the log. Raise DataError if all are damaged, and
        OSError if the folder cannot be read.
        """
        reasons: dict[Path, str] = {}
        self._last = self._newest_number()
        # A file that appears meanwhile is left out, so that a chain counts it as another's.
        for path in reversed([path for path in self._list_paths() if int(path.stem) <= self._last]):
            try:
                found = _read(path)
            except (OSError, _DamagedError) as error:
                reasons[path] = str(error)
                self._log.warning("checkpoint cannot be used: the one before it is tried", file=path, reason=error)
                continue
            if reasons:
                self._log.warning("an older checkpoint is taken", file=path, passed_over=len(reasons))
            self._damaged.update(reasons)
            self.newest_used = path
            return path.name, *found
        if reasons:
            raise _none_is_whole(self._folder, reasons)
        return None

    def read(self, name: str, *, otherwise: str) -> tuple[Arrays, dict[str, Any]]:
        """Return the arrays and record of the checkpoint of this name.

        Raise DataError if it cannot be read; `otherwise` is what a user may do then.
        """
        try:
            return _read(self._folder / name)
        except (OSError, _DamagedError) as error:
            raise DataError(
                expected="the checkpoint that this began with", got=str(error), where=str(self._folder / name),
                remedy=f"Put it back from a copy, or {otherwise}.",
            ) from error  # fmt: skip

    def newest(self) -> str:
        """Return the name of the newest checkpoint, which may be damaged; empty if there is none.

        Raise OSError if the folder is there, but cannot be read.
        """
        return "".join(path.name for path in self._list_paths()[-1:])

    def mark(self, *, finished: bool) -> None:
        """Mark the folder as finished, so that no more checkpoints come, or as unfinished.

        The first makes the folder if it is not there. Raise MachineError if a link or the like is in the place of the
        mark, and OSError if the system refuses to make or remove it.
        """
        if finished:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.close(open_own(self._folder / _FINISHED, os.O_WRONLY | os.O_CREAT))
        else:
            (self._folder / _FINISHED).unlink(missing_ok=True)

    def is_finished(self) -> bool:
        """Return whether the folder is marked, as no more checkpoints come; raise OSError if it cannot be searched."""
        return (self._folder / _FINISHED).exists()

    def _list_paths(self) -> list[Path]:
        try:
            entries = list(self._folder.iterdir())  # unlike `glob` it raises where the folder cannot be read
        except FileNotFoundError:
            return []
        return sorted(
            (path for path in entries if path.suffix == ".npz" and path.stem.isdecimal()),
            key=lambda path: int(path.stem),
        )

    def _drop_old(self) -> None:
        """Remove what is older than the newest `keep` checkpoints that are not known to be damaged, and all drafts.

        A file that cannot be removed is logged; raise OSError if the folder cannot be read.
        """
        # Damaged files do not count as kept: they must not push out the intact ones before them.
        whole = [path for path in self._list_paths() if path not in self._damaged]
        oldest = int(whole[-self._keep :][0].stem)
        self._remove(path for path in self._list_paths() if int(path.stem) < oldest)
        self._remove(self._folder.glob("*.tmp*"))

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the new checkpoint is in place, and that is what counts
                self._log.warning("an old checkpoint cannot be removed", file=path, reason=error)


def _overtaken(folder: Path, newest: int) -> WorldChangedError:
    return WorldChangedError(
        expected="to follow the checkpoint that was read or written last", got=f"number {newest} from another trainer",
        where=str(folder), remedy="Join the next world, and restore that one: `trainer_client.run_elastic` does.",
    )  # fmt: skip


def _none_is_whole(folder: Path, reasons: Mapping[Path, str]) -> DataError:
    files: dict[str, list[str]] = {}
    for path, reason in reasons.items():
        files.setdefault(reason, []).append(path.name)
    named = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in files.items())
    return DataError(
        expected="a whole checkpoint",
        got=f"{len(reasons)} damaged ({named})",
        where=str(folder),
        remedy="Put one back from a copy, or move these away to train from the start.",
    )


def _name(temporary: Path, path: Path) -> None:
    """Give the draft its name; raise FileExistsError if another writer was faster.

    A rename would replace the other's checkpoint instead. Raise FileNotFoundError if the draft was removed meanwhile,
    and OSError if the system refuses otherwise.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path.touch(exist_ok=False)  # a claim: until it is replaced, readers skip it as damaged
        temporary.replace(path)


def _raise_in_our_words(error: BaseException, folder: Path) -> None:
    """Raise MachineError if the error is an OSError or has one behind it; return if it was something else.

    Closing a half-written archive may raise anything then, so the system's error is sought in the context.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    if cause is not None:
        raise system_error(cause, f"checkpoint in {folder}") from error


# --- one file ---


def _write(
    file: IO[bytes],
    arrays: Mapping[str, NDArray[np.generic]],
    record: Mapping[str, Any],
    tables: Iterable[StreamedArray],
) -> None:
    text = json.dumps({**record, "format": _FORMAT}).encode()
    np.savez(file, **arrays, **{_RECORD: np.frombuffer(text, np.uint8)})  # type: ignore[arg-type]
    for name, dtype, shape, pieces in tables:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        with zipfile.ZipFile(file, "a") as archive, archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, header)
            for piece in pieces:
                member.write(piece)
    # Hashing reads the file back, and leaves its position at the end, where the seal belongs.
    length = file.seek(0, os.SEEK_END)
    file.write(_SEAL + _compute_digest(file, length))


def _read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and record of an intact checkpoint; else raise OSError or _DamagedError."""
    with path.open("rb") as file:
        arrays, record = _parse(file) if _is_sealed(file) else _parse_without_seal(file)
    del record["format"]
    return arrays, record


def _is_sealed(file: IO[bytes]) -> bool:
    """Return whether the file ends with a hash, marked as ours; raise _DamagedError if the hash does not match."""
    length = file.seek(0, os.SEEK_END) - _TAIL_BYTES
    if length < 0:
        return False
    file.seek(length)
    tail = file.read()
    if not tail.startswith(_SEAL):
        return False
    if _compute_digest(file, length) != tail.removeprefix(_SEAL):
        raise _DamagedError("its bytes do not have the digest that they were written with")
    return True


def _compute_digest(file: IO[bytes], length: int) -> bytes:
    """Return the hash of the first `length` bytes, and leave the file's position behind them."""
    state, left = xxhash.xxh3_128(), length
    file.seek(0)
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        state.update(piece)
        left -= len(piece)
    return state.digest()


def _parse(file: IO[bytes]) -> tuple[Arrays, dict[str, Any]]:
    file.seek(0)
    with np.load(file, allow_pickle=False) as members:
        arrays = {name: members[name] for name in members.files if not name.startswith(TABLES)}
        mapped = {
            name: _mapped(file, members.zip.getinfo(f"{name}.npy")) for name in members.files if name not in arrays
        }
    record = json.loads(bytes(arrays.pop(_RECORD)))
    return arrays | mapped, record


def _mapped(file: IO[bytes], member: zipfile.ZipInfo) -> NDArray[np.generic]:
    """Return an array of the archive, read-only, which stays in the file, even a removed one; an empty one is made."""
    # Stored without compression, as `np.savez` stores all arrays: behind the local header, which says how long its two
    # variable parts are.
    file.seek(member.header_offset + _NAME_LENGTH_AT)
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(member.header_offset + _LOCAL_HEADER + name + extra)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if 0 in shape:  # nothing cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape)


def _parse_without_seal(file: IO[bytes]) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and record of a file of format 1, which had checksums only.

    Raise _DamagedError if the file is a later one whose end is missing, if it cannot be read, or if arrays are missing
    or do not match their checksums.
    """
    try:
        arrays, record = _parse(file)
        if record["format"] != 1:
            raise _DamagedError("its digest is missing")
        _check_archive(file)
    except (MemoryError, _DamagedError):
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise _DamagedError(f"it cannot be read ({error!r})") from error
    return arrays, record


def _check_archive(file: IO[bytes]) -> None:
    """Raise an error unless all arrays are there and match their checksums.

    Raise _DamagedError if fewer arrays are listed than the file counts, zipfile.BadZipFile or zlib.error for damaged
    bytes.
    """
    with zipfile.ZipFile(file) as archive:
        there = archive.infolist()
        for entry in there:  # `testzip` would look at only one of two with the same name
            with archive.open(entry) as member:
                while member.read(_PIECE_BYTES):
                    pass
    file.seek(_ENTRIES_FROM_END, os.SEEK_END)
    entries = int.from_bytes(file.read(2), "little")
    # With a damaged length, the listing stops early and all that it has is intact.
    if len(there) != entries:
        raise _DamagedError(f"it has {len(there)} arrays of {entries}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
