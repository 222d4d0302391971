"""The files of a graph that a trainer sent, as bytes for other machines: the graph, and the index of its first epoch.

Rules: a reader survives any bytes, and writes only into the folders that it is given; the graph comes last, and is
there whole or not at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgpack

from loader_server.sources.index.folder import read_meta
from shared.errors import DataError
from shared.system.own_files import replacing

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["pack", "unpack", "write_synced"]

_META = "meta.json"
#: A file of the index, or one in its folder of columns.
_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")


def write_synced(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def pack(graph: Path, index: Path) -> bytes:
    """Pack both into one piece."""
    columns = index / read_meta(index).folder
    files = [*sorted(file for file in columns.iterdir() if file.is_file()), index / _META]
    named = [[file.relative_to(index).as_posix(), file.read_bytes()] for file in files]
    packed: bytes = msgpack.packb([graph.read_bytes(), named])
    return packed


def unpack(content: bytes, graph: Path, index: Path) -> None:
    """Write what `pack` gave."""
    try:
        found, named = msgpack.unpackb(content)
        files = {str(name): bytes(one) for name, one in named}
        if not all(map(_NAME.fullmatch, files)) or list(files)[-1] != _META:
            raise ValueError
    except Exception as error:
        raise DataError(
            expected="a graph and its index", got=type(error).__name__, where="coordinator", remedy="Report this."
        ) from None
    for name, one in files.items():
        write_synced(index / name, one)
    write_synced(graph, bytes(found))
