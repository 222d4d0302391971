"""The parallel source: the same line of each file, and no file that has other lines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.sources.files import seen
from loader_server.sources.files.file_facts import CacheSettings
from loader_server.sources.text_files import whole_lines
from shared.errors import DataError, ReadError, SettingsError
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of
from tests.support.stores import plain_server

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport
    from loader_server.sources.source import Source


def indexed(folder: Path, **contents: bytes) -> tuple[Source, IndexReport]:
    for key, content in contents.items():
        (folder / f"a.{key}").write_bytes(content)
    spec = spec_of("parallel", folder, paths={key: f"a.{key}" for key in contents})
    report = index_source(spec)
    return open_source(spec), report


def test_a_sample_is_the_same_line_of_each_file(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, source=b"\xef\xbb\xbfone\ntwo\n", target="eins\r\nzwö".encode(), tag=b"N\nN\n")
    assert decoded(source, 1) == {"source": "two", "target": "zwö", "tag": "N"}
    assert decoded(source, 0) == {"source": "one", "target": "eins", "tag": "N"}
    assert {key: column.tolist() for key, column in source.lengths.items()} == {
        "source": [3, 3],
        "target": [4, 3],
        "tag": [1, 1],
    }
    assert (report.samples, report.rows, report.bad) == (2, 2, ())
    assert source.name(1) == "a.source, a.tag, a.target:2"
    assert source.place(1) == (str(tmp_path / "a.source"), 2)


def test_a_line_that_is_bad_in_one_file_makes_the_row_bad(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, en=b"1\n\n3\n4\n5\n", ve=b"a\nb\n\xff\n\nd\n", xx=b"A\nB\nC\n\nD\n")
    assert [decoded(source, sample)["ve"] for sample in range(source.samples)] == ["a", "d"]
    assert [(row.where, row.line, row.reason) for row in report.bad] == [
        (str(tmp_path / "a.en"), 2, "empty_line"),
        (str(tmp_path / "a.ve"), 3, "not_utf8"),
        (str(tmp_path / "a.ve"), 4, "empty_line"),
    ]


def test_files_of_different_length_are_refused_with_counts_and_the_one_that_ends_first(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        indexed(tmp_path, de=b"1\n2\n3", en=b"1\n2\n", fr=b"1\n2\n3\n")
    assert str(caught.value) == (
        f"{tmp_path}/a.en: expected equally many lines in each of the parallel files, got 3 in {tmp_path}/a.de, "
        f"2 in {tmp_path}/a.en, 3 in {tmp_path}/a.fr. It ends first, after line 2: make the lines of all files match."
    )


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n")
    spec = spec_of("parallel", tmp_path, paths={"en": "a.en", "de": "a.de"})
    with pytest.raises(DataError, match=r"a\.de: expected a file that can be read, got No such file"):
        spec.make().survey()


def test_paths_are_a_table(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"paths: expected a table such as .*, got \['a', 'b'\]\. It means: text"):
        spec_of("parallel", tmp_path, paths=["a", "b"])


def test_a_file_that_loses_lines_while_it_is_indexed_is_named(tmp_path: Path) -> None:
    for key in ("en", "de"):
        (tmp_path / f"a.{key}").write_text("one\ntwo\n")
    pieces = spec_of("parallel", tmp_path, paths={"en": "a.en", "de": "a.de"}).make().survey().pieces
    (tmp_path / "a.en").write_text("one\n")
    with pytest.raises(
        ReadError, match=r"a\.en: expected 2 lines from byte 0 on, got fewer: the file has changed since"
    ):
        list(pieces(2))


@pytest.mark.parametrize("content", [b"1\n2\n3\n4\n", b"one\ntwo", b"one two\n"])
def test_a_file_that_is_rewritten_while_it_is_indexed_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    source = spec_of("parallel", tmp_path, paths={"en": "a.en", "de": "a.de"}).make()
    (piece,) = source.survey().pieces(10)
    (tmp_path / "a.en").write_bytes(content)
    with pytest.raises(ReadError, match=r"a\.en: expected .*: the file has changed since"):
        source.probe(piece)


def test_a_row_that_changed_is_refused_when_it_is_read(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, source=b"one\ntwo\n", target=b"eins\nzwei\n")
    (tmp_path / "a.target").write_bytes(b"eins\nzwo!\n")
    assert raw_of(source, 0) == b"one\neins"
    with pytest.raises(ReadError, match=r"a\.source, .*a\.target, line 2: expected the lines that were indexed, got"):
        raw_of(source, 1)
    (tmp_path / "a.target").write_bytes(b"eins\n")
    with pytest.raises(DataError, match=r"a\.target, index .*made from \(10 bytes\), got another one \(5 bytes\)"):
        open_source(spec_of("parallel", tmp_path, paths={"source": "a.source", "target": "a.target"}))


def test_small_files_are_held_in_memory_once_all_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = indexed(tmp_path, source=b"one\ntwo\n", target=b"eins\nzwei\n")
    assert [*source.read([1, 0])] == [b"two\nzwei", b"one\neins"]
    assert not source.reads_at_once, "they were written a moment ago"
    monkeypatch.setattr(seen, "_SETTLED_NS", -(10**9))
    assert [*source.read([1, 0])] == [b"two\nzwei", b"one\neins"]
    assert source.reads_at_once
    monkeypatch.setattr(source.files, "read_all", lambda *_: pytest.fail("read from the disk"))
    assert [*source.read([0, 1])] == [b"one\neins", b"two\nzwei"]
    monkeypatch.undo()
    (tmp_path / "a.target").write_bytes(b"eins\nzwo!\n")
    with pytest.raises(ReadError, match="line 2: expected the lines that were indexed"):
        list(source.read([1]))
    assert not source.reads_at_once
    source.close()


def test_a_row_keeps_its_identity_while_others_come_and_go(tmp_path: Path) -> None:
    before = indexed(tmp_path, source=b"one\ntwo\n", target=b"eins\nzwei\n")[0]
    known = [before.identity(sample) for sample in range(2)]
    after = indexed(tmp_path, source=b"two\none\n", target=b"zwei\nein \n")[0]
    assert after.identity(0) == known[1]
    assert after.identity(1) not in known


def test_lines_of_all_files_are_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("data", "job"):
        (tmp_path / folder).mkdir()
    (tmp_path / "data" / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "data" / "a.de").write_text("eins\nzwei\ndrei\n")
    with plain_server(tmp_path / "data", ranges=True) as server:
        names = {key: f"http://{server}/a.{key}" for key in ("de", "en")}
        spec = replace(
            spec_of("parallel", tmp_path / "job", paths=names),
            cache=CacheSettings(folder=tmp_path / "cache", bytes=10**9),
        )
        index_source(spec)
        source, told = open_source(spec), list[tuple[str, int, int]]()
        monkeypatch.setattr(source.files, "expect", told.extend)
        source.expect(np.array([2, 0]))
        assert sorted(told) == [
            *((names["de"], 0, 4), (names["de"], 10, 4)),
            *((names["en"], 0, 3), (names["en"], 8, 5)),
        ]
        assert raw_of(source, 2) == b"drei\nthree"
        source.close()


lines_of_two = st.lists(st.tuples(st.text("aé\r ", max_size=9), st.text("b三", max_size=3)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(rows=lines_of_two, ended=st.tuples(st.booleans(), st.booleans()), cut=st.integers(1, 5), block=st.integers(1, 9))
def test_it_does_not_matter_where_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    ended: tuple[bool, bool],
    cut: int,
    block: int,
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for key, texts, end in zip("ab", zip(*rows, strict=True), ended, strict=True):
        content = "\n".join(texts) + ("\n" if end or not texts[-1] else "")
        (folder / key).write_bytes(content.encode())
    source = spec_of("parallel", folder, paths={"a": "a", "b": "b"}).make()
    (whole,) = [source.probe(piece) for piece in source.survey().pieces(1000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_lines, "_BLOCK_BYTES", block)
        inventory = source.survey()
        found = [source.probe(piece) for piece in inventory.pieces(cut)]
    assert inventory.total == len(rows)
    assert [row for one in found for row in one.rows] == list(whole.rows)
    assert {row: bad for one in found for row, bad in one.bad.items()} == whole.bad
    for name, column in whole.numbers.items():
        assert [n for one in found for n in one.numbers[name]] == list(column)
    good = [n for n, (a, b) in enumerate(rows) if a.removesuffix("\r") and b]
    assert list(whole.rows) == good
