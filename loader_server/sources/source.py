"""What a source is, and which kinds there are: the door for further formats.

Rules: a sample is a number from 0 to `samples - 1`; reading is input and output only, decoding is CPU only, so that
threads can read ahead. A kind names its settings, its fields, how its samples are found for the index, and how it is
opened from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from loader_server.sources import manifest
from loader_server.sources.probe import RAW_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from loader_server.sources.index_folder import Index
    from loader_server.sources.probe import Chunk
    from shared.layout import Field

__all__ = ["SOURCES", "Source", "SourceKind", "Survey"]


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
    """One kind of source."""

    settings: type[Any]
    fields: tuple[Field, ...]
    survey: Callable[[Any, Path], Survey]
    open: Callable[[Index, Path], Source]


SOURCES: Mapping[str, SourceKind] = {
    "manifest": SourceKind(
        settings=manifest.ManifestSettings, fields=RAW_FIELDS, survey=manifest.survey, open=manifest.open_manifest
    )
}
