"""Small files in memory: held once they can be trusted, never used after a change."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from loader_server.sources.files import held_files, seen
from loader_server.sources.files.held_files import HeldFiles
from loader_server.sources.files.opening import Files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**9))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 10)
    return Files(tmp_path)


def held(files: Files, *names: str) -> HeldFiles:
    return HeldFiles(files, files.origin(names))


@pytest.mark.usefixtures("settled")
def test_a_file_is_read_once_and_then_held(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = held(files, "a", "b")
    assert not small.has_all
    assert small.contents(["a"]) == {"a": b"a" * 10}
    assert not small.has_all, "b was not asked for yet"
    assert small.contents(["b", "a"]) == {"a": b"a" * 10, "b": b"b" * 10}
    assert small.has_all
    with monkeypatch.context() as patched:
        patched.setattr(held_files, "bytes_at", lambda *_: pytest.fail("read again"))
        assert small.contents(["a", "b"]) == {"a": b"a" * 10, "b": b"b" * 10}
    (tmp_path / "b").unlink()
    for _ in range(2):
        assert small.contents(["a", "b"]) == {"a": b"a" * 10, "b": b"b" * 10}, "one that is gone has its bytes"


@pytest.mark.usefixtures("settled")
def test_one_that_was_only_touched_is_compared_until_its_status_tells(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, read = held(files, "a"), []
    assert small.contents(["a"]) is not None
    os.utime(tmp_path / "a")
    monkeypatch.setattr(held_files, "bytes_at", lambda *where: read.append(where) or b"a" * 10)
    monkeypatch.setattr(seen, "_SETTLED_NS", 10**12)
    for _ in range(2):
        assert small.contents(["a"]) == {"a": b"a" * 10}
    assert len(read) == 2
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**9))
    for _ in range(2):
        assert small.contents(["a"]) == {"a": b"a" * 10}
    assert len(read) == 3


@pytest.mark.usefixtures("settled")
def test_none_is_used_once_any_has_changed(files: Files, tmp_path: Path) -> None:
    small = held(files, "a", "b")
    assert small.contents(["a", "b"]) is not None
    status = (tmp_path / "a").stat()
    (tmp_path / "a").write_bytes(b"c" * 10)
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert small.contents(["a", "b"]) is None
    assert small.contents(["b"]) is None
    assert not small.has_all


def test_one_that_was_just_written_is_not_held_yet(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    small = held(files, "a")
    assert small.contents(["a"]) is None
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**9))
    assert small.contents(["a"]) == {"a": b"a" * 10}


@pytest.mark.usefixtures("settled")
def test_one_of_another_size_than_the_indexed_one_is_not_held(files: Files, tmp_path: Path) -> None:
    small = held(files, "a")
    (tmp_path / "a").write_bytes(b"a" * 11)
    assert small.contents(["a"]) is None


@pytest.mark.usefixtures("settled")
def test_one_that_changes_while_it_is_read_is_not_held(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_meanwhile(*_: int) -> bytes:
        (tmp_path / "a").write_bytes(b"c" * 10)
        return b"a" * 10

    small = held(files, "a")
    monkeypatch.setattr(held_files, "bytes_at", written_meanwhile)
    assert small.contents(["a"]) is None


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(("most_bytes", "most_files"), [(19, 64), (20, 1)])
def test_none_is_held_if_they_are_too_many_or_too_large_together(
    files: Files, monkeypatch: pytest.MonkeyPatch, most_bytes: int, most_files: int
) -> None:
    monkeypatch.setattr(held_files, "_MOST_BYTES", most_bytes)
    monkeypatch.setattr(held_files, "_MOST_FILES", most_files)
    large = held(files, "a", "b")
    assert large.contents(["a"]) is None
    assert not large.has_all
    assert held(files, "a").contents(["a"]) is not None


@pytest.mark.usefixtures("settled")
def test_remote_files_and_files_that_are_gone_are_not_held(files: Files, tmp_path: Path) -> None:
    remote = HeldFiles(files, [{"path": "a", "bytes": 10}, {"path": "s3://bucket/b", "bytes": 10}])
    assert remote.contents(["a"]) is None
    gone = held(files, "a")
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        gone.contents(["a"])
    assert HeldFiles(files, []).has_all is False


@pytest.mark.usefixtures("settled")
def test_what_was_let_go_is_read_anew(files: Files) -> None:
    small = held(files, "a")
    assert small.contents(["a"]) is not None
    small.close()
    assert not small.has_all
    assert small.contents(["a"]) == {"a": b"a" * 10}
    assert small.has_all
