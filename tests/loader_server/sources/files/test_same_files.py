"""What tells a file from another of equal size: small files whole, large ones by places spread over them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.sources.files import same_files, seen
from loader_server.sources.files.opening import Files
from loader_server.sources.files.same_files import (
    FilesInUse,
    digest_of,
    digest_of_number,
    has_content,
    noted_origin,
    number_of_digest,
    refuse_other_files,
)
from loader_server.sources.files.seen import SeenFiles
from loader_server.sources.source import Indexed
from shared.errors import DataError, ReadError

if TYPE_CHECKING:
    from pathlib import Path

_LARGE = 64 * 4096 + 1


def digest(raw: bytes) -> str:
    return digest_of(lambda start, stop: raw[start:stop], len(raw))


@pytest.mark.parametrize("nbytes", [1, 5000, 64 * 4096])
def test_any_byte_of_a_small_file_counts(nbytes: int) -> None:
    raw = np.random.default_rng(0).bytes(nbytes)
    for place in {0, nbytes // 3, nbytes // 2, nbytes - 1}:
        other = bytearray(raw)
        other[place] ^= 1
        assert digest(bytes(other)) != digest(raw)
    assert digest(b"") != digest(raw)


def test_both_ends_of_a_large_file_count_and_places_between() -> None:
    nbytes = 100 * 2**20
    asked: list[tuple[int, int]] = []
    digest_of(lambda start, stop: asked.append((start, stop)) or b"", nbytes)
    assert len(asked) == 64
    assert (asked[0][0], asked[-1][1]) == (0, nbytes)
    assert {stop - start for start, stop in asked} == {4096}
    assert max(np.diff([start for start, _ in asked])) < nbytes / 60


def test_a_digest_is_a_number_in_a_column() -> None:
    for number in (0, 1, -1, 2**63 - 1, -(2**63)):
        assert number_of_digest(digest_of_number(number)) == number
    assert digest_of_number(number_of_digest(digest(b"x"))) == digest(b"x")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "a").write_bytes(np.random.default_rng(1).bytes(_LARGE))
    (tmp_path / "b").write_bytes(b"two")
    made = Files(tmp_path)
    made.state = tmp_path
    return made


def indexed(files: Files) -> Indexed:
    return Indexed(samples=1, numbers={}, strings={}, origin=noted_origin(files, ["a", "b"]))


def overwrite(path: Path, content: bytes) -> None:
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_nothing_of_a_status_is_noted_in_an_index(files: Files) -> None:
    noted = indexed(files).origin
    assert [sorted(one) for one in noted] == [["bytes", "digest", "path", "version"]] * 2


def test_other_bytes_are_refused_when_files_are_opened_and_while_they_are_read(files: Files, tmp_path: Path) -> None:
    known = indexed(files)
    refuse_other_files(files, known)
    in_use = FilesInUse(files, known)
    in_use.refuse_changed()
    content = (tmp_path / "a").read_bytes()
    overwrite(tmp_path / "a", content[::-1])
    with pytest.raises(DataError, match=r"/a, index .*: expected the file .*, got another one of the same size"):
        refuse_other_files(files, known)
    with pytest.raises(ReadError, match=rf"/a: .* got another one of {_LARGE} bytes: the file has changed since"):
        in_use.refuse_changed("a")
    in_use.refuse_changed("b")
    overwrite(tmp_path / "a", content)
    refuse_other_files(files, known)
    in_use.refuse_changed()


def test_a_file_is_looked_at_again_only_if_its_status_is_new(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**18))
    known = indexed(files)
    looked: list[str] = []
    noted_content = same_files.noted_content
    monkeypatch.setattr(
        same_files, "noted_content", lambda place, memory: looked.append(place) or noted_content(place, memory)
    )
    refuse_other_files(files, known)
    in_use = FilesInUse(files, known)
    in_use.refuse_changed()
    assert looked == [], "indexing has seen them"
    os.link(tmp_path / "a", tmp_path / "linked")
    for _ in range(3):
        in_use.refuse_changed()
        refuse_other_files(files, known)
    assert looked == [str(tmp_path / "a")]
    (tmp_path / "b").chmod(0o600)
    FilesInUse(files, known).refuse_changed()
    assert looked[1:] == [str(tmp_path / "b")]


def test_a_file_in_anothers_place_is_not_taken_for_the_one_that_is_open(files: Files, tmp_path: Path) -> None:
    known = indexed(files)
    assert files.read("a", 0, 1), "it is open now"
    times = (tmp_path / "a").stat()
    (tmp_path / "new").write_bytes((tmp_path / "a").read_bytes()[::-1])
    os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "new").replace(tmp_path / "a")
    with pytest.raises(ReadError, match="got another one of"):
        FilesInUse(files, known).refuse_changed("a")


def test_a_status_is_never_enough_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    memory = SeenFiles()
    known = digest(b"one")
    for change in (lambda: (tmp_path / "a").chmod(0o640), lambda: os.utime(tmp_path / "a", ns=(1, 1)), lambda: None):
        change()
        assert has_content(str(tmp_path / "a"), (tmp_path / "a").stat(), known, memory)
    assert not has_content(str(tmp_path / "a"), (tmp_path / "a").stat(), digest(b"two"), memory)


def test_a_second_write_within_a_tick_is_noticed(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the status as it is, so that of a file that was written just now is not relied on."""
    in_use = FilesInUse(files, indexed(files))
    in_use.refuse_changed("b")
    status = (tmp_path / "b").stat()
    (tmp_path / "b").write_bytes(b"owt")
    monkeypatch.setattr(os, "stat", lambda _path: status)
    with pytest.raises(ReadError, match="got another one of 3 bytes"):
        in_use.refuse_changed("b")
