"""Cuts that Lhotse makes, once there is an index: perturbed, padded, appended, mixed, and those of Shar folders.

The bytes of the files that a cut is made of are read here, in the indexed versions, and Lhotse gets them in memory,
with the recipe; so it opens nothing itself, but for recordings that are too large to be read whole, which it seeks in.
Rules: what comes out is as long as planned, or a bad sample. Lhotse is imported when the first sample is decoded, and
decodes by libsndfile, with one thread.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.audio.audio_files import AVERAGED, audio_versions
from loader_server.sources.batch_columns import joined_parts, parted
from loader_server.sources.blame import error_text, is_the_samples
from loader_server.sources.cuts.made_places import MadePart, version_or_none
from loader_server.sources.cuts.recipes import WITHIN, holders_in, is_recording, rate_of, width_of
from loader_server.sources.cuts.stored_arrays import unpacked
from loader_server.sources.files.archived_parts import ArchiveReads
from loader_server.sources.files.presence import IndexedFiles, look_at_some
from loader_server.sources.remote.urls import is_url
from shared.errors import SampleError
from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.files.opening import Files
    from loader_server.sources.source import Chunk, Indexed

__all__ = ["MadeCuts", "lhotse_versions"]


def lhotse_versions() -> dict[str, str]:
    """Return the versions of Lhotse and of the libraries by which it makes samples, by name.

    Raise a SettingsError if Lhotse is missing.
    """
    if version_or_none("lhotse") is None:
        _lhotse()  # raises the error that says how to install it
    # Lhotse resamples otherwise where there is no torchaudio.
    names = ("lhotse", "torch", "torchaudio", "scipy", "lilcom", "pyloudnorm")
    versions = {name: version_or_none(name) for name in names}
    return audio_versions() | {name: version for name, version in versions.items() if version is not None}


class MadeCuts:
    """The samples of an index that Lhotse makes.

    `lengths` are their planned lengths; `wanted` is "audio" or "features", and which of several channels. `where` is
    how messages name a sample.
    """

    def __init__(
        self,
        files: Files,
        indexed: Indexed,
        lengths: NDArray[np.int64],
        wanted: tuple[str, int],
        where: Callable[[int], str],
    ) -> None:
        self._files = files
        self._recipes, self._parts = indexed.strings["recipe"], indexed.strings["parts"]
        #: The number of parts of all samples up to each.
        self._ends = np.cumsum(indexed.numbers["parts"])
        self._lengths = lengths
        self._values, self._channel = wanted
        self._where = where
        self._reads = ArchiveReads(files)

    def _parts_of(self, sample: int) -> list[MadePart]:
        """Return the parts of files that a sample is made of."""
        return [MadePart.from_json(values) for values in json.loads(self._parts[sample])]

    def read(self, sample: int) -> bytes:
        """Return the bytes of all parts of a sample, joined; none of a recording that Lhotse seeks in.

        Raise a ReadError if a file is no longer the indexed one or a remote one cannot be fetched, a DataError if a
        local one is gone, and an OSError if the disk fails. SettingsError and MachineError of `read` pass through.
        """
        return joined_parts([self._read(part) for part in self._parts_of(sample)])

    def _read(self, part: MadePart) -> bytes:
        """Return the bytes of a part, or none of a recording that is sought in; raise what `read` raises."""
        if part.is_sought_in:
            with self._files.local(part.path, part.facts):  # fetch it now, if it is remote
                return b""
        return self._reads.read(part.path, part.facts, part.content, (part.offset, part.nbytes))

    def read_chunk(self, chunk: Chunk) -> bytes:
        """Return the bytes of the sample that a chunk is cut from; raise what `read` raises."""
        return self.read(chunk.sample)

    def decode(self, sample: int, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return the sample that Lhotse makes, and its sampling rate.

        Raise a SampleError if Lhotse fails, or makes another length than planned; a ReadError if a recording that it
        seeks in is no longer the indexed one, and a SettingsError if a library is missing. A MemoryError passes, as do
        other errors of the machine.
        """
        recipe, parts = json.loads(self._recipes[sample]), self._parts_of(sample)
        # Before it is made: Lhotse takes the recipe apart.
        rate = rate_of(recipe)
        shape = (int(self._lengths[sample]), *([width_of(recipe)] if self._values == "features" else []))
        with contextlib.ExitStack() as stack:
            self._fill(recipe, parts, parted(raw, len(parts)), sample, stack)
            made = self._made(recipe, self._where(sample))
            for part in parts:
                if part.is_sought_in and not is_url(part.path):
                    self._reads.refuse_other(part.path, part.facts, part.content)
        if made.shape != shape:
            raise SampleError(
                reason="other_length",
                expected=f"an array of shape {list(shape)}, as the manifest promises",
                got=str(list(made.shape)),
                where=self._where(sample),
                remedy="Write the cuts anew from their recordings, then run loader-server index.",
            )
        return made, rate

    def _fill(
        self, recipe: Any, parts: list[MadePart], raw: list[memoryview], sample: int, stack: contextlib.ExitStack
    ) -> None:
        """Put the bytes of all parts into a recipe, in place of the files that it names."""
        left = iter(zip(parts, raw, strict=True))
        for holder in holders_in(recipe):
            if is_recording(holder):
                for source in holder["sources"]:
                    part, held = next(left)
                    source.update(self._filled(part, held, stack))
            else:
                part, held = next(left)
                form = part.dtype, part.shape
                array = unpacked(bytes(held), part.packing, form, part.chunks, self._where(sample))
                holder.update(storage_type="memory_npy", storage_path="", storage_key=_as_npy(array))

    def _filled(self, part: MadePart, held: memoryview, stack: contextlib.ExitStack) -> dict[str, Any]:
        """Return the source of a recording: its bytes, or its path if it is sought in."""
        if part.is_sought_in:
            place: Path = stack.enter_context(self._files.local(part.path, part.facts))
            return {"type": "file", "source": str(place)}
        return {"type": "memory", "source": bytes(held)}

    def _made(self, recipe: dict[str, Any], where: str) -> NDArray[np.float32]:
        """Return what Lhotse makes of a recipe that was filled; raise a SampleError if it cannot."""
        lhotse, within = _lhotse(), recipe.pop(WITHIN, None)
        try:
            with _usual_backends(lhotse):
                cut = lhotse.cut.set.deserialize_cut(recipe)
                if within is not None:
                    cut = cut.truncate(offset=within[0], duration=within[1], preserve_id=True)
                made = cut.load_audio() if self._values == "audio" else cut.load_features()
            return self._single_channel(made) if self._values == "audio" else np.array(made, np.float32, order="C")
        except Exception as error:  # Lhotse raises anything, and only that class with a text of its own
            if not is_the_samples(error):
                raise
            raise SampleError(
                reason="undecodable",
                expected="a cut that Lhotse can load",
                got=error_text(error).partition("\n")[0],
                where=where,
                remedy="Mend or remove the cut, then run loader-server index.",
            ) from error

    def _single_channel(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the chosen channel, or the average of all; raise an IndexError if there is no such channel."""
        if len(audio) > 1 and self._channel == AVERAGED:
            return audio.mean(axis=0, dtype=np.float32)  # type: ignore[no-any-return] # numpy's own types
        return np.array(audio[self._channel if len(audio) > 1 else 0], np.float32)

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> None:
        """Return None: samples are made one by one."""
        del samples, raw

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> tuple[NDArray[np.float32], int]:
        """Return a stretch of what Lhotse makes, and its rate; raise what `decode` raises."""
        made, rate = self.decode(chunk.sample, raw)
        return made[chunk.start : chunk.stop], rate

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the parts of these samples that are remote; errors of `expect_parts` pass through."""
        parts = (part for sample in samples for part in self._parts_of(sample))
        self._files.expect_parts((part.path, part.facts, part.offset, part.nbytes) for part in parts)

    def indexed_files(self) -> IndexedFiles:
        """Return the file of each part of each sample; remote ones have an empty path."""

        def file_at(number: int) -> tuple[str, int]:
            part = self._part(number)
            return "" if is_url(part.path) else self._files.where(part.path), part.bytes

        return IndexedFiles(int(self._ends[-1]) if len(self._ends) else 0, file_at)

    def _part(self, number: int) -> MadePart:
        """Return a part by its number among those of all samples."""
        sample = int(np.searchsorted(self._ends, number, side="right"))
        parts = self._parts_of(sample)
        return parts[number - int(self._ends[sample])]  # counted from the end of the sample's parts

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for a local file that changed since indexing, or a DataError for one that is gone.

        As many are looked at as fit into `time_s` seconds. Raise an OSError if one cannot be read.
        """

        def look(number: int) -> None:
            part = self._part(number)
            if not is_url(part.path):
                self._reads.refuse_other(part.path, part.facts, part.content)

        look_at_some(int(self._ends[-1]) if len(self._ends) else 0, look, time_s)

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others: its recipe, and its parts as indexed."""
        return f"{self._recipes[sample]} of {self._parts[sample]}"


def _as_npy(array: NDArray[Any]) -> bytes:
    """Return the bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@functools.cache
def _lhotse() -> Any:
    """Return Lhotse, with PyTorch kept to one thread; raise a SettingsError if it is missing."""
    lhotse = library("lhotse", extra="lhotse", use="which makes cuts that are mixed or perturbed")
    for module in ("lhotse.audio.backend", "lhotse.audio.resampling_backend"):
        library(module, extra="lhotse", use="of version 1.33 or later")
    # A worker has a core; and how many threads share a sum may change its last bits.
    library("torch", extra="lhotse", use="by which Lhotse computes").set_num_threads(1)
    return lhotse


@contextlib.contextmanager
def _usual_backends(lhotse: Any) -> Iterator[None]:
    """Have Lhotse decode by libsndfile and resample by PyTorch within, whatever is installed or set in the environment.

    What was set before is set again afterwards.
    """
    audio, resampling = lhotse.audio.backend, lhotse.audio.resampling_backend
    before = audio.get_current_audio_backend(), resampling.get_current_resampling_backend()
    audio.set_current_audio_backend("LibsndfileBackend")
    resampling.set_current_resampling_backend("default")
    try:
        yield
    finally:
        audio.set_current_audio_backend(before[0])
        resampling.set_current_resampling_backend(before[1])
