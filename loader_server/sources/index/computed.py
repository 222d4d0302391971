"""The index of a source that knows every sample's length without looking at any.

Rules: the columns are `length_<key>`, written piece by piece, so memory does not grow with the number of samples.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loader_server.sources.index.columns import ColumnWriter
from loader_server.sources.index.folder import FORMAT, Meta, columns_fingerprint
from loader_server.sources.source import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["computed_columns"]


def computed_columns(source: str, settings: Any, made: Path, progress: Callable[[int, int], None]) -> Meta:  # noqa: ANN401 - each kind has its own
    """Write the columns into `made`; what is to be said of them."""
    names = [f"length_{field.key}" for field in SOURCES[source].fields(settings)]
    columns = {name: ColumnWriter(made / f"{name}.npy", "int64") for name in names}
    try:
        samples = _write(source, settings, columns, progress)
    finally:
        for column in columns.values():
            column.close()
    said = asdict(settings)
    return Meta(
        format=FORMAT,
        source=source,
        settings=said,
        origin=[],
        folder=made.name,
        samples=samples,
        numbers=names,
        strings=[],
        others=[],
        measured=[],
        fields=[],
        recipe="",
        rate=0,
        bad={},
        fingerprint=columns_fingerprint(made, f"{FORMAT} {source} {sorted(said.items())}"),
    )


def _write(
    source: str,
    settings: Any,  # noqa: ANN401 - each kind has its own
    columns: dict[str, ColumnWriter],
    progress: Callable[[int, int], None],
) -> int:
    lengths, samples = SOURCES[source].lengths, 0
    assert lengths is not None
    for piece in lengths(settings):
        for key, values in piece.items():
            columns[f"length_{key}"].append(values)
        samples += len(next(iter(piece.values())))
        progress(samples, settings.samples)
    return samples
