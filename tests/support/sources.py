"""Sources for tests: named and set up as in a job file, indexed, opened, read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.index.folder import open_index
from loader_server.index.make import IndexReport, IndexRequest, make_index
from loader_server.sources.registry import SourceSpec, dotted_name, source_class
from shared.settings.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.source import Source

__all__ = ["decoded", "index_source", "open_source", "raw_of", "spec_of"]


def spec_of(name: str, base: Path, **table: Any) -> SourceSpec:
    """A source as a stream's table names it, its lists and numbers as TOML gives them."""
    settings = read_table(source_class(name, "a test").Settings, table, "a test")
    return SourceSpec(name=name, dotted=dotted_name(name, "a test"), settings=settings, base=base)


def index_source(spec: SourceSpec, folder: Path | None = None, **how: Any) -> IndexReport:
    """Make its index, beside the data by default."""
    own = {"folder": folder or spec.base / "index", "processes": 1}
    return make_index(IndexRequest(spec=spec, source=spec.make(), **{**own, **how}))


def open_source(spec: SourceSpec, folder: Path | None = None) -> Source:
    """Open it from its index."""
    source = spec.make()
    source.open(open_index(folder or spec.base / "index").indexed)
    return source


def raw_of(source: Source, sample: int) -> bytes:
    """The bytes of one sample."""
    (raw,) = source.read([sample])
    return raw


def decoded(source: Source, sample: int) -> dict[str, Any]:
    """One raw sample."""
    return source.decode(sample, raw_of(source, sample))
