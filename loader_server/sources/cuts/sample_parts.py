"""The parts of a sample by key, read together: its recording or what Lhotse makes, and its arrays.

Rules: a sample of a single part is read as this part; the bytes of several are joined, and parted when they are
decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from loader_server.sources.batch_columns import joined_parts, parted
from loader_server.sources.files.presence import IndexedFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PartReader", "SampleParts"]


class PartReader(Protocol):
    """An object that reads one part of each sample."""

    def read(self, sample: int) -> bytes:
        """Return the bytes of the part."""

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the parts of these samples that are remote."""

    def indexed_files(self) -> IndexedFiles:
        """Return the files that the parts of all samples lie in."""

    def look_for_changes(self, time_s: float) -> None:
        """Raise an error for local files that have changed since indexing, looking for `time_s` at most."""

    def identity(self, sample: int) -> str:
        """Return what tells the part's bytes from others."""


class SampleParts:
    """The readers of the parts of a sample, by key, in the order in which their bytes are joined."""

    def __init__(self, readers: Mapping[str, PartReader]) -> None:
        self._readers = dict(readers)
        self.keys = tuple(readers)

    def read(self, sample: int) -> bytes:
        """Return the bytes of all parts of a sample, joined if there are several; errors of the readers pass."""
        parts = [reader.read(sample) for reader in self._readers.values()]
        return parts[0] if len(parts) == 1 else joined_parts(parts)

    def parted(self, raw: bytes) -> dict[str, bytes]:
        """Return the bytes of each part by its key; raise a ValueError if they are not those of all parts."""
        if len(self.keys) == 1:
            return {self.keys[0]: raw}
        return dict(zip(self.keys, map(bytes, parted(raw, len(self.keys))), strict=True))

    def expect(self, samples: Sequence[int]) -> None:
        """Start fetching the parts of these samples that are remote; errors of the readers pass."""
        for reader in self._readers.values():
            reader.expect(samples)

    def indexed_files(self) -> IndexedFiles:
        """Return the files of all parts, part after part; remote ones have an empty path."""
        listed = [reader.indexed_files() for reader in self._readers.values()]

        def file_at(number: int) -> tuple[str, int]:
            for files in listed:
                if number < files.count:
                    return files.file_at(number)
                number -= files.count
            raise IndexError(number)

        return IndexedFiles(sum(files.count for files in listed), file_at)

    def look_for_changes(self, time_s: float) -> None:
        """Raise an error for local files that have changed since indexing, as the readers do."""
        for reader in self._readers.values():
            reader.look_for_changes(time_s / len(self._readers))

    def identity(self, sample: int) -> str:
        """Return what tells the sample's bytes from others; errors of the readers pass."""
        return "; ".join(reader.identity(sample) for reader in self._readers.values())
