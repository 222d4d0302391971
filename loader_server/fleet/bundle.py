"""The bundle of a job on its coordinator's host: the files that belong to it, and their pieces.

Rules: a file stays open from the moment that it is hashed until the coordinator ends, so an index that is remade
meanwhile changes nothing. Pieces are read by offset and not from memory maps: a file that somebody truncates under a
map would kill the coordinator, and a piece from the page cache costs the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.fleet.manifest import CODE, GRAPHS, INDEX, JOB_FILE, BundleFile, Manifest, is_safe_name, sha256
from loader_server.index.folder import read_meta
from loader_server.own_code import own_files
from loader_server.sources.files.opening import KEPT_FOLDER
from loader_server.transforms.find import named_files
from shared.errors import StokerError
from shared.logs import Log
from shared.wire import messages as m
from shared.wire.message_parts import BUNDLE_PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from loader_server.job_file import JobFile

__all__ = ["Bundle", "BundleKeeper", "bundle_files", "bundle_nbytes"]

_SUFFIX = re.compile(r"\.[A-Za-z0-9_]{1,16}")


def bundle_files(job: JobFile) -> Iterator[tuple[str, Path]]:
    """Yield the files of a job's bundle by their names there: job file, code, named files, then indexes.

    Cached plans are part of an index. Graphs that trainers send come later, and streams whose packages are not
    installed here are left out. The smallest files come first, so that a host with an index of its own gets the rest of
    a bundle that is too large. Code is included only if there are keys: without them anybody could fetch it.

    Raise DataError if an index is missing or damaged, SettingsError if a transform's settings do not fit, or OSError if
    a folder or module cannot be read; other errors of `own_files` pass through.
    """
    yield JOB_FILE, job.path
    if job.keys is not None:
        code = {f"{CODE}/{place}": file for place, file in own_files(job.modules(), job.base).items()}
        yield from ((name, file) for name, file in code.items() if is_safe_name(name))
    for name, path in _named(job).items():
        yield name, job.base / path
    for folder in _index_folders(job):
        for file in _index_files(folder):
            yield _name_of(job, file), file
    for name in _fetched_streams(job):
        for file in sorted(job.index_folder(name).glob("*.plan")):
            yield _name_of(job, file), file


def bundle_nbytes(job: JobFile) -> int | None:
    """Return how many bytes a joining host fetches; None if a file of the bundle is missing or cannot be read.

    That is so before indexing, for instance, or if the settings of a transform do not fit. Other errors of `own_files`
    pass through.
    """
    try:
        return sum(path.stat().st_size for _, path in bundle_files(job))
    except (StokerError, OSError):
        return None


def _named(job: JobFile) -> dict[str, str]:
    """Return the paths of files that transforms name, as in the job file, by their names in the bundle.

    Raise SettingsError if the settings of a transform do not fit.
    """
    paths: dict[str, None] = {}
    for _, recipe in job.recipes.readable():
        paths.update(dict.fromkeys(named_files(recipe.settings.transforms, recipe.tables, recipe.where)))
    # Numbered, because the paths may lead out of the job's folder.
    suffixes = [Path(path).suffix for path in paths]
    names = (f"files/{number}{suffix if _SUFFIX.fullmatch(suffix) else ''}" for number, suffix in enumerate(suffixes))
    return dict(zip(names, paths, strict=True))


def _fetched_streams(job: JobFile) -> Iterator[str]:
    """Yield the streams whose index is part of the bundle: all but those whose graph a trainer sends.

    Streams whose packages are not installed here are left out as well.
    """
    yield from (name for name, _ in job.recipes.readable() if name not in job.accepting)


def _graph(job: JobFile, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a stream's graph that a trainer has sent: the graph, then its index.

    Raise DataError if the index is missing or damaged, or OSError if its folder cannot be listed.
    """
    yield f"{GRAPHS}/{name}/graph", job.graph_path(name)
    folder = job.index_folder(name)
    for file in _index_files(folder):
        yield f"{GRAPHS}/{name}/{INDEX}/{file.relative_to(folder).as_posix()}", file


def _index_files(folder: Path) -> Iterator[Path]:
    """Yield the files of an index, `meta.json` first; raise DataError if it is missing or damaged.

    Raise OSError if its folder cannot be listed.
    """
    yield folder / "meta.json"
    yield from sorted(file for file in (folder / read_meta(folder).folder).iterdir() if file.is_file())
    yield from sorted((folder / KEPT_FOLDER).glob("*"))


def _index_folders(job: JobFile) -> Iterator[Path]:
    for name in _fetched_streams(job):
        yield from job.index_folders(job.recipes[name])


def _name_of(job: JobFile, file: Path) -> str:
    return f"{INDEX}/{file.relative_to(job.index_root).as_posix()}"


class Bundle:
    """A job's files, hashed and open, with their manifest.

    Making it raises DataError if an index is missing or damaged, SettingsError if the settings of a transform do not
    fit, or OSError if a file cannot be read; other errors of `bundle_files` pass through.
    """

    def __init__(self, job: JobFile) -> None:
        self._job = job
        self._descriptors: dict[str, int] = {}
        try:
            self.manifest = Manifest(
                job=job.settings.name,
                folder=str(job.base),
                limit=job.settings.bundle_bytes,
                files=tuple(self._open(name, path) for name, path in bundle_files(job)),
                named={path: name for name, path in _named(job).items()},
                indexes={_name_of(job, folder): read_meta(folder).fingerprint for folder in _index_folders(job)},
            )
        except BaseException:  # nobody else closes the files that are open, also if an index vanishes meanwhile
            self.close()
            raise

    def add_graph(self, name: str) -> None:
        """Add a graph that runs now; all other files stay as they were hashed.

        Raise DataError if its index is missing or damaged, OSError if a file cannot be read; a later call tries again.
        """
        files = self.manifest.files
        graph = [self._open(name, path) for name, path in _graph(self._job, name)]
        # Before the indexes: they come last, so that a host gets the rest of a bundle that is too large.
        first = next((at for at, file in enumerate(files) if file.name.startswith(f"{INDEX}/")), len(files))
        self.manifest = dataclasses.replace(self.manifest, files=(*files[:first], *graph, *files[first:]))

    def _open(self, name: str, path: Path) -> BundleFile:
        """Open a file, hash it and its pieces, and leave it open; raise OSError if it cannot be read.

        A file of this name that a failed try left open is closed.
        """
        if name in self._descriptors:  # left by a try that failed
            os.close(self._descriptors.pop(name))
        descriptor = self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        whole, pieces, nbytes = hashlib.sha256(), bytearray(), 0
        while content := os.pread(descriptor, BUNDLE_PIECE_BYTES, nbytes):
            whole.update(content)
            pieces += sha256(content)
            nbytes += len(content)
        return BundleFile(name, nbytes, whole.digest(), bytes(pieces))

    def piece_of(self, manifest: Manifest, offset: int) -> bytes | None:
        """Return the piece that begins at an offset of the bundle with this manifest; None if there is none to send.

        That is so beyond the end, beyond the job's size limit, and in a file that has become shorter. Raise OSError if
        the file cannot be read.
        """
        place = manifest.place_of(offset)
        if place is None:
            return None
        if place.file is None:
            return manifest.encoded[place.start : place.start + place.nbytes]
        if place.file.name in manifest.refused:
            return None
        content = os.pread(self._descriptors[place.file.name], place.nbytes, place.start)
        return content if len(content) == place.nbytes else None

    def close(self) -> None:
        """Close the files that pieces are read from; may be called again."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class BundleKeeper:
    """A coordinator's bundle, hashed by a thread when the first host asks.

    The thread calls `wake` when it is done. Graphs that come later are hashed in the same way; until then the bundle is
    served as it was.
    """

    def __init__(self, job: JobFile, wake: Callable[[], None], graphs: Iterable[str] = ()) -> None:
        self._job = job
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._bundle: Bundle | None = None
        #: Streams whose graphs run but are not hashed yet.
        self._graphs = deque(graphs)
        self._log = Log("coordinator")

    @property
    def is_ready(self) -> bool:
        """Return whether pieces can be sent, as it was before asking, which starts the work that there is."""
        # Taken before the work begins, so that the first to ask always hears no, however fast the thread is.
        is_ready = self._bundle is not None
        self._begin()
        return is_ready

    def add_graph(self, name: str) -> None:
        """Add the graph of this stream, which runs from now on; it is hashed once there is a bundle."""
        self._graphs.append(name)
        if self._bundle is not None:
            self._begin()

    def _begin(self) -> None:
        """Start a thread if there is work to do and none does it."""
        is_done = self._bundle is not None and not self._graphs
        if not is_done and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._make, name="bundle", daemon=True)
            self._thread.start()

    def is_end(self, wanted: m.BundleWanted) -> bool:
        """Return whether a host has all of this bundle and waits for the next, which is made if that is due.

        Return False while no bundle is hashed yet; asking starts the work.
        """
        self._begin()
        manifest = self._bundle.manifest if self._bundle is not None else None
        return manifest is not None and (wanted.digest, wanted.offset) == (manifest.digest, manifest.end)

    def answer(self, wanted: m.BundleWanted) -> m.BundlePiece | None:
        """Return the piece that a host asks for; None if there is none to send.

        That is so while no bundle is hashed yet, beyond its end or size limit, and in a file that has become shorter. A
        host that has another bundle's digest gets the beginning of this one. Raise OSError if a file cannot be read.
        """
        if self._bundle is None:
            return None
        manifest = self._bundle.manifest  # read once: the thread may replace it at any moment
        offset = wanted.offset if wanted.digest == manifest.digest else 0
        content = self._bundle.piece_of(manifest, offset)
        if content is None:
            return None
        return m.BundlePiece(
            digest=manifest.digest, manifest_nbytes=len(manifest.encoded), offset=offset, content=content
        )

    def _make(self) -> None:
        """Hash what is new, and wake the coordinator.

        If something cannot be read, log a warning and return; the next question of a host begins again.
        """
        try:
            self._bundle = bundle = self._bundle or Bundle(self._job)
            while self._graphs:
                bundle.add_graph(self._graphs[0])
                self._graphs.popleft()  # only now: after an error the next try begins with it again
        except (StokerError, OSError) as error:  # it is tried again when a host asks again
            self._log.warning("the bundle for joining hosts cannot be read", error=str(error))
            return
        manifest = bundle.manifest
        self._log.info("hosts can join", digest=manifest.digest[:16], files=len(manifest.files), nbytes=manifest.nbytes)
        self._wake()

    def close(self) -> None:
        """Close the files, unless the thread still reads them."""
        if self._bundle is not None and not (self._thread is not None and self._thread.is_alive()):
            self._bundle.close()
            self._bundle = None
