"""Remote files over plain HTTP, with ranges and without: each byte once, of one version, whatever the network does."""

from __future__ import annotations

import io
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files.file_facts import CacheSettings
from loader_server.sources.files.opening import Files
from loader_server.sources.records.mapped_files import MappedFiles
from loader_server.sources.remote import objects, remote_files, retries
from shared.errors import DataError, ReadError
from tests.support.disk import small_disk
from tests.support.loaders import wait_until
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = random.Random(7).randbytes(100_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, and no pauses."""
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 8192)
    monkeypatch.setattr(retries, "PAUSES_S", (0, 0, 0, 0))


@pytest.fixture
def served(tmp_path: Path) -> Path:
    (tmp_path / "served" / "more").mkdir(parents=True)
    (tmp_path / "served" / "a.tar").write_bytes(DATA)
    (tmp_path / "served" / "b.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "served" / "_SUCCESS").touch()
    return tmp_path / "served"


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def store(request: pytest.FixtureRequest, served: Path) -> Iterator[StoreProxy]:
    with plain_server(served, ranges=request.param) as target, StoreProxy(target) as proxy:
        yield proxy


@pytest.fixture
def ranged(served: Path) -> Iterator[StoreProxy]:
    with plain_server(served, ranges=True) as target, StoreProxy(target) as proxy:
        yield proxy


def files_of(folder: Path, nbytes: int = 10**7) -> Files:
    return Files(folder, CacheSettings(folder=folder / "cache", bytes=nbytes))


def test_each_byte_is_fetched_once_by_all_who_share_the_cache(tmp_path: Path, store: StoreProxy) -> None:
    url, draw = f"{store.url}/a.tar", random.Random(1)
    sharing = [files_of(tmp_path) for _ in range(3)]
    places = [(draw.choice(sharing), draw.randrange(99_000), draw.randrange(1000)) for _ in range(3000)]
    with ThreadPoolExecutor(4) as pool:
        for read in pool.map(lambda one: one[0].read(url, one[1], one[2]) == DATA[one[1] : one[1] + one[2]], places):
            assert read
    looked = "bytes=99999-99999"  # whether there are ranges; one without is left at once
    assert sum(one.nbytes for one in store.requests if one.method == "GET" and one.range != looked) == len(DATA)
    assert sum(one.range == looked for one in store.requests) <= len(sharing)


def test_what_is_fetched_found_waited_for_and_asked_again_is_counted(tmp_path: Path, ranged: StoreProxy) -> None:
    url, faults = f"{ranged.url}/a.tar", [503]
    first, second = files_of(tmp_path), files_of(tmp_path)
    ranged.fault = lambda method, _: faults.pop() if faults and method == "GET" else None
    assert first.read(url, 5, 10) == DATA[5:15]
    assert first.read(url, 90, 10) == DATA[90:100]
    assert second.read(url, 5, 10) == DATA[5:15]
    with second.local(url) as path:
        assert path.read_bytes() == DATA
    with first.local(url) as path:
        assert path.read_bytes() == DATA

    def counted(files: Files) -> tuple[int, ...]:
        counts = files.cache.counts
        return counts.fetched_bytes, counts.found, counts.waited, counts.retries

    assert counted(first) == (8192, 1, 1, 1)
    assert counted(second) == (len(DATA), 1, 1, 0)


def test_how_long_readers_waited_for_what_the_cache_lacked_is_counted(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    ranged.fault = lambda method, _: time.sleep(0.2) if method == "GET" else None
    files.read(url, 5, 10)
    took_s = files.cache.counts.waited_s
    assert 0.2 <= took_s < 10
    files.read(url, 5, 10)
    assert files.cache.counts.waited_s == took_s
    with files.local(url):
        assert files.cache.counts.waited_s >= took_s + 0.2


def test_a_file_is_one_to_read_and_one_on_the_disk(tmp_path: Path, store: StoreProxy) -> None:
    url, files = f"{store.url}/a.tar", files_of(tmp_path)
    with files.open(url) as file:
        assert file.read(10) == DATA[:10]
        assert file.seek(-5, io.SEEK_END) == 99_995
        assert (file.read(), file.read(), file.tell()) == (DATA[-5:], b"", 100_000)
        file.seek(50_000)
        file.seek(1, io.SEEK_CUR)
        assert file.read(30_000) == DATA[50_001:80_001]
    with files.local(url) as path:
        assert path.read_bytes() == DATA
    assert files.whole(url, files.facts(url)) == DATA
    assert files.read(f"{store.url}/_SUCCESS", 0, 0) == b""
    files.close()
    assert files.read(url, 99_999, 1) == DATA[-1:]


def test_a_folder_is_what_it_lists(tmp_path: Path, store: StoreProxy) -> None:
    files = files_of(tmp_path)
    assert files.found([f"{store.url}/"], ".tar", ".txt") == [f"{store.url}/a.tar", f"{store.url}/b.txt"]
    assert files.found([f"{store.url}/*.tar"]) == [f"{store.url}/a.tar"]
    with pytest.raises(DataError, match=r"/\*\.zip: expected files, got none"):
        files.found([f"{store.url}/*.zip"])
    assert files.beside(f"{store.url}/x/a.csv", "clips/1.wav") == f"{store.url}/x/clips/1.wav"
    assert files.beside(f"{store.url}/x/a.csv", "s3://b/1.wav") == "s3://b/1.wav"
    assert files.beside("x/a.csv", "1.wav") == "x/1.wav"


@pytest.mark.parametrize("fault", [503, "cut", "hang up"])
def test_what_fails_for_a_while_comes_back(tmp_path: Path, ranged: StoreProxy, fault: int | str) -> None:
    url, files, failing = f"{ranged.url}/a.tar", files_of(tmp_path), iter([fault] * 3)
    assert files.origin([url])[0]["bytes"] == 100_000
    ranged.fault = lambda method, path: next(failing, None)
    assert files.read(url, 20_000, 500) == DATA[20_000:20_500]
    assert next(failing, None) is None


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (503, "expected to read the file, got 503 Service Unavailable, at each of 5 attempts"),
        (403, r"expected a file that may be read, got a refusal \(403 Forbidden\)"),
        (404, "expected a file that can be read, got none of this name"),
        ("cut", "expected to read the file, got Response payload is not completed.*at each of 5 attempts"),
    ],
)
def test_what_stays_broken_is_an_error_that_names_the_file(
    tmp_path: Path, ranged: StoreProxy, fault: int | str, said: str
) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    files.origin([url])
    ranged.fault = lambda method, path: fault
    with pytest.raises(ReadError, match=rf"http://.*/a\.tar: {said}"):
        files.read(url, 0, 10)
    assert not list((tmp_path / "cache").glob("underway/*"))
    ranged.fault = lambda method, path: None
    assert files.read(url, 0, 10) == DATA[:10]


def test_another_version_is_refused_before_and_while_it_is_read(
    tmp_path: Path, ranged: StoreProxy, served: Path
) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    origin = files.origin([url])
    files.refuse_changed(origin, tmp_path)
    assert files.read(url, 0, 10) == DATA[:10]
    (served / "a.tar").write_bytes(DATA[::-1])
    os.utime(served / "a.tar", ns=(5, 5))
    with pytest.raises(ReadError, match=r"a\.tar: expected the file that was indexed.*the file has changed since"):
        files.read(url, 50_000, 10)
    assert files.read(url, 0, 10) == DATA[:10], "what is in the cache is the indexed one"
    with pytest.raises(DataError, match=r"a\.tar, index .*expected the file that the index was made from"):
        files_of(tmp_path).refuse_changed(origin, tmp_path)
    other = files_of(tmp_path)
    assert other.read(url, 0, 10) == DATA[::-1][:10], "its key holds the version"
    with pytest.raises(ReadError, match=r"a\.tar: expected 20 bytes from byte 99990 on, got 10 bytes: the file has"):
        other.read(url, 99_990, 20)


def test_what_is_expected_is_there_when_it_is_read(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    files.expect([(url, 0, 100), (url, 30_000, 20_000), ("local.txt", 0, 5)])
    for offset in (0, 30_000, 33_000, 45_000, 49_990):
        assert files.read(url, offset, 5) == DATA[offset : offset + 5]
    assert ranged.fetched() == 5 * 8192 + 1
    files.expect([(url, 0, 100)])
    assert ranged.fetched() == 5 * 8192 + 1


def test_what_is_there_as_a_whole_is_not_fetched_ahead_in_parts(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    with files.local(url):
        fetched = ranged.fetched()
        files.expect([(url, 0, len(DATA))])
        wait_until(lambda: not files._remote._ahead.waiting(), "it has looked")
        assert ranged.fetched() == fetched


def test_expecting_what_fails_is_no_error_yet(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    files.origin([url])
    ranged.fault = lambda method, path: 403
    files.expect([(url, 0, 100)])
    with pytest.raises(ReadError, match="a refusal"):
        files.read(url, 0, 100)


def test_a_cache_smaller_than_the_file_stays_within_its_bounds(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files, draw = f"{ranged.url}/a.tar", files_of(tmp_path, 40_000), random.Random(2)
    for _ in range(60):
        offset = draw.randrange(99_000)
        assert files.read(url, offset, 900) == DATA[offset : offset + 900]
    kept = [path.stat().st_size for path in (tmp_path / "cache" / "entries").rglob("*") if path.is_file()]
    assert sum(kept) <= 40_000
    with pytest.raises(ReadError, match="expected a cache of at least 100000 bytes"):
        files.local(url)


def test_a_full_disk_is_named(tmp_path: Path, ranged: StoreProxy) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        files = Files(tmp_path, CacheSettings(folder=disk.folder / "cache", bytes=10**9))
        with pytest.raises(ReadError, match=r"disk/cache: expected a folder.*got No space left on device"):
            files.local(f"{ranged.url}/a.tar")
        files.close()


def test_a_block_takes_room_for_itself_alone(tmp_path: Path, ranged: StoreProxy) -> None:
    files = files_of(tmp_path, 8192)
    for offset in (0, 50_000, 90_000):
        assert files.read(f"{ranged.url}/a.tar", offset, 10) == DATA[offset : offset + 10]
    files.close()


def test_a_store_that_says_nothing_is_given_up(
    tmp_path: Path, ranged: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SILENCE_S", 0.05)
    ranged.open.clear()
    with pytest.raises(ReadError, match=r"a\.tar: expected to read the file, got .*, at each of 5 attempts"):
        files_of(tmp_path).facts(f"{ranged.url}/a.tar")


def test_one_process_looks_ahead_for_all_and_not_too_far(tmp_path: Path, ranged: StoreProxy) -> None:
    url, first, second = f"{ranged.url}/a.tar", files_of(tmp_path), files_of(tmp_path)
    assert not first.looks_ahead(), "nothing is remote yet"
    for files in (first, second):
        files.refuse_changed(files.origin([url]), tmp_path)
    assert (first.looks_ahead(), second.looks_ahead()) == (True, False)
    ranged.open.clear()
    first.expect([(url, 0, 100_000)])
    assert first.looks_ahead(), "thirteen wait"
    first._remote.expect((f"{url}{n}", first._version(url), 0, 5) for n in range(20))
    assert not first.looks_ahead()
    ranged.open.set()
    first.close()


def test_what_is_expected_fills_a_quarter_of_the_cache_at_most(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path, 16 * 8192)
    files.refuse_changed(files.origin([url]), tmp_path)
    ranged.open.clear()
    files.expect([(url, 0, 4 * 8192)])
    assert files.looks_ahead()
    files.expect([(url, 0, 5 * 8192)])
    assert not files.looks_ahead()
    ranged.open.set()
    files.close()


def test_mapped_files_fill_half_of_the_cache_at_most_and_can_be_read_while_others_come(
    tmp_path: Path, ranged: StoreProxy, served: Path
) -> None:
    for n in range(4):
        (served / f"{n}.bin").write_bytes(bytes([n]) * 3000)
    urls, files = [f"{ranged.url}/{n}.bin" for n in range(4)], files_of(tmp_path, 12_000)
    mapped = MappedFiles(files)
    first = mapped[urls[0]]
    for n, url in enumerate(urls):
        assert mapped[url][2999] == n
    assert [url in mapped for url in urls] == [False, False, True, True]
    assert first[2999] == 0
    mapped.close()


def test_whole_files_are_expected_too(tmp_path: Path, ranged: StoreProxy) -> None:
    url, files = f"{ranged.url}/a.tar", files_of(tmp_path)
    files.expect_local([url, "local.txt"])
    with files.local(url) as path:
        assert path.read_bytes() == DATA
    assert ranged.fetched() == len(DATA) + 1


def test_a_file_that_is_not_there_is_an_error_of_the_data_and_stamped_all_the_same(
    tmp_path: Path, ranged: StoreProxy, served: Path
) -> None:
    files, url = files_of(tmp_path), f"{ranged.url}/gone.tar"
    with pytest.raises(DataError, match=r"gone\.tar: expected a file that can be read, got none") as caught:
        files.facts(url)
    assert not isinstance(caught.value, ReadError)
    before = files.stamp([f"{ranged.url}/b.txt", url])
    assert files.stamp([f"{ranged.url}/b.txt", url]) == before
    (served / "gone.tar").write_bytes(b"here")
    assert files.stamp([f"{ranged.url}/b.txt", url]) != before
    ranged.fault = lambda method, path: 403
    with pytest.raises(ReadError, match="a refusal"):
        files.stamp([url])
