"""Whether files are there, by a bounded look, and looking at some of many samples.

Evenly spread ones come first, each once, for as long as there is time.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files import presence
from loader_server.sources.files.presence import IndexedFiles, MissingFiles, find_missing, look_at_some

if TYPE_CHECKING:
    from collections.abc import Callable


def files_of(folder, sizes):
    """The files `0`, `1`, … of a folder, with their sizes in the index."""
    return IndexedFiles(len(sizes), lambda number: (str(folder / str(number)), sizes[number]))


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"12345678")
    return tmp_path


def test_nothing_is_missing_where_all_files_have_their_sizes(folder):
    assert find_missing(files_of(folder, [8] * 5), 10.0) is None
    os.utime(folder / "0", (1, 1))
    assert find_missing(files_of(folder, [8] * 5), 10.0) is None, "a copy has other times"


def test_the_first_missing_file_is_named_and_all_are_counted(folder):
    (folder / "1").unlink()
    (folder / "3").write_bytes(b"123")
    found = find_missing(files_of(folder, [8] * 5), 10.0)
    assert found == MissingFiles(path=str(folder / "1"), reason="missing", missing=2, looked_at=5)
    assert str(found) == f"{folder}/1 missing (2 of 5 files looked at)"
    found = find_missing(files_of(folder, [8, 7]), 10.0)
    assert (found.path, found.reason) == (str(folder / "1"), "missing")
    (folder / "1").write_bytes(b"12345678")
    assert find_missing(files_of(folder, [8, 7]), 10.0).reason == "has 8 bytes, not 7"


def test_a_file_that_cannot_be_looked_at_is_missing_with_the_reason(folder):
    (folder / "0").unlink()
    (folder / "0").symlink_to(folder / "0")
    assert "cannot be read: Too many levels" in str(find_missing(files_of(folder, [8]), 10.0))


def test_remote_files_are_not_looked_at():
    assert find_missing(IndexedFiles(3, lambda _: ("", 8)), 10.0) is None


def test_of_a_million_files_a_thousand_are_looked_at_evenly():
    seen = []

    def file_at(number):
        seen.append(number)
        return "/nowhere", 8

    found = find_missing(IndexedFiles(1_000_000, file_at), 60.0)
    assert (found.missing, found.looked_at) == (1000, 1000)
    assert seen == list(range(0, 1_000_000, 1000))


def test_a_look_ends_when_its_time_is_up():
    found = find_missing(IndexedFiles(1000, lambda _: ("/nowhere", 8)), -1.0)
    assert (found.missing, found.looked_at) == (1, 1)


@pytest.mark.parametrize(("missing", "bearable"), [(1, True), (10, True), (11, False), (100, False)])
def test_a_few_missing_files_are_bearable(missing, bearable):
    assert MissingFiles(path="", reason="", missing=missing, looked_at=100).is_bearable == bearable


@pytest.mark.parametrize("samples", [0, 1, 999, 2000, 2999, 3001])
def test_each_has_its_turn_once(samples: int) -> None:
    seen: list[int] = []
    look_at_some(samples, seen.append, 1000.0)
    assert sorted(seen) == list(range(samples))


def test_the_first_thousand_are_spread_over_all() -> None:
    seen: list[int] = []
    look_at_some(10_000, seen.append, 1000.0)
    assert seen[:1001] == [*range(0, 10_000, 10), 1]


def clock(*times_s: float) -> Callable[[], float]:
    return iter(times_s).__next__


def test_it_ends_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(presence, "time", SimpleNamespace(monotonic=clock(5.0, 5.0, 5.5, 6.0, 6.1)))
    look_at_some(10_000, seen.append, 1.0)
    assert seen == [0, 10, 20]
