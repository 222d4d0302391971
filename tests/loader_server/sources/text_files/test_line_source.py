"""The lines source: every line at its place, the unusable ones named, and none that has changed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.sources.files.file_facts import HEAD_BYTES, refuse_no_text
from loader_server.sources.text_files import whole_lines
from loader_server.sources.text_files.line_source import LinesSource
from shared.errors import DataError, ReadError
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport


def written(folder: Path, content: bytes, name: str = "a.txt") -> str:
    (folder / name).write_bytes(content)
    return name


def indexed(folder: Path, *contents: bytes, **how: int) -> tuple[LinesSource, IndexReport]:
    paths = [written(folder, content, f"{place}.txt") for place, content in enumerate(contents)]
    spec = spec_of("lines", folder, paths=paths)
    report = index_source(spec, **how)
    source = open_source(spec)
    assert isinstance(source, LinesSource)
    return source, report


def texts(source: LinesSource) -> list[str]:
    return [decoded(source, sample)["text"] for sample in range(source.samples)]


def test_a_sample_is_a_line_and_its_length_is_in_code_points(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, "one\nzwei Bäume\n三つ 🎈".encode())
    assert texts(source) == ["one", "zwei Bäume", "三つ 🎈"]
    assert source.lengths["text"].tolist() == [3, 10, 4]
    assert (report.samples, report.rows, report.bad) == (3, 3, ())


def test_several_files_count_as_one_in_their_order(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, b"a\nb", b"\n", b"c\n", b"")
    assert texts(source) == ["a", "b", "c"]
    assert [source.name(sample) for sample in range(3)] == ["0.txt:1", "0.txt:2", "2.txt:1"]
    assert source.place(2) == (str(tmp_path / "2.txt"), 1)
    assert source.parts == (0, 2)


def test_ends_of_lines_and_a_byte_order_mark_are_no_text(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n\xef\xbb\xbfthree", b"\xef\xbb\xbffour\n")
    assert texts(source) == ["one", "two", "\ufeffthree", "four"]


def test_an_empty_line_before_one_of_windows_is_empty(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, b"\n\xff\none\r")
    assert texts(source) == ["one"]
    assert [(row.line, row.reason) for row in report.bad] == [(1, "empty_line"), (2, "not_utf8")]


def test_lines_that_are_empty_or_no_utf8_are_bad_rows_with_file_and_number(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, b"one\n\ntw\xe9 \n\r\nfive\n", b"\n\xff")
    assert texts(source) == ["one", "five"]
    assert [(row.where, row.line, row.reason) for row in report.bad] == [
        (str(tmp_path / "0.txt"), 2, "empty_line"),
        (str(tmp_path / "0.txt"), 3, "not_utf8"),
        (str(tmp_path / "0.txt"), 4, "empty_line"),
        (str(tmp_path / "1.txt"), 1, "empty_line"),
        (str(tmp_path / "1.txt"), 2, "not_utf8"),
    ]
    assert report.bad[1].detail == "expected UTF-8, got the byte 0xe9 after 2 others"
    assert (report.rows, source.place(1)[1]) == (7, 5)


def may_be_text(content: bytes) -> bool:
    try:
        refuse_no_text(content[:HEAD_BYTES], "")
    except DataError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=40).filter(may_be_text) | st.text("ab\n\r é", max_size=60).map(str.encode),
    rows=st.integers(1, 5),
    block=st.integers(1, 9),
    most=st.integers(1, 30),
)
def test_it_does_not_matter_where_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, rows: int, block: int, most: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with pytest.MonkeyPatch.context() as patch:
        source = spec_of("lines", folder, paths=[written(folder, content)]).make()
        whole = [source.probe(piece) for piece in source.survey().pieces(1000)]
        patch.setattr(whole_lines, "_BLOCK_BYTES", block)
        patch.setattr(whole_lines, "_PIECE_BYTES", most)
        inventory = source.survey()
        pieces = list(inventory.pieces(rows))
        found = [source.probe(piece) for piece in pieces]
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])][: len(pieces)]
    assert sorted(row for one in found for row in (*one.rows, *one.bad)) == list(range(inventory.total))
    assert all(len(one.rows) + len(one.bad) <= rows for one in found)
    assert [row for one in found for row in one.rows] == [row for one in whole for row in one.rows]
    assert {row: bad for one in found for row, bad in one.bad.items()} == {
        row: bad for one in whole for row, bad in one.bad.items()
    }
    for name in ("file", "line", "offset", "bytes", "digest", "length_text"):
        assert [n for one in found for n in one.numbers[name]] == [n for one in whole for n in one.numbers[name]]


def test_a_piece_is_so_many_lines_or_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_lines, "_BLOCK_BYTES", 8)
    monkeypatch.setattr(whole_lines, "_PIECE_BYTES", 16)
    source = spec_of(
        "lines", tmp_path, paths=[written(tmp_path, b"1\n2\n3\n4\n5\n6\n7\n" + b"x" * 50 + b"\n8\n")]
    ).make()
    cut = [(piece.start, piece.stop, piece.line) for piece in source.survey().pieces(4)]
    assert cut == [(0, 8, 1), (8, 14, 5), (14, 67, 8)]


def test_a_file_of_another_size_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    indexed(tmp_path, b"one\ntwo\n")
    written(tmp_path, b"one\ntwo\nthree\n", "0.txt")
    with pytest.raises(
        DataError, match=r"0.txt, index .*made from \(8 bytes\), got another one \(14 bytes\)\. The file"
    ):
        open_source(spec_of("lines", tmp_path, paths=["0.txt"]))


def test_files_are_looked_at_again_when_another_index_is_opened(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, b"one\ntwo\n")
    written(tmp_path, b"one\ntwo\nthree\n", "0.txt")
    source.open(source.indexed)
    with pytest.raises(DataError, match=r"got another one \(14 bytes\)"):
        source.open(replace(source.indexed, origin=list(source.indexed.origin)))


@pytest.mark.fault(29)
def test_a_line_that_changed_is_refused_when_it_is_read_and_others_are_not(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, b"one\ntwo\n")
    written(tmp_path, b"one\ntwa\n", "0.txt")
    assert raw_of(source, 0) == b"one"
    with pytest.raises(
        ReadError, match=r"0.txt, line 2: expected the line that was indexed \(3 bytes\), got other bytes"
    ):
        raw_of(source, 1)
    os.truncate(tmp_path / "0.txt", 2)
    with pytest.raises(ReadError, match=r"0\.txt: expected 3 bytes from byte 0 on, got 2 bytes: the file has changed"):
        raw_of(source, 0)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, b"one\n")
    (tmp_path / "0.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.txt"):
        raw_of(source, 0)
    with pytest.raises(DataError, match=r"0\.txt: expected a file that can be read, got No such file"):
        open_source(spec_of("lines", tmp_path, paths=["0.txt"]))
    with pytest.raises(DataError, match=r"0\.txt: expected a file that can be read, got No such file.*Mend `paths`"):
        spec_of("lines", tmp_path, paths=["0.txt"]).make().survey()


def test_a_line_keeps_its_identity_while_others_come_and_go(tmp_path: Path) -> None:
    before = indexed(tmp_path, b"one\ntwo\nthree\n")[0]
    known = {decoded(before, sample)["text"]: before.identity(sample) for sample in range(3)}
    after = indexed(tmp_path, b"new\nthree\ntwo!\n")[0]
    assert after.identity(1) == known["three"]
    assert known["two"] not in {after.identity(sample) for sample in range(3)}
    assert known["one"].startswith("0.txt, a line of 3 bytes, ")
    assert len(set(known.values())) == 3


@pytest.mark.parametrize("kind", ["lines", "jsonl"])
def test_a_file_that_is_rewritten_while_it_is_indexed_is_named(tmp_path: Path, kind: str) -> None:
    name = written(tmp_path, b'{"a": 1}\n{"a": 2}\n')
    source = spec_of(kind, tmp_path, paths=[name]).make()
    (piece,) = source.survey().pieces(10)
    written(tmp_path, b'{"a": 1000000000}\n')
    with pytest.raises(
        ReadError, match=r"a\.txt: expected 2 lines in bytes 0 to 18, got 1: the file has changed since"
    ):
        source.probe(piece)
