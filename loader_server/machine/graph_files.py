"""Writing the files of a graph that a trainer sent: the graph, and the index of its first epoch.

Rules: each file is there whole or not at all; the graph is written last, so a graph that is there has its index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.stores.own_files import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_graph", "write_synced"]


def write_synced(path: Path, content: bytes) -> None:
    """Write a file atomically: it is there whole, or not at all; create the folders above it.

    Raise an OSError if a folder or the file cannot be written; a former file of this name then stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def write_graph(graph: Path, content: bytes, index: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a graph's index by their names, `meta.json` last, and then the graph.

    Each file is written atomically. The names must not lead out of the index's folder. Raise an OSError if a file
    cannot be written: those before it stay, and the graph is not written.
    """
    # `meta.json` names all other files, and a graph counts only once it is there, so after a cut between nothing does.
    for name in sorted(files, key=lambda name: (name == "meta.json", name)):
        write_synced(index / name, files[name])
    write_synced(graph, content)
