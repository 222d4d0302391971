"""What a source is, and which kinds there are: the door for further formats.

Rules: a sample is a number from 0 to `samples - 1`; reading is input and output only, decoding is CPU only, so that
threads can read ahead. A kind names its settings, its fields, how its samples are found for the index, and how it is
opened from one. A source that can write all rows of a batch at once says so by having `gather`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from loader_server.sources import manifest, synthetic
from loader_server.sources.index.probe import RAW_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.index.folder import Index
    from loader_server.sources.index.probe import Chunk
    from shared.wire.layout import Field

__all__ = ["SOURCES", "Gathering", "Identifying", "Source", "SourceKind", "Survey"]


class Source(Protocol):
    """Random access to samples by number; any thread may read."""

    @property
    def samples(self) -> int:
        """How many there are."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """The numeric values of a raw sample."""

    def read(self, sample: int) -> bytes:
        """The bytes of a sample; OSError where the disk fails, ReadError where the file is not the indexed one."""

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        """The raw sample; SampleError where whole bytes cannot be decoded."""

    def name(self, sample: int) -> str:
        """What people call the sample."""

    def close(self) -> None:
        """Give back what is open."""


@runtime_checkable
class Identifying(Protocol):
    """A source that knows its samples by more than their numbers."""

    def identity(self, sample: int) -> str:
        """What stays the same for as long as the sample does, whatever its number, and is another text once somebody
        mended it; for a file its path, size and time of change. For people too, and compared as it is.
        """


@runtime_checkable
class Gathering(Protocol):
    """A source whose samples need neither reading nor decoding one by one."""

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        """Write the fields of these samples, one a row, their lengths, and zeros behind them: the bytes that decoding
        each would give. `out` has as many rows as there are samples.
        """


class Survey(Protocol):
    """The samples of a source before they are indexed."""

    @property
    def total(self) -> int:
        """How many rows there are, good or bad."""

    @property
    def origin(self) -> list[dict[str, Any]]:
        """What the index is made from, for telling later whether it still is that."""

    @property
    def others(self) -> tuple[str, ...]:
        """Columns beside audio and transcript."""

    @property
    def has_text(self) -> bool:
        """Whether there are transcripts."""

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """The rows in order, in pieces that a process can probe on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """One kind of source; its index is made by `survey`, or from `lengths` where these are known without looking."""

    settings: type[Any]
    fields: Callable[[Any], tuple[Field, ...]]
    open: Callable[[Index, Path], Source]
    survey: Callable[[Any, Path], Survey] | None = None
    lengths: Callable[[Any], Iterator[dict[str, NDArray[np.int64]]]] | None = None


def _audio(_settings: manifest.ManifestSettings) -> tuple[Field, ...]:
    return RAW_FIELDS


SOURCES: Mapping[str, SourceKind] = {
    "manifest": SourceKind(
        settings=manifest.ManifestSettings, fields=_audio, survey=manifest.survey, open=manifest.open_manifest
    ),
    "synthetic": SourceKind(
        settings=synthetic.SyntheticSettings,
        fields=synthetic.fields_of,
        lengths=synthetic.lengths_of,
        open=synthetic.open_synthetic,
    ),
}
