"""Samples at random places of a remote file: through the cache, and by a range request each, as fsspec reads them.

The store is an HTTP server on loopback behind a proxy that counts bytes, so there is no distance: a far store makes
range requests slower still. Both run in this process, and their CPU counts for whoever asked them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from loader_server.sources.files.file_facts import CacheSettings
from loader_server.sources.files.opening import Files
from tests.benchmarks.sources.row import interleaved, measured
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.sources.row import Row

__all__ = ["fetched_share", "rows"]

_OBJECT_BYTES = 100 * 2**20
_SAMPLE_BYTES = 10_000
_SAMPLES = 10_000
#: One request after another takes its time.
_REQUESTS = 500

_FETCHED: list[float] = []


def fetched_share() -> float | None:
    """How much of the object was fetched for the 10 000 samples of the first epoch; None if that was not measured."""
    return _FETCHED[-1] if _FETCHED else None


def rows(folder: Path, rounds: int) -> list[Row]:
    """The first epoch fills the cache, later ones read it."""
    (folder / "served").mkdir()
    (folder / "served" / "shard.tar").write_bytes(random.Random(1).randbytes(_OBJECT_BYTES))
    with plain_server(folder / "served", ranges=True) as target, StoreProxy(target) as proxy:
        return _rows(folder, rounds, proxy)


def _rows(folder: Path, rounds: int, proxy: StoreProxy) -> list[Row]:
    import fsspec  # absent, it is a peer that is left out

    store, url = fsspec.filesystem("http"), f"{proxy.url}/shard.tar"
    files = Files(folder, CacheSettings(folder=folder / "cache", bytes=10 * _OBJECT_BYTES))

    def cached() -> Iterator[int]:
        yield from (len(files.read(url, place, _SAMPLE_BYTES)) > 0 for place in _places(_SAMPLES))
        if not _FETCHED:
            _FETCHED.append(proxy.fetched("shard.tar") / _OBJECT_BYTES)

    def requested() -> Iterator[int]:
        return (len(store.cat_file(url, start=place, end=place + _SAMPLE_BYTES)) > 0 for place in _places(_REQUESTS))

    sides = {"stoker": lambda: measured(cached()), "fsspec ranges": lambda: measured(requested())}
    return interleaved("remote", sides, rounds)


def _places(count: int) -> list[int]:
    draw = random.Random(2)
    return [draw.randrange(_OBJECT_BYTES - _SAMPLE_BYTES) for _ in range(count)]
