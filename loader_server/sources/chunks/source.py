"""The chunks of another source's recordings, as a source of their own.

Rules: the index stays that of the recordings; only the table of chunks is kept in memory, and columns are computed when
they are read. Keys that are as long as the cut key in every recording are cut along with it. Any other key with a
length belongs to the recording as a whole: its value goes to the last chunk, and is empty in the others. Numbers and
names are in every chunk. A source that can read less than a recording does so (`read_chunks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.chunks.cutting import rate_keys
from loader_server.sources.source import SEGMENT_SAMPLES, Chunk, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.chunks.cutting import ChunkRule
    from loader_server.sources.files.presence import IndexedFiles
    from shared.wire.batch_layout import Field

__all__ = ["ChunkedSource"]


class _Column:
    """A column of chunks that is computed when it is read, one entry or a range of them."""

    def __init__(self, made: Callable[[NDArray[np.int64]], Sequence[Any] | NDArray[Any]], size: int) -> None:
        self._made = made
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return self._made(np.arange(*at.indices(self._size)))
        return self._made(np.array([at]))[0]


class ChunkedSource(Source):
    """Source of the chunks that a rule cuts from an open source.

    Raise a SettingsError if the rule does not fit the source, as `ChunkRule.table` does; errors of its `fields` pass.
    """

    def __init__(self, recordings: Source, rule: ChunkRule, where: str) -> None:
        super().__init__(recordings.settings, recordings.base)
        self._recordings = recordings
        self._key = rule.key
        #: Lengths of the recordings, before they are cut.
        self._of_recordings = lengths = recordings.lengths
        self._table = rule.table(lengths, recordings.fields, where)
        #: Keys that are cut, and keys with a length whose values belong to recordings as a whole.
        self._cut = rule.alike(lengths)
        self._of_whole = tuple(lengths.keys() - set(self._cut) - rate_keys(lengths))

    # --- what there is ---

    @property
    def uncut(self) -> Source:
        """Return the source below, whose samples are whole recordings."""
        return self._recordings

    def indexed_samples(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each chunk the recording that it was cut from; numbers out of range are not noticed."""
        return self._table.recordings_of(samples)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of the recordings.

        Errors of their source pass.
        """
        return self._recordings.fields

    @property
    def samples(self) -> int:
        """Return the number of chunks of all recordings."""
        return len(self._table)

    @property
    def lengths(self) -> dict[str, Any]:
        """Return the chunks' own lengths by key, as columns that are computed when they are read."""
        return {key: _Column(self._lengths_of(key), len(self._table)) for key in self._of_recordings}

    def _lengths_of(self, key: str) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the function that computes the lengths of chunks under a key.

        That is the chunk's own length for a cut key; for another length that of the recording in the last chunk, and 0
        in all before; and the recording's value for a rate.
        """
        own = self._of_recordings[key]

        def lengths(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
            at = self._table.extents(chunks)
            if key in self._cut:
                return at.stops - at.starts
            whole = np.asarray(own[at.recordings], np.int64)
            return np.where(at.last, whole, 0) if key in self._of_whole else whole

        return lengths

    @property
    def columns(self) -> Mapping[str, Any]:
        """Return the columns of each chunk's recording by name, computed when they are read; errors of theirs pass."""
        return {
            name: _Column(self._strings_of(column), len(self._table))
            for name, column in self._recordings.columns.items()
        }

    def _strings_of(self, column: Any) -> Callable[[NDArray[np.int64]], Sequence[Any]]:
        return lambda chunks: [column[recording] for recording in self._table.recordings_of(chunks).tolist()]

    @property
    def segments(self) -> NDArray[np.int64]:
        """Return where segments begin, none of which cuts a recording in two, and the number of chunks."""
        return self._table.segments(self._recordings.segments, SEGMENT_SAMPLES)

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the first chunk of each part of the recordings."""
        return tuple(self._table.firsts[list(self._recordings.parts)].tolist())

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return for each chunk from `start` to before `stop` whether it is the first of its recording."""
        return self._table.begins(start, stop)

    # --- reading ---

    def _chunk(self, sample: int) -> Chunk:
        """Return the stretch of a recording that a sample is; raise an IndexError for an unknown number."""
        at = self._table.extents(np.array([self.checked(sample)]))
        return Chunk(int(at.recordings[0]), int(at.starts[0]), int(at.stops[0]), self._cut)

    def read(self, samples: Sequence[int]) -> Iterable[bytes]:
        """Return what decoding each of these chunks takes: whole recordings, unless the source can read less.

        Raise an IndexError at once if a number is out of range; reading raises what the source's `read_chunks` raises.
        """
        return self._recordings.read_chunks([self._chunk(sample) for sample in samples])

    def indexed_files(self) -> IndexedFiles:
        """Return the files of the source below, as its `indexed_files` does: chunks are read from the same ones."""
        return self._recordings.indexed_files()

    def expect(self, samples: NDArray[np.int64]) -> None:
        """Announce to the source of the recordings which of them will be read soon, each once.

        Errors of its `expect` pass.
        """
        self._recordings.expect(np.unique(self._table.recordings_of(samples)))

    def looks_ahead(self) -> bool:
        """Return whether the source of the recordings looks ahead.

        Its errors pass, such as a ReadError if the folder of its cache cannot be used, or a MachineError.
        """
        return self._recordings.looks_ahead()

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the chunk's values; values of the recording as a whole are empty in all but its last chunk.

        Raise an IndexError if the number is out of range, and what the source's `decode_chunk` raises, such as a
        SampleError.
        """
        chunk = self._chunk(sample)
        made = self._recordings.decode_chunk(chunk, raw)
        # Unless the next chunk is the first of the next recording, this is not the recording's last one.
        if sample + 1 < self._table.firsts[chunk.sample + 1]:
            made |= {key: made[key][:0] for key in self._of_whole if key in made}
        return made

    # --- for people ---

    def name(self, sample: int) -> str:
        """Return the recording's name, with the range of steps unless the chunk is all of it.

        Raise an IndexError if the number is out of range; errors of the recordings' `name` pass.
        """
        return self._with_stretch(sample, self._recordings.name)

    def _with_stretch(self, sample: int, text_of: Callable[[int], str]) -> str:
        """Return a recording's text, with the range of steps unless the chunk is the whole recording.

        Raise an IndexError if the number is out of range; errors of `text_of` pass.
        """
        chunk = self._chunk(sample)
        is_whole = chunk.stop - chunk.start == self._of_recordings[self._key][chunk.sample]
        return text_of(chunk.sample) + ("" if is_whole else f" [{chunk.start}:{chunk.stop}]")

    def place(self, sample: int) -> tuple[str, int]:
        """Return the recording's place; raise an IndexError if the number is out of range. Its source's errors pass."""
        return self._recordings.place(self._chunk(sample).sample)

    def identity(self, sample: int) -> str:
        """Return the recording's identity, with the range of steps unless the chunk is all of it.

        Raise an IndexError if the number is out of range; errors of the recordings' `identity` pass.
        """
        return self._with_stretch(sample, self._recordings.identity)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules whose code shapes a sample's bytes: those of the source below, as this one only cuts."""
        return self._recordings.modules

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the library versions that shape a sample's bytes, which are those of the recordings' source."""
        return self._recordings.versions

    def close(self) -> None:
        """Close the source of the recordings, whose files open again when they are next read; its errors pass."""
        self._recordings.close()
        super().close()
