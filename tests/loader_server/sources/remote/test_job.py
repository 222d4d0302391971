"""A job with remote files, as docs/sources.md has it: its cache, its batches, and what stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.remote import retries
from loader_server.stream import Stream
from shared.errors import DataError, ReadError
from tests.conformance.test_documented import example
from tests.support.in_memory import Steps, memory_want
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    monkeypatch.setattr(retries, "PAUSES_S", (0, 0, 0, 0))
    (tmp_path / "served/folder").mkdir(parents=True)
    for name in ("folder/a", "folder/b", "c"):
        text = "\n".join(f"{name[-1]} {n}" for n in range(500))
        (tmp_path / "served" / f"{name}.txt").write_text(text)
    with plain_server(tmp_path / "served", ranges=True) as target, StoreProxy(target) as proxy:
        yield proxy


def job(folder: Path, store: StoreProxy, url: str = "") -> JobFile:
    toml = example("toml", "s3://corpus").replace("/mnt/nvme/stoker", "kept")
    toml = toml.replace("s3://corpus/2026/*.txt", f"{store.url}/folder/").replace(
        "https://example.org", url or store.url
    )
    (folder / "job.toml").write_text(toml.replace("more.txt", "c.txt").replace("20000 characters", "500 characters"))
    return JobFile(folder / "job.toml")


def test_a_job_reads_remote_files_through_its_cache_and_stops_when_the_store_refuses(
    tmp_path: Path, store: StoreProxy
) -> None:
    made = job(tmp_path, store)
    assert index_streams(made, ["train"])["train"].samples == 1500
    stream = Stream(made, "train")
    builder = Builder(stream, Quarantine(tmp_path / "quarantine.jsonl"), Steps())
    prepared = builder.prepare(memory_want(0))
    texts = [
        stream.source.decode(sample, raw)["text"] for sample, raw in zip(prepared.samples, prepared.raw, strict=True)
    ]
    assert len(texts) > 20
    assert {text[0] for text in texts} == {"a", "b", "c"}
    entries = [path for path in (tmp_path / "kept" / "entries").rglob("*") if path.is_file()]
    assert len(entries) == 3
    for path in entries:
        path.unlink()
    store.fault = lambda method, path: 403
    with pytest.raises(ReadError, match=r"(a|b|c)\.txt: expected a file that may be read, got a refusal"):
        Stream(made, "train")
    stream.close()
    with pytest.raises(ReadError, match=r"(a|b|c)\.txt: expected a file that may be read, got a refusal"):
        builder.prepare(memory_want(1))


def test_credentials_never_reach_an_index(tmp_path: Path, store: StoreProxy) -> None:
    made = job(tmp_path, store, store.url.replace("http://", "http://me:s3cret@"))
    with pytest.raises(DataError, match="expected a URL without credentials") as caught:
        index_streams(made, ["train"])
    assert "s3cret" not in str(caught.value)
    kept = [path for path in (tmp_path / ".stoker").rglob("*") if path.is_file()]
    assert not any(b"s3cret" in path.read_bytes() for path in kept)
