"""Values of an HDF5 dataset in chunks, read from their places in the file without the library.

Rules: chunks are whole rows, plain or compressed by deflate ("gzip"); anything else is left to the library, and so are
chunks that turn out to be damaged, because it reports best what is wrong. Any number of threads may read. A chunk is
unpacked whole, which tests its checksum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shared.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable

    import h5py

__all__ = ["ChunkedValues"]

#: HDF5's number for the deflate filter.
_DEFLATE = 1
#: In place of a chunk's place in the file: not looked up yet, and left to the library.
_UNKNOWN, _OTHER = -1, -2


class ChunkedValues:
    """One dataset in chunks; `read` returns bytes of its file by offset and number."""

    def __init__(self, dataset: h5py.Dataset, read: Callable[[int, int], bytes]) -> None:
        self._dataset, self._read = dataset, read
        self._rows = int(dataset.chunks[0])
        self._row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
        self._deflated = bool(_filters(dataset))
        if self._deflated:
            # Python's own zlib takes 370 µs for a chunk of 80 kB, this one 180.
            self._zlib = library("isal.isal_zlib", extra="hdf5", use="which unpacks compressed chunks of HDF5")
        chunks = -(-dataset.shape[0] // self._rows)
        self._places, self._sizes = np.full(chunks, _UNKNOWN, np.int64), np.zeros(chunks, np.int64)

    @staticmethod
    def can_read(dataset: h5py.Dataset) -> bool:
        """Return whether the dataset's chunks are whole rows, plain or compressed by deflate.

        The caller has made sure that its values are plain numbers.
        """
        whole_rows = dataset.chunks is not None and dataset.chunks[1:] == dataset.shape[1:]
        return whole_rows and _filters(dataset) in ([], [_DEFLATE]) and hasattr(dataset.id, "get_chunk_info_by_coord")

    def read(self, begin: int, end: int) -> bytes | None:
        """Return the bytes of the rows from `begin` to before `end`; None if the library has to read them."""
        parts = []
        for chunk in range(begin // self._rows, -(-end // self._rows)):
            first = chunk * self._rows
            part = self._part(chunk, max(begin - first, 0), min(end - first, self._rows))
            if part is None:
                return None
            parts.append(part)
        return b"".join(parts)

    def _part(self, chunk: int, start: int, stop: int) -> bytes | memoryview | None:
        """Return the bytes of some rows of a chunk; None if the library has to read them."""
        place, size = self._place(chunk)
        begin, end = start * self._row_bytes, stop * self._row_bytes
        if place == _OTHER:
            return None
        if not self._deflated:
            return self._read(place + begin, end - begin)
        try:
            found = self._zlib.decompress(self._read(place, size), bufsize=self._rows * self._row_bytes)
        # The library reads the chunk again and reports what is wrong with it.
        except self._zlib.error:
            return None
        return memoryview(found)[begin:end] if len(found) >= end else None

    def _place(self, chunk: int) -> tuple[int, int]:
        """Return where a chunk begins in the file, or _OTHER, and how many bytes it has there."""
        if self._places[chunk] == _UNKNOWN:
            self._find(chunk)
        return int(self._places[chunk]), int(self._sizes[chunk])

    def _find(self, chunk: int) -> None:
        """Look up a chunk's place and size, and note both."""
        corner = (chunk * self._rows, *[0] * (len(self._dataset.shape) - 1))
        found = self._dataset.id.get_chunk_info_by_coord(corner)
        whole = self._deflated or found.size == self._rows * self._row_bytes
        is_there = found.byte_offset is not None and whole and not found.filter_mask  # of skipped filters
        # The size first: another thread takes the place for known as soon as it stands there, and reads both without a
        # lock.
        self._sizes[chunk] = found.size
        self._places[chunk] = found.byte_offset if is_there else _OTHER


def _filters(dataset: h5py.Dataset) -> list[int]:
    """Return the numbers of the filters that the dataset's chunks went through."""
    settings = dataset.id.get_create_plist()
    return [int(settings.get_filter(number)[0]) for number in range(settings.get_nfilters())]
