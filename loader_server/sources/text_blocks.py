"""The texts of all samples, block by block: from an index's column, or read again from a source that decodes many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.sources.files.retried_reads import read_patiently

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loader_server.sources.source import Source

__all__ = ["texts_of_column", "texts_read"]

#: Texts in a block, because a data set may have more than fit into memory.
_TEXTS = 4096


def texts_of_column(column: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the strings of an index's column in order, as lists of up to 4096."""
    for start in range(0, len(column), _TEXTS):
        yield [column[row] for row in range(start, min(start + _TEXTS, len(column)))]


def texts_read(source: Source, key: str) -> Iterator[Sequence[str]]:
    """Yield the texts of a source that decodes many samples at once, block by block.

    Raise a ReadError if the disk keeps failing; other errors of `read`, and those of `decode_all`, pass.
    """
    for start in range(0, source.samples, _TEXTS):
        samples = range(start, min(start + _TEXTS, source.samples))
        columns = source.decode_all(samples, read_patiently(source.read, samples, bool))
        assert columns is not None, "a source of texts decodes many at once"
        texts = columns[key]
        assert isinstance(texts, list), "a column of texts is a list"
        yield texts
