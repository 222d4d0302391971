"""Mapped files: they stay for as long as somebody reads them, and whoever asks for one that was cut short is refused,
instead of dying of reading it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files.facts import LocalFile
from loader_server.sources.files.opening import Files
from loader_server.sources.records import mapped_files
from loader_server.sources.records.mapped_files import MappedFiles
from shared.errors import ReadError

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.files.facts import FileFacts

_PAGE = 4096


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFiles:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 64)
    mapped = MappedFiles(Files(tmp_path))
    assert len(mapped["a"]) == 4 * _PAGE
    return mapped


def test_a_file_that_was_cut_short_is_refused_until_it_is_back(tmp_path: Path, mapped: MappedFiles) -> None:
    before, content = mapped["a"], (tmp_path / "a").read_bytes()
    os.truncate(tmp_path / "a", _PAGE)
    for _ in range(2):
        with pytest.raises(
            ReadError,
            match=rf"{tmp_path}/a: expected the file that was indexed \(16384 bytes\), got one of 4096 bytes: the file",
        ):
            mapped["a"]
    (tmp_path / "a").write_bytes(content)
    assert mapped["a"] is before
    assert mapped["a"][-1] == 255


def test_another_file_in_its_place_is_mapped_anew(tmp_path: Path, mapped: MappedFiles) -> None:
    content = (tmp_path / "a").read_bytes()
    os.truncate(tmp_path / "a", 0)
    (tmp_path / "b").write_bytes(content)
    (tmp_path / "b").rename(tmp_path / "a")
    assert mapped["a"][-1] == 255


def test_a_file_that_has_grown_or_is_gone_is_what_it_was(tmp_path: Path, mapped: MappedFiles) -> None:
    before = mapped["a"]
    with (tmp_path / "a").open("ab") as file:
        file.write(b"more")
    assert mapped["a"] is before
    (tmp_path / "a").unlink()
    assert mapped["a"] is before


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
