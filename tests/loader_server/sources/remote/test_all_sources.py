"""Every source of files reads from a server what it reads from a disk."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.sources.file_facts import CacheSettings
from tests.conformance.fixtures import FIXTURES
from tests.support.sources import decoded, index_source, open_source
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.source import Source
    from loader_server.sources.table import SourceSpec

REMOTE = ("lines", "jsonl", "parallel", "tfrecord", "webdataset", "numpy", "hdf5")


def served(spec: SourceSpec, url: str, folder: Path) -> SourceSpec:
    """The same data by URL."""

    def named(path: Any) -> Any:
        if not isinstance(path, str):
            return path[0], named(path[1])
        return f"{url}/{path}/" if (spec.base / path).is_dir() else f"{url}/{path}"

    settings = dataclasses.replace(spec.settings, paths=tuple(map(named, spec.settings.paths)))
    cache = CacheSettings(folder=folder / "cache", bytes=10**9)
    return dataclasses.replace(spec, settings=settings, cache=cache, base=folder)


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in sample.items()}


def contents(source: Source) -> list[dict[str, Any]]:
    return [plain(decoded(source, sample)) for sample in range(source.samples)]


@pytest.mark.parametrize("name", REMOTE)
def test_a_source_reads_from_a_server_what_it_reads_from_a_disk(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    spec = FIXTURES[name](tmp_path / "data").spec
    report = index_source(spec, tmp_path / "index")
    local = open_source(spec, tmp_path / "index")
    with plain_server(tmp_path / "data", ranges=True) as target, StoreProxy(target) as proxy:
        far = served(spec, proxy.url, tmp_path / "elsewhere")
        assert index_source(far).bad_counts == report.bad_counts
        source = open_source(far)
        assert source.files.are_remote
        source.expect(np.arange(source.samples))
        assert contents(source) == contents(local)
        assert all(source.place(sample)[0].startswith(proxy.url) for sample in range(source.samples))
        seen = len(proxy.requests)
        assert contents(source) == contents(local)
        assert len(proxy.requests) == seen, "it is all in the cache"
        source.close()
    local.close()
