"""How the files of a graph that a trainer sent are written: the graph, and the index of its first epoch.

Rules: each is there whole or not at all; the graph comes last, so where it is, its index is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.system.own_files import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["META", "write_graph", "write_synced"]

#: The file of an index that names all others.
META = "meta.json"


def write_synced(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def write_graph(graph: Path, content: bytes, index: Path, files: Mapping[str, bytes]) -> None:
    """Write a graph and the files of its index, whose names do not lead out of the index's folder."""
    for name in sorted(files, key=lambda name: (name == META, name)):
        write_synced(index / name, files[name])
    write_synced(graph, content)
