"""Files of sources: which are meant, what they are, their bytes, and what is wrong with them."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loader_server.sources.files import opening as module
from loader_server.sources.files.opening import Files
from shared.errors import DataError, ReadError


def open_files(folder: Path) -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(link.readlink()).startswith(str(folder))
    return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    for name in ("b/2.tar", "b/10.tar", "b/c/3.tar", "b/_SUCCESS", "b/.3.tar.part", "a.txt", "b/_old/9.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(name.encode() * 3)
    return Files(tmp_path)


def test_paths_patterns_and_folders_are_files_in_their_order(files: Files, tmp_path: Path) -> None:
    assert files.found(["gone.txt", "a.txt"]) == ["gone.txt", "a.txt"]
    assert files.found(["b/*.tar", "a.txt"]) == ["b/10.tar", "b/2.tar", "a.txt"]
    assert files.found(["b"], ".tar") == ["b/10.tar", "b/2.tar", "b/c/3.tar"]
    assert files.found([str(tmp_path / "b/**/*.tar")])[0] == str(tmp_path / "b/10.tar")
    assert len(files.found(["b"])) == 3
    (tmp_path / "x[1].txt").touch()
    assert files.found(["x[1].txt"]) == ["x[1].txt"]


def test_braces_stand_for_files_and_patterns_unless_a_file_is_called_so(files: Files, tmp_path: Path) -> None:
    for name in ("a-00.tar", "a-01.tar", "x.tar", "{x,y}.tar"):
        (tmp_path / name).touch()
    assert files.found(["a-{00..02}.tar"]) == ["a-00.tar", "a-01.tar", "a-02.tar"]
    assert files.found(["{a,x}*.tar"]) == ["a-00.tar", "a-01.tar", "x.tar"]
    assert files.found(["{x,y}.tar"]) == ["{x,y}.tar"]
    urls = ["http://127.0.0.1:1/a-1.tar", "http://127.0.0.1:1/a-2.tar"]
    assert files.found(["http://127.0.0.1:1/a-{1..2}.tar"]) == urls


def test_no_file_is_an_error_that_says_what_was_looked_for(files: Files, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected at least one file, got none\. Write paths"):
        files.found([])
    with pytest.raises(DataError, match=r"b/\*\.zip: expected files, got none\. Mend `paths`"):
        files.found(["b/*.zip"])
    with pytest.raises(DataError, match=r"b: expected files that end in \.a or \.b, got none"):
        files.found(["b"], ".a", ".b")


@pytest.mark.parametrize("path", ["a\0b", "a" * 5000])
def test_a_path_that_no_file_can_have_is_an_absent_file(files: Files, path: str) -> None:
    assert files.found([path]) == [path]
    with pytest.raises(
        DataError, match=r"expected a file that can be read, got (embedded null byte|File name too long)"
    ):
        files.facts(path)


def test_facts_are_size_and_time(files: Files, tmp_path: Path) -> None:
    os.utime(tmp_path / "a.txt", ns=(5, 7))
    assert files.origin(["a.txt"]) == [{"path": "a.txt", "bytes": 15, "version": 7}]
    with pytest.raises(
        DataError, match=r"c\.txt: expected a file that can be read, got No such file or directory\. Mend"
    ):
        files.facts("c.txt")
    with pytest.raises(DataError, match=r"b: expected a file that can be read, got a folder"):
        files.facts("b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: expected a file that can be read, got something else"):
        files.facts("pipe")
    with pytest.raises(
        DataError, match=r"c\.txt: expected a file that can be read, got No such file or directory\. Mend"
    ):
        files.open("c.txt")


def test_a_copy_is_the_same_file_and_one_of_another_size_is_refused(files: Files, tmp_path: Path) -> None:
    origin = files.origin(["b/2.tar", "a.txt"])
    os.utime(tmp_path / "a.txt", ns=(5, 7))
    files.refuse_changed(origin, Path("index"))
    (tmp_path / "a.txt").write_bytes(b"more")
    with pytest.raises(
        DataError, match=r"a\.txt, index index: expected the file that the index was made from \(15 bytes"
    ):
        files.refuse_changed(origin, Path("index"))


def test_bytes_come_from_anywhere_and_whole_or_not_at_all(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, nbytes, offset: pread(handle, min(nbytes, 3), offset))
    assert files.read("a.txt", 6, 8) == b".txta.tx"
    assert files.read("a.txt", 15, 0) == b""
    with pytest.raises(ReadError, match=r"a\.txt: expected 9 bytes from byte 8 on, got 7 bytes: the file has changed"):
        files.read("a.txt", 8, 9)
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        files.read("gone.txt", 0, 1)
    assert files.whole("a.txt", files.facts("a.txt")) == b"a.txt" * 3
    with files.open("a.txt") as file:
        assert file.seek(4) == 4
        assert file.read(4) == b"ta.t"
    with files.local("a.txt") as path:
        assert path == tmp_path / "a.txt"


def test_many_pieces_are_read_as_each_would_be(files: Files, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"0123456789")
    pieces = [("b.txt", 2, 3), ("a.txt", 0, 5), ("b.txt", 9, 1), ("b.txt", 10, 0), ("a.txt", 6, 2)]
    for _ in range(2):
        assert list(files.read_all(*zip(*pieces, strict=True))) == [b"234", b"a.txt", b"9", b"", b".t"]
    read = files.read_all(["b.txt", "b.txt", "b.txt"], [0, 5, 0], [1, 6, 1])
    assert next(read) == b"0"
    with pytest.raises(ReadError, match="expected 6 bytes from byte 5 on, got 5 bytes"):
        next(read)
    with pytest.raises(FileNotFoundError):
        next(files.read_all(["gone.txt"], [0], [1]))


def test_many_files_are_read_by_many_threads_with_few_of_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 3)
    for n in range(10):
        (tmp_path / f"{n}").write_text(f"{n}")
    files, most = Files(tmp_path), []

    def read(n: int) -> int:
        got = int(files.read(f"{n % 10}", 0, 1))
        most.append(open_files(tmp_path))
        return got

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(200))) == [n % 10 for n in range(200)]
    assert 3 <= max(most) <= 3 + 4 + 4, "those kept, one that each thread reads, one that each looks at"
    files.close()
    assert open_files(tmp_path) == 0
    assert files.read("4", 0, 1) == b"4"


def test_a_file_is_opened_once_for_many_reads(files: Files, tmp_path: Path) -> None:
    assert files.read("a.txt", 0, 5) == b"a.txt"
    (tmp_path / "a.txt").unlink()
    assert files.read("a.txt", 5, 5) == b"a.txt"


def test_a_file_of_ones_own_is_the_indexed_one_or_an_error(files: Files, tmp_path: Path) -> None:
    facts = files.facts("a.txt")
    os.utime(tmp_path / "a.txt", ns=(5, 7))
    with pytest.raises(
        ReadError, match=r"a\.txt: expected the file that was indexed \(15 bytes\), got one of 15 bytes: "
    ):
        files.whole("a.txt", facts)
    (tmp_path / "a.txt").write_bytes(b"more")
    with pytest.raises(ReadError, match=r"got one of 4 bytes: the file has changed since\. Put the file back"):
        files.whole("a.txt", facts)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FileNotFoundError):
        files.whole("a.txt", facts)
