"""Remote files in S3, from a real server process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from loader_server.sources.files.file_facts import CacheSettings
from loader_server.sources.files.opening import Files
from loader_server.sources.remote import retries
from shared.errors import DataError, ReadError
from tests.support.stores import StoreProxy, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = random.Random(7).randbytes(9 * 2**20)
SECRETS = {"AWS_ACCESS_KEY_ID": "AKIASECRETSECRETSECR", "AWS_SECRET_ACCESS_KEY": "s3cr3t/s3cr3t"}


@pytest.fixture(scope="module")
def proxy() -> Iterator[StoreProxy]:
    """One for all tests of this module: fsspec keeps what it made of the environment."""
    with s3_server() as target, StoreProxy(target) as one, pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", one.url)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        fsspec.filesystem("s3", use_listings_cache=False).mkdir("data")
        yield one
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def store(proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> StoreProxy:
    monkeypatch.setattr(retries, "PAUSES_S", (0, 0, 0, 0))
    proxy.fault = lambda method, path: None
    return proxy


@pytest.fixture
def bucket(store: StoreProxy) -> Any:
    """What the tests themselves write with."""
    one = fsspec.filesystem("s3", use_listings_cache=False)
    one.pipe({"data/x/a.tar": DATA, "data/x/b.txt": b"one\ntwo\n", "data/x/_SUCCESS": b"", "data/x/y/c.tar": b"c"})
    store.requests.clear()
    return one


@pytest.fixture
def files(tmp_path: Path, bucket: Any) -> Files:
    return Files(tmp_path, CacheSettings(folder=tmp_path / "cache", bytes=2**30))


def test_ten_thousand_random_reads_fetch_each_byte_at_most_once(files: Files, store: StoreProxy) -> None:
    draw = random.Random(3)
    for _ in range(10_000):
        offset = draw.randrange(len(DATA) - 1000)
        assert files.read("s3://data/x/a.tar", offset, 1000) == DATA[offset : offset + 1000]
    assert store.fetched("a.tar") == len(DATA)
    assert store.asked() == {"HEAD": 2, "GET": 2}


def test_folders_and_patterns_are_what_is_in_the_bucket(files: Files) -> None:
    assert files.found(["s3://data/x/"]) == ["s3://data/x/a.tar", "s3://data/x/b.txt", "s3://data/x/y/c.tar"]
    assert files.found(["s3://data/**/*.tar"]) == ["s3://data/x/a.tar", "s3://data/x/y/c.tar"]
    with files.local("s3://data/x/b.txt") as path:
        assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://data/x/none", "expected a file that can be read, got none of this name, or no such bucket"),
        ("s3://no-bucket/a", "expected a file that can be read, got none of this name, or no such bucket"),
        ("s3://data/x", "got a folder"),
    ],
)
def test_what_is_not_there_is_named(files: Files, url: str, said: str) -> None:
    with pytest.raises(DataError, match=f"^{url}: .*{said}|^{url}: {said}"):
        files.facts(url)


def test_credentials_that_are_refused_are_not_repeated(files: Files, store: StoreProxy) -> None:
    store.fault = lambda method, path: 403
    for ask in (files.facts, lambda url: files.found([f"{url}*"]), lambda url: files.read(url, 0, 1)):
        store.requests.clear()
        with pytest.raises(
            ReadError, match=r"s3://data/x/b\.txt\*?: expected a file that may be read, got a refusal \("
        ) as got:
            ask("s3://data/x/b.txt")
        assert not any(secret in str(got.value) for secret in SECRETS.values())
        assert len(store.requests) == 1, "it is not asked again"


def test_there_is_one_layer_of_retries(files: Files, store: StoreProxy) -> None:
    files.origin(["s3://data/x/b.txt"])
    store.fault = lambda method, path: 503
    store.requests.clear()
    with pytest.raises(ReadError, match="at each of 5 attempts"):
        files.read("s3://data/x/b.txt", 0, 3)
    assert len(store.requests) == 5
    store.fault = lambda method, path: "cut" if method == "GET" else None
    store.requests.clear()
    with pytest.raises(ReadError, match="at each of 5 attempts"):
        files.read("s3://data/x/b.txt", 0, 3)
    assert store.asked()["GET"] == 5
    faults = iter([503, "cut", 503])
    store.fault = lambda method, path: next(faults, None)
    assert files.read("s3://data/x/b.txt", 0, 3) == b"one"


def test_another_version_is_refused_by_the_store(files: Files, store: StoreProxy, bucket: Any, tmp_path: Path) -> None:
    url = "s3://data/x/a.tar"
    known = files.facts(url)
    assert files.read(url, 0, 5) == DATA[:5]
    bucket.pipe("data/x/a.tar", DATA[::-1])
    store.requests.clear()
    with pytest.raises(ReadError, match=r"s3://data/x/a\.tar: .*the file has changed since"):
        files.read(url, len(DATA) - 5, 5)
    assert store.asked() == {"GET": 1}, "the request itself names the version"
    again = Files(tmp_path, CacheSettings(folder=tmp_path / "another", bytes=2**30))
    with pytest.raises(ReadError, match=r"s3://data/x/a\.tar: expected the file that was indexed.*has changed since"):
        again.whole(url, known)


@pytest.mark.parametrize("name", ["s3://dada/x/", "s3://dada/x/*.tar"])
def test_a_missing_bucket_is_no_empty_folder(files: Files, name: str) -> None:
    with pytest.raises(DataError, match=r"expected the bucket dada to be there, got no such bucket\. Mend `paths`"):
        files.found([name])


@pytest.mark.parametrize("name", ["s3://data/nothing/", "s3://data/nothing/*.tar"])
def test_an_empty_folder_of_a_bucket_that_is_there_is_said_to_be_empty(files: Files, name: str) -> None:
    with pytest.raises(DataError) as caught:
        files.found([name])
    assert "bucket" not in caught.value.expected


def test_a_store_that_does_not_answer_is_not_taken_for_one_without_the_bucket(files: Files, store: StoreProxy) -> None:
    store.fault = lambda method, path: 503 if method == "HEAD" else None
    with pytest.raises(ReadError):
        files.found(["s3://data/nothing/"])
