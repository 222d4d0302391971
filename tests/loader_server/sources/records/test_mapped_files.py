"""Mapped files: they stay for as long as somebody reads them, and whoever asks for one that is not the indexed one any
more is refused, instead of dying of reading beyond its end, or getting other samples.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files import same_files, seen
from loader_server.sources.files.file_facts import LocalFile
from loader_server.sources.files.opening import Files
from loader_server.sources.records import mapped_files
from loader_server.sources.records.mapped_files import MappedFiles
from shared.errors import ReadError

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.files.file_facts import FileFacts

_PAGE = 4096


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFiles:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 64)
    files = Files(tmp_path)
    mapped = MappedFiles(files)
    mapped.allow_only(mapped.noted(files.origin(["a"])))
    assert len(mapped["a"]) == 4 * _PAGE
    return mapped


def refused(mapped: MappedFiles, got: str) -> None:
    with pytest.raises(ReadError, match=rf"/a: expected the file that was indexed \(16384 bytes\), got {got}: "):
        mapped["a"]


def test_a_file_that_was_cut_short_is_refused_until_it_is_back(tmp_path: Path, mapped: MappedFiles) -> None:
    content = (tmp_path / "a").read_bytes()
    os.truncate(tmp_path / "a", _PAGE)
    for _ in range(2):
        refused(mapped, "one of 4096 bytes")
    (tmp_path / "a").write_bytes(content)
    assert mapped["a"][-1] == 255


@pytest.mark.parametrize("is_refused_first", [True, False])
def test_what_comes_in_the_place_of_a_file_that_was_cut_short_is_refused_whatever_its_size(
    tmp_path: Path, mapped: MappedFiles, is_refused_first: bool
) -> None:
    for nbytes, got in ((5 * _PAGE, "one of 20480 bytes"), (4 * _PAGE, "another one of 16384 bytes")):
        os.truncate(tmp_path / "a", _PAGE)
        if is_refused_first:
            refused(mapped, "one of 4096 bytes")
        (tmp_path / "a").write_bytes(bytes(nbytes))
        os.utime(tmp_path / "a", ns=(5, 5))  # all of this may happen within one tick of the file system's clock
        if is_refused_first or nbytes != 4 * _PAGE:
            refused(mapped, got)


def test_another_file_of_this_size_is_refused_when_it_is_mapped(tmp_path: Path, mapped: MappedFiles) -> None:
    mapped.close()
    (tmp_path / "b").write_bytes(bytes(4 * _PAGE))
    os.utime(tmp_path / "b", ns=(5, 5))
    (tmp_path / "b").rename(tmp_path / "a")
    refused(mapped, "another one of 16384 bytes")


def test_a_copy_is_the_same_file_and_compared_once(
    tmp_path: Path, mapped: MappedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped.close()
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**18))
    os.utime(tmp_path / "a", ns=(1, 1))
    assert mapped["a"][-1] == 255
    monkeypatch.setattr(same_files, "digest_of", None)
    assert mapped["a"][-1] == 255
    mapped.close()
    assert mapped["a"][-1] == 255, "this machine has seen it"


def test_a_file_that_others_write_into_is_refused_although_it_is_mapped(tmp_path: Path, mapped: MappedFiles) -> None:
    content, times = (tmp_path / "a").read_bytes(), (tmp_path / "a").stat()
    assert mapped["a"][-1] == 255
    for other in (bytes(len(content)), content[::-1]):
        (tmp_path / "a").write_bytes(other)
        os.utime(tmp_path / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(ReadError, match=r"/a: expected the file that was .*, got another one of 16384 bytes"):
            mapped.refuse_changed("a")
        refused(mapped, f"another one of {len(content)} bytes")
        (tmp_path / "a").write_bytes(content)
        mapped.refuse_changed("a")
    assert mapped["a"][:] == content


def test_a_second_write_within_a_tick_is_noticed(
    tmp_path: Path, mapped: MappedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped.close()
    content, status = mapped["a"][:], (tmp_path / "a").stat()
    (tmp_path / "a").write_bytes(content[::-1])
    monkeypatch.setattr(os, "stat", lambda _path: status)
    with pytest.raises(ReadError, match="another one of"):
        mapped.refuse_changed("a")


def test_a_file_that_is_gone_stays_mapped(tmp_path: Path, mapped: MappedFiles) -> None:
    content = mapped["a"][:]
    (tmp_path / "a").unlink()
    mapped.refuse_changed("a")
    assert mapped["a"][:] == content


def test_without_a_digest_in_the_index_sizes_alone_are_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    files = Files(tmp_path)
    mapped = MappedFiles(files)
    mapped.allow_only(files.origin(["a"]))
    (tmp_path / "a").write_bytes(b"xyz")
    os.utime(tmp_path / "a", ns=(1, 1))
    assert mapped["a"][:] == b"xyz"


def test_another_file_in_its_place_is_mapped_anew(tmp_path: Path, mapped: MappedFiles) -> None:
    content = (tmp_path / "a").read_bytes()
    os.truncate(tmp_path / "a", 0)
    (tmp_path / "b").write_bytes(content)
    (tmp_path / "b").rename(tmp_path / "a")
    assert mapped["a"][-1] == 255


def test_a_file_that_is_gone_is_what_it_was_and_one_that_has_grown_is_refused(
    tmp_path: Path, mapped: MappedFiles
) -> None:
    before, content = mapped["a"], (tmp_path / "a").read_bytes()
    (tmp_path / "a").unlink()
    assert mapped["a"] is before
    mapped.close()
    (tmp_path / "a").write_bytes(content)
    assert mapped["a"][-1] == 255
    with (tmp_path / "a").open("ab") as file:
        file.write(b"more")
    refused(mapped, "one of 16388 bytes")


def test_a_file_that_grows_or_shrinks_while_an_index_is_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4 * _PAGE))
    mapped = MappedFiles(Files(tmp_path))
    for nbytes in (_PAGE, 2 * _PAGE):
        before = len(mapped["a"])
        os.truncate(tmp_path / "a", nbytes)
        expected = rf"expected the file that was indexed \({before} bytes\), got one of {nbytes} bytes"
        with pytest.raises(ReadError, match=expected):
            mapped["a"]


class LentFiles(Files):
    """Files that are lent, as remote ones are, and given back."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.given_back: list[str] = []

    def local(self, path: str, facts: FileFacts | None = None) -> LocalFile:
        return LocalFile(super().local(path, facts).path, lambda: self.given_back.append(path))


def test_a_file_is_given_back_once_nobody_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    files = LentFiles(tmp_path)
    mapped = MappedFiles(files)
    data = mapped["a"]
    mapped.close()
    assert (data[:], files.given_back) == (b"abc", [])
    del data
    assert files.given_back == ["a"]


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    mapped = MappedFiles(Files(tmp_path))
    assert [mapped["a"], mapped["a"]] == [b"", b""]


def test_so_many_files_are_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "_MOST_MAPPED", 2)
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    mapped = MappedFiles(Files(tmp_path))
    assert [mapped[name][:] for name in "ab"] == [b"a", b"b"]
    assert ("a" in mapped, "b" in mapped) == (True, True)
    assert mapped["c"][:] == b"c"
    assert [name in mapped for name in "abc"] == [False, False, True]
