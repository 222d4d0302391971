"""Every source of files reads from a server what it reads from a disk."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile

from loader_server.sources.files.file_facts import CacheSettings
from shared.errors import DataError, ReadError
from tests.conformance.fixtures import FIXTURES
from tests.support.loaders import wait_until
from tests.support.sources import decoded, index_source, open_source, spec_of
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.registry import SourceSpec
    from loader_server.sources.source import Source

REMOTE = (
    "lines",
    "jsonl",
    "parallel",
    "tfrecord",
    "webdataset",
    "array_record",
    "numpy",
    "hdf5",
    "manifest",
    "files",
    "kaldi",
    "lhotse",
    "parquet",
    "arrow",
)


def served(spec: SourceSpec, url: str, folder: Path) -> SourceSpec:
    """The same data by URL."""

    def named(path: Any) -> Any:
        if not isinstance(path, str):
            return path[0], named(path[1])
        return f"{url}/{path}/" if (spec.base / path).is_dir() else f"{url}/{path}"

    root = {"root": f"{url}/"} if hasattr(spec.settings, "root") else {}  # where tables name files from
    settings = dataclasses.replace(spec.settings, paths=tuple(map(named, spec.settings.paths)), **root)
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
        wait_until(lambda: not source.files._remote._ahead.waiting(), "what was expected is there")
        seen = len(proxy.requests)
        assert contents(source) == contents(local)
        assert len(proxy.requests) == seen, "it is all in the cache"
        source.close()
    local.close()


def test_a_prepared_data_set_is_read_from_a_server_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spec = FIXTURES["tfds"](tmp_path / "data").spec
    index_source(spec, tmp_path / "index")
    local = open_source(spec, tmp_path / "index")
    with plain_server(tmp_path / "data", ranges=True) as target, StoreProxy(target) as proxy:
        settings = dataclasses.replace(spec.settings, folder=f"{proxy.url}/{spec.settings.folder}")
        cache = CacheSettings(folder=tmp_path / "cache", bytes=10**9)
        (tmp_path / "elsewhere").mkdir()
        far = dataclasses.replace(spec, settings=settings, cache=cache, base=tmp_path / "elsewhere")
        index_source(far)
        source = open_source(far)
        source.expect(np.arange(source.samples))
        assert contents(source) == contents(local)
        assert source.place(0)[0].startswith(proxy.url)
        source.close()
        assert source.stamp() == source.stamp() != local.stamp()
        far = dataclasses.replace(far, settings=dataclasses.replace(settings, folder=f"{proxy.url}/none"))
        with pytest.raises(DataError, match=r"none/dataset_info\.json: expected a file that can be read, got none of"):
            index_source(far, tmp_path / "other")
    local.close()


def test_remote_records_are_brought_before_they_are_gathered(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spec = FIXTURES["tfrecord"](tmp_path / "data").spec
    with plain_server(tmp_path / "data", ranges=True) as target:
        far = served(spec, f"http://{target}", tmp_path / "elsewhere")
        index_source(far)
        source = open_source(far)
        samples = np.arange(source.samples)
        missing = source.unread(samples)
        assert (source.gathers, source.reads_ahead) == (True, True)
        assert 0 < len(missing) < len(samples)
        assert [len(raw) > 0 for raw in source.read(missing)] == [True] * len(missing)
        assert not len(source.unread(samples))
        source.close()


def test_recordings_of_a_manifest_are_missing_or_changed_or_stretches_as_on_a_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for suffix in ("wav", "flac"):
        soundfile.write(data / f"long.{suffix}", np.sin(np.arange(16000)) / 2, 8000)
    rows = [
        {"audio": f"long.{suffix}", "text": "x", "offset": n / 10, "duration": 0.1}
        for suffix in ("wav", "flac")
        for n in range(3)
    ]
    rows += [{"audio": "gone.wav", "text": "y"}, {"audio": "long.wav", "text": "whole"}]
    (data / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = spec_of("manifest", data, paths=["m.jsonl"])
    assert index_source(spec, tmp_path / "index").bad_counts == {"missing_file": 1}
    local = open_source(spec, tmp_path / "index")
    with plain_server(data, ranges=True) as target, StoreProxy(target) as proxy:
        far = served(spec, proxy.url, tmp_path / "elsewhere")
        assert index_source(far, tmp_path / "far").bad_counts == {"missing_file": 1}
        source = open_source(far, tmp_path / "far")
        assert contents(source) == contents(local)
        source.look_for_changes(1000.0)  # only local files are looked at
        shutil.rmtree(tmp_path / "elsewhere" / "cache")
        soundfile.write(data / "long.wav", np.cos(np.arange(16000)) / 2, 8000)
        again = open_source(far, tmp_path / "far")
        with pytest.raises(ReadError, match=r"long\.wav: .*the file has changed since"):
            decoded(again, 0)
        for one in (source, again):
            one.close()
    local.close()


def test_archives_of_a_kaldi_folder_are_read_from_their_places(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spec = FIXTURES["kaldi"](tmp_path / "data").spec
    index_source(spec, tmp_path / "index")
    local = open_source(spec, tmp_path / "index")
    for scp in (tmp_path / "data").glob("*/feats.scp"):
        scp.write_text(scp.read_text().replace(f"{tmp_path}/data/", ""))
    with plain_server(tmp_path / "data", ranges=True) as target, StoreProxy(target) as proxy:
        far = served(spec, proxy.url, tmp_path / "elsewhere")
        index_source(far, tmp_path / "far")
        source = open_source(far, tmp_path / "far")
        source.expect(np.arange(source.samples))
        assert contents(source) == contents(local)
        source.look_for_changes(1000.0)
        archives = (tmp_path / "data").glob("*/feats.ark")
        assert proxy.fetched("feats.ark") == sum(path.stat().st_size for path in archives)
        source.close()
        with (tmp_path / "data/a/feats.ark").open("ab") as archive:
            archive.write(b"more")
        shutil.rmtree(tmp_path / "elsewhere/cache")
        again = open_source(far, tmp_path / "far")
        with pytest.raises(ReadError, match=r"feats\.ark: .*the file has changed since"):
            decoded(again, 0)
        again.close()
    local.close()


@pytest.mark.parametrize("kind", ["file", "url"])
def test_a_manifest_here_names_recordings_elsewhere(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    soundfile.write(data / "a.wav", np.sin(np.arange(8000)) / 2, 8000)
    with plain_server(data, ranges=True) as target:
        url = f"http://{target}/a.wav"
        sources = [{"type": kind, "channels": [0], "source": url}]
        recording = {"id": "a", "sources": sources, "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
        cut = {"id": "a", "start": 0.25, "duration": 0.5, "channel": 0, "supervisions": [], "recording": recording}
        (tmp_path / "cuts.jsonl").write_text(json.dumps({**cut, "type": "MonoCut"}))
        spec = spec_of("lhotse", tmp_path, paths=["cuts.jsonl"])
        index_source(spec)
        source = open_source(spec)
        assert source.files.are_remote
        source.expect(np.arange(1))
        assert np.abs(decoded(source, 0)["audio"] - np.sin(np.arange(2000, 6000)) / 2).max() < 1e-4
        source.close()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
def test_a_remote_recording_that_lost_its_second_half_is_a_bad_row(subtype: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("cut", "whole"):
        soundfile.write(tmp_path / f"data/{name}.wav", np.zeros(4000), 8000, subtype=subtype)
    raw = (tmp_path / "data/cut.wav").read_bytes()
    (tmp_path / "data/cut.wav").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "data/m.csv").write_text("audio,text\ncut.wav,x\nwhole.wav,y\n")
    with plain_server(tmp_path / "data", ranges=True) as target, StoreProxy(target) as proxy:
        report = index_source(served(spec_of("manifest", tmp_path / "data", paths=["m.csv"]), proxy.url, tmp_path))
    assert (report.samples, dict(report.bad_counts)) == (1, {"truncated": 1})
