"""Base class of sources whose samples are recordings: whole samples and stretches, read and decoded alike.

Rules: `said_of` gives everything that a sample holds besides its audio, and values that are cut along with the audio
are cut here. If something other than the audio is cut, whole samples are read.
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
    """Source whose samples are recordings and what is said in them."""

    _recordings: Recordings

    def look_for_changes(self, time_s: float) -> None:
        """Refuse recordings that changed since indexing, as many as can be checked in `time_s`."""
        self._recordings.look_for_changes(time_s)

    def indexed_files(self) -> IndexedFiles:
        """Return the files of the recordings."""
        return self._recordings.indexed_files()

    def said_of(self, sample: int) -> dict[str, Any]:
        """Return everything that a sample holds besides its audio; formats define it."""
        raise NotImplementedError

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return the sample's audio, its rate, and what `said_of` adds."""
        audio, rate = self._recordings.decode(sample, raw)
        return _audio_first(audio, rate, self.said_of(sample))

    def decode_all(self, samples: Sequence[int], raw: Sequence[bytes]) -> Columns | None:
        """Return the decoded samples as columns.

        Return None, so that the caller decodes one by one, if that would take long (see `Recordings.decode_all`) or if
        samples hold different keys.
        """
        found = self._recordings.decode_all(samples, raw)
        said = [self.said_of(sample) for sample in samples]
        if found is None or any(one.keys() != said[0].keys() for one in said):
            return None
        audio, rates = found
        return _audio_first(audio, rates, {key: [one[key] for one in said] for key in said[0]})

    def read_chunks(self, chunks: Sequence[Chunk]) -> Iterable[bytes]:
        """Return the bytes of each stretch; empty bytes where decoding has to seek in the file.

        Read whole samples if any chunk cuts something other than the audio.
        """
        if not all(_AUDIO in chunk.keys for chunk in chunks):
            return super().read_chunks(chunks)
        return map(self._recordings.read_chunk, chunks)

    def decode_chunk(self, chunk: Chunk, raw: bytes) -> dict[str, Any]:
        """Return the stretch of the audio, with values that are cut along with it cut alike."""
        if _AUDIO not in chunk.keys:
            return super().decode_chunk(chunk, raw)
        audio, rate = self._recordings.decode_chunk(chunk, raw)
        said = self.said_of(chunk.sample)
        said |= {key: said[key][chunk.start : chunk.stop] for key in chunk.keys if key != _AUDIO}
        return _audio_first(audio, rate, said)


def _audio_first(audio: Any, rate: Any, said: dict[str, Any]) -> dict[str, Any]:
    """Return audio and rate first, where measured fields expect them, then the sample's other values."""
    recorded = {_AUDIO: audio, f"{_AUDIO}_rate": rate}
    # The first operand sets the order of keys, the last one wins where `said` has a key of the same name.
    return recorded | said | recorded
