"""What all sources of recordings have in common: a stretch of a recording is read and decoded without the rest.

Rules: `said_of` is all that a sample holds besides its audio; the parts of it that are cut along with the audio are cut
here. If something other than the audio is cut, whole samples are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loader_server.sources.audio.recordings import Recordings
    from loader_server.sources.batch_columns import Columns
    from loader_server.sources.files.presence import IndexedFiles
    from loader_server.sources.source import Chunk

__all__ = ["RecordedSource"]

_AUDIO = "audio"


class RecordedSource(Source):
    """A source whose samples are recordings, and what is said in them."""

    _recordings: Recordings

    def look_for_changes(self, time_s: float) -> None:
        """Look at the recordings."""
        self._recordings.look_for_changes(time_s)

    def indexed_files(self) -> IndexedFiles:
        """Return the files of the recordings."""
        return self._recordings.indexed_files()

    def said_of(self, sample: int) -> dict[str, Any]:
        """What a sample holds besides audio."""
        raise NotImplementedError

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Audio with its rate, and what is said in it."""
        audio, rate = self._recordings.decode(sample, raw)
        return _audio_first(audio, rate, self.said_of(sample))

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """The same of all these, unless that takes long."""
        found = self._recordings.decode_all(samples, raw)
        said = [self.said_of(sample) for sample in samples]
        if found is None or any(one.keys() != said[0].keys() for one in said):
            return None
        audio, rates = found
        return _audio_first(audio, rates, {key: [one[key] for one in said] for key in said[0]})

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """The bytes of each stretch; empty if decoding has to seek."""
        if not all(_AUDIO in chunk.keys for chunk in chunks):
            return super().read_chunks(chunks)
        return map(self._recordings.read_chunk, chunks)

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """The stretch of the audio, and of values that are cut along with it."""
        if _AUDIO not in chunk.keys:
            return super().decode_chunk(chunk, raw)
        audio, rate = self._recordings.decode_chunk(chunk, raw)
        said = self.said_of(chunk.sample)
        said |= {key: said[key][chunk.start : chunk.stop] for key in chunk.keys if key != _AUDIO}
        return _audio_first(audio, rate, said)


def _audio_first(audio: Any, rate: Any, said: dict[str, Any]) -> dict[str, Any]:
    """Put audio and rate first, where measured fields expect them; nothing else that is said replaces them."""
    recorded = {_AUDIO: audio, f"{_AUDIO}_rate": rate}
    return recorded | said | recorded
