"""The webdataset source: every sample of every shard, what cannot be used named, and no shard that has changed."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile

from loader_server.sources.records import webdataset
from loader_server.sources.records.webdataset import WebDatasetSource
from shared.errors import DataError, ReadError
from tests.support.shards import npy, tar_of, write_shard
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport


def spoken(number: int, rate: int = 8000) -> list[tuple[str, bytes]]:
    file = io.BytesIO()
    soundfile.write(file, np.full(80 + number, 0.25, np.float32), rate, format="flac")
    return [(f"s/{number:03}.flac", file.getvalue()), (f"s/{number:03}.txt", f"word {number}".encode())]


def indexed(folder: Path, *shards: list[tuple[str, bytes]], **table: Any) -> tuple[WebDatasetSource, IndexReport]:
    for number, members in enumerate(shards):
        write_shard(folder / f"{number}.tar", members)
    spec = spec_of("webdataset", folder, **{"paths": ["*.tar"], **table})
    report = index_source(spec)
    source = open_source(spec)
    assert isinstance(source, WebDatasetSource)
    return source, report


def test_members_of_one_key_are_a_sample(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, spoken(0) + spoken(1), [], spoken(2))
    found = decoded(source, 2)
    assert (found["audio"].shape, found["audio_rate"], found["text"]) == ((82,), 8000, "word 2")
    assert {key: lengths.tolist() for key, lengths in source.lengths.items()} == {
        "audio": [80, 81, 82],
        "audio_rate": [8000] * 3,
        "text": [6, 6, 6],
    }
    assert [field.per_second for field in source.fields] == [8000]
    assert (report.samples, report.rows, source.parts) == (3, 3, (0, 2))
    assert [source.name(sample) for sample in range(3)] == ["0.tar:s/000", "0.tar:s/001", "2.tar:s/002"]
    assert source.place(1) == (str(tmp_path / "0.tar"), 1)


def test_audio_of_several_rates_has_no_time(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, spoken(0) + spoken(1, rate=16000))
    assert [field.per_second for field in source.fields] == [None]
    assert source.lengths["audio_rate"].tolist() == [8000, 16000]


def test_only_the_members_that_are_asked_for_are_read(tmp_path: Path) -> None:
    first = [("1.npy", npy([[1, 2]])), ("1.cls", b"3"), ("1.jpg", b"x")]
    second = [("2.npy", npy([[4, 5], [6, 7]])), ("2.cls", b"8")]
    source, report = indexed(tmp_path, first + second, members=["npy", "cls"])
    assert (report.samples, report.bad) == (2, ())
    assert decoded(source, 1)["npy"].tolist() == [[4, 5], [6, 7]]
    assert decoded(source, 1)["cls"] == 8
    assert [(field.key, field.dtype, field.shape) for field in source.fields] == [
        ("cls", "int64", ()),
        ("npy", "int64", (None, 2)),
    ]


def test_samples_that_cannot_be_used_are_bad_rows_with_shard_and_number(tmp_path: Path) -> None:
    first = [*spoken(0), ("/abs.flac", b""), *spoken(2)[:1], ("s/003.flac", b"x"), ("s/003.txt", b""), *spoken(4)]
    source, report = indexed(tmp_path, spoken(9), first)
    assert [(row.where, row.line, row.reason) for row in report.bad] == [
        (str(tmp_path / "1.tar"), 1, "unsafe_name"),
        (str(tmp_path / "1.tar"), 2, "missing_member"),
        (str(tmp_path / "1.tar"), 3, "undecodable"),
    ]
    assert report.bad[0].detail == "expected a name inside of the archive, got '/abs.flac'"
    assert report.bad[1].detail == "expected a member .txt, got only flac of 's/002'"
    assert [source.name(sample) for sample in range(source.samples)] == ["0.tar:s/009", "1.tar:s/000", "1.tar:s/004"]


def test_of_a_shard_that_is_cut_short_the_samples_before_are_kept(tmp_path: Path) -> None:
    data = tar_of(spoken(0) + spoken(1))
    (tmp_path / "0.tar").write_bytes(data[: data.rindex(b"word 1") + 2])
    source, report = indexed(tmp_path, paths=["0.tar"])
    assert (source.samples, report.bad_counts) == (1, {"broken_file": 1, "missing_member": 1})
    assert "a member has 6 bytes, but the file ends after 2 of them: nothing from byte" in report.bad[1].detail


def test_shards_of_another_kind_are_refused_before_anything_is_indexed(tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", spoken(0))
    (tmp_path / "1.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(DataError, match=r"1\.tar: expected a tar file that is not compressed"):
        indexed(tmp_path)
    (tmp_path / "1.tar").unlink()
    with pytest.raises(DataError, match=r"\*\.tar: expected members that end in \.png, got none among the first 64"):
        indexed(tmp_path, members=["flac", "png"])
    with pytest.raises(DataError, match=r"expected members such as 000017\.flac, got none"):
        indexed(tmp_path, [("README", b"")])


@pytest.mark.fault(29)
def test_a_shard_that_was_written_into_while_it_is_in_use_is_refused_and_others_are_not(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [("1.txt", b"one"), ("2.txt", b"two")], [("3.txt", b"six")])
    assert [raw_of(source, sample) for sample in (0, 1)] == [b"one", b"two"]
    content, times = (tmp_path / "0.tar").read_bytes(), (tmp_path / "0.tar").stat()
    for other in (content.replace(b"two", b"six"), content.replace(b"2.txt", b"7.txt")):
        (tmp_path / "0.tar").write_bytes(other)
        os.utime(tmp_path / "0.tar", ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(ReadError, match=r"0\.tar: expected the file that was .* got another one of 10240 bytes"):
            raw_of(source, 1)
    assert raw_of(source, 2) == b"six"
    (tmp_path / "0.tar").write_bytes(content)
    assert raw_of(source, 1) == b"two"


@pytest.mark.fault(29)
def test_a_shard_that_is_written_into_while_a_sample_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = indexed(tmp_path, [("1.txt", b"one")])
    content, digest = (tmp_path / "0.tar").read_bytes(), webdataset._digest

    def write_into(*how: object) -> int:
        (tmp_path / "0.tar").write_bytes(content.replace(b"one", b"six"))
        return digest(*how)

    monkeypatch.setattr(webdataset, "_digest", write_into)
    with pytest.raises(ReadError, match="expected the file that was indexed"):
        raw_of(source, 0)


def test_a_shard_with_the_same_headers_and_other_content_is_refused_when_it_is_first_read(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [("1.txt", b"one")], [("1.txt", b"two")])
    (tmp_path / "0.tar").write_bytes(tar_of([("1.txt", b"six")]))
    os.utime(tmp_path / "0.tar", ns=(1, 1))
    with pytest.raises(ReadError, match=r"0\.tar: expected the file that was .* got another one of 10240 bytes"):
        raw_of(source, 0)
    assert raw_of(source, 1) == b"two"


@pytest.mark.fault(29)
def test_a_shard_that_is_cut_refused_and_written_longer_with_other_data_stays_refused(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [("1.txt", b"one")])
    assert raw_of(source, 0) == b"one"
    for content in (tar_of([("1.txt", b"one")])[:1024], tar_of([("1.txt", b"six")]) + bytes(512)):
        (tmp_path / "0.tar").write_bytes(content)
        with pytest.raises(ReadError, match=rf"expected the file that .* \(10240 bytes\), got one of {len(content)} "):
            raw_of(source, 0)


def test_shards_of_other_sizes_are_refused_when_they_are_opened(tmp_path: Path) -> None:
    indexed(tmp_path, spoken(0))
    write_shard(tmp_path / "0.tar", spoken(0) * 20)
    with pytest.raises(DataError, match=r"0\.tar, index .*expected the file that the index was made from"):
        open_source(spec_of("webdataset", tmp_path, paths=["*.tar"]))


def test_it_does_not_matter_how_many_samples_are_looked_at_at_a_time(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [(f"{'x' * (n * 40)}{n}.txt", b"word") for n in range(7)])
    write_shard(tmp_path / "b.tar", [("1.txt", b"word")])
    source = spec_of("webdataset", tmp_path, paths=["."]).make()
    inventory = source.survey()
    pieces = list(inventory.pieces(3))
    assert [(piece.rows, piece.number, piece.row) for piece in pieces] == [(3, 0, 0), (3, 3, 3), (1, 6, 6), (1, 0, 7)]
    found = [source.probe(piece) for piece in pieces]
    assert [row for one in found for row in one.rows] == list(range(inventory.total)) == list(range(8))
    assert [key[-1] for one in found for key in one.strings["key"]] == list("01234561")


def test_identities_tell_samples_apart(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [("1.txt", b"one"), ("2.txt", b"two")])
    known = source.identity(1)
    assert source.identity(0).startswith("0.tar:1, headers ")
    assert known != source.identity(0)
    after, _ = indexed(tmp_path, [("2.txt", b"two"), ("3.txt", b"two")])
    assert after.identity(0) == known
