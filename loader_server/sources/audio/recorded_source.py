"""Base classes of sources whose samples are recordings: whole samples and stretches, read and decoded alike.

Rules: `values_beside_audio` gives everything that a sample holds besides its audio, and values that are cut along with
the audio are cut here. If something other than the audio is cut, whole samples are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from loader_server.sources.audio.audio_files import audio_versions
from loader_server.sources.audio.recordings import Recordings
from loader_server.sources.files.same_files import refuse_other_list
from loader_server.sources.remote.urls import is_url, joined
from loader_server.sources.source import Source
from loader_server.sources.text_blocks import texts_of_column
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.files.presence import IndexedFiles
    from loader_server.sources.source import Chunk, Indexed

__all__ = ["ListedSource", "RecordedSource"]

_AUDIO = "audio"


class RecordedSource(Source):
    """Source whose samples are recordings with texts."""

    _recordings: Recordings

    def look_for_changes(self, time_s: float) -> None:
        """Raise a ReadError for local recordings that are gone or changed, looking at as many as fit into `time_s`."""
        self._recordings.look_for_changes(time_s)

    def indexed_files(self) -> IndexedFiles:
        """Return, for each sample, the path and the size of its recording's file; a remote one has an empty path."""
        return self._recordings.indexed_files()

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Start fetching the recordings of these samples, if they are remote; fetches that fail are dropped."""
        if self.files.are_remote:
            self._recordings.expect(samples.tolist())

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """Return the bytes of each sample's recording or stretch, read when they are asked for.

        Raise an IndexError for a number that is no sample; reading raises a ReadError if a file is not the indexed one
        or a remote one cannot be fetched, and an OSError if it cannot be opened or read. SettingsError and MachineError
        of `read` pass through.
        """
        return map(self._recordings.read, [self.checked(sample) for sample in samples])

    def values_beside_audio(self, sample: int) -> dict[str, Any]:
        """Return everything that a sample holds besides its audio.

        Raise NotImplementedError here: formats define it.
        """
        raise NotImplementedError

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the sample's audio, its rate, and what `values_beside_audio` adds.

        Raise a SampleError if the audio cannot be decoded, is too large or not as long as indexed. Other errors of
        `Recordings.decode` pass, such as a ReadError or OSError if decoding seeks in the file, and a SettingsError for
        MP3.
        """
        audio, rate = self._recordings.decode(sample, raw)
        return _audio_first(audio, rate, self.values_beside_audio(sample))

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return the decoded samples, of which there is at least one, as columns.

        Return None, so that the caller decodes one by one, if that would take long (see `Recordings.decode_all`) or if
        samples hold different keys. Raise what `decode` raises, for any of them.
        """
        decoded = self._recordings.decode_all(samples, raw)
        rows = [self.values_beside_audio(sample) for sample in samples]
        # A column has a value for each sample, so a key that only some of them hold would be lost.
        if decoded is None or any(row.keys() != rows[0].keys() for row in rows):
            return None
        return _audio_first(*decoded, {key: [row[key] for row in rows] for key in rows[0]})

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """Return the bytes of each stretch; empty bytes where decoding has to seek in the file.

        Read whole samples, as `read` does, if any chunk does not cut the audio. Reading raises a ReadError if a file is
        not the indexed one or a remote one cannot be fetched, and an OSError if it cannot be opened or read.
        SettingsError and MachineError of `read_chunk` pass through.
        """
        if not all(_AUDIO in chunk.keys for chunk in chunks):
            return super().read_chunks(chunks)
        return map(self._recordings.read_chunk, chunks)

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """Return the stretch of the audio, with values that are cut along with it cut alike.

        If the audio is not cut, it is returned whole. Raise what `decode` raises.
        """
        if _AUDIO not in chunk.keys:
            return super().decode_chunk(chunk, raw)
        audio, rate = self._recordings.decode_chunk(chunk, raw)
        values = self.values_beside_audio(chunk.sample)
        values |= {key: values[key][chunk.start : chunk.stop] for key in chunk.keys if key != _AUDIO}
        return _audio_first(audio, rate, values)

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the audio libraries by name.

        Raise importlib's PackageNotFoundError if soundfile was not installed as a package.
        """
        return audio_versions()


class ListedSource(RecordedSource):
    """Source of recordings that lists name by key and path, as the speech toolkits' data folders do.

    The index has the strings `key`, `path` and those of `beside_audio`, so that the lists are not read again. Relative
    paths start from the setting `root`.
    """

    #: Copies of a data set differ in the times of change of their files.
    local_columns = frozenset(("mtime_ns",))
    content_columns = frozenset(("content",))
    #: What a list is called in messages.
    list_kind: ClassVar[str]
    #: Columns of strings that a sample holds besides its audio; an index may lack some.
    beside_audio: ClassVar[tuple[str, ...]]

    def open(self, indexed: Indexed) -> None:
        """Take the index; raise a DataError if a list is gone, cannot be opened or has changed since it was made.

        Raise a ReadError if its store cannot be asked or it cannot be fetched, a SettingsError if the store's library
        is missing, and an OSError if the disk fails.
        """
        for facts in indexed.origin:
            refuse_other_list(facts, self.files, self.list_kind, indexed.place)
        self.indexed = indexed
        self._strings = indexed.strings
        self._open_recordings(indexed)
        self.files.note_remote(indexed.samples, self._path)

    def _open_recordings(self, indexed: Indexed) -> None:
        """Make what reads and decodes recordings; sources whose samples are made of other things override it."""
        # Messages about a file name the line that lists it, as sources without keys name a sample.
        line_of = super().name
        self._recordings = Recordings(indexed.numbers, self._path, line_of, self.files, self.of_job.largest_sample)

    def texts(self, key: str) -> Iterator[Sequence[str]] | None:
        """Return the transcripts, block by block, out of the index.

        Return None for any key but "text", or if there are none.
        """
        return texts_of_column(self._strings[key]) if key == "text" and key in self._strings else None

    def _below_root(self, path: str) -> str:
        """Return a path from a list, relative to the job file, or its URL."""
        return joined(self.settings.root, path)

    def _from_base(self, path: str) -> str:
        """Return a path from a list on this machine, or its URL."""
        below = self._below_root(path)
        return below if is_url(below) else str(self.base / below)

    def _path(self, sample: int) -> str:
        """Return the sample's file on this machine, or its URL."""
        return self._from_base(self._strings["path"][sample])

    def values_beside_audio(self, sample: int) -> dict[str, Any]:
        """Return the strings of `beside_audio` that the index has for a sample, by name."""
        return {name: self._strings[name][sample] for name in self.beside_audio if name in self._strings}

    def name(self, sample: int) -> str:
        """Return the key that the list has for a sample; raise an IndexError if the number is out of range."""
        return str(self._strings["key"][self.checked(sample)])

    def identity(self, sample: int) -> str:
        """Return the key, the file as indexed, the stretch or place in it, and a hash of the strings beside it.

        Raise an IndexError if the number is out of range.
        """
        file = f"{self._strings['path'][sample]}, {self._recordings.identity(sample)}"
        return f"{self.name(sample)}, {file}, row {fingerprint(*self.values_beside_audio(sample).values())[:8]}"


def _audio_first(audio: Any, rate: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return audio and rate first, where measured fields expect them, then the sample's other values."""
    recorded = {_AUDIO: audio, f"{_AUDIO}_rate": rate}
    # The first operand sets the order of keys, the last one wins where `values` has a key of the same name.
    return recorded | values | recorded
