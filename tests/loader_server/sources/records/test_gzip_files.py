"""Compressed files of records: the same samples as the unpacked ones, in any order, and nothing that has changed."""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.conformance.case import SourceCase
from loader_server.conformance.checks import check_source
from loader_server.index.folder import open_index
from loader_server.sources.files.file_facts import CacheSettings
from loader_server.sources.records import gzip_files, gzip_index
from loader_server.sources.records.gzip_files import is_gzip
from loader_server.sources.records.tfrecord import TFRecordSource
from shared.errors import DataError, ReadError, SettingsError
from tests.support.example_protos import example
from tests.support.forked_pools import forked_pools
from tests.support.records import record
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from loader_server.index.make import IndexReport

DRAW = np.random.default_rng(5)
#: As much as makes several blocks of the spacing below.
RECORDS = [example(audio=DRAW.normal(size=n % 90 + 1), label=n) for n in range(1500)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_index, "_LEAST_SPACING", 2**16)


def write_packed(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(gzip.compress(b"".join(map(record, records)), mtime=0))
    return path


def opened(folder: Path, **how: Any) -> tuple[TFRecordSource, IndexReport]:
    spec = spec_of("tfrecord", folder, paths=["*.gz"])
    report = index_source(spec, **how)
    source = open_source(spec)
    assert isinstance(source, TFRecordSource)
    return source, report


def unpackings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the blocks that are unpacked from now on."""
    numbers, unpack = list[int](), gzip_files.UnpackedFile.unpack

    def counted(self: gzip_files.UnpackedFile, number: int, handle: int) -> None:
        numbers.append(number)
        unpack(self, number, handle)

    monkeypatch.setattr(gzip_files.UnpackedFile, "unpack", counted)
    return numbers


def test_a_compressed_file_gives_the_samples_of_the_plain_one(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    source, report = opened(tmp_path)
    (tmp_path / "plain.tfrecord").write_bytes(b"".join(map(record, RECORDS)))
    plain_spec = spec_of("tfrecord", tmp_path, paths=["plain.tfrecord"])
    index_source(plain_spec, tmp_path / "plain index")
    plain = open_source(plain_spec, tmp_path / "plain index")
    assert (report.samples, report.bad_counts) == (len(RECORDS), {})
    order = random.Random(3).sample(range(len(RECORDS)), len(RECORDS))
    assert [*source.read(order)] == [RECORDS[sample] for sample in order]
    for name, column in plain.indexed.numbers.items():
        assert (source.indexed.numbers[name] == column).all(), name
    for sample in order[:50]:
        found, expected = decoded(source, sample), decoded(plain, sample)
        assert found["audio"].tobytes() == expected["audio"].tobytes()
        assert found["label"] == expected["label"]


@pytest.mark.parametrize(("processes", "piece_rows"), [(1, 7), (2, 100), (1, 4096)])
def test_the_index_does_not_depend_on_how_it_is_made(tmp_path: Path, processes: int, piece_rows: int) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    write_packed(tmp_path / "b.gz", RECORDS[:10])
    _, report = opened(tmp_path, processes=processes, piece_rows=piece_rows)
    _, usual = opened(tmp_path)
    assert (report.samples, report.fingerprint) == (len(RECORDS) + 10, usual.fingerprint)


def test_whole_batches_are_gathered(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    source, _ = opened(tmp_path)
    assert source.gathers
    assert source.reads_ahead
    samples = np.array([700, 3, 1499, 80])
    assert source.unread(samples).tolist() == sorted(samples.tolist())
    [*source.read([700])]
    assert source.unread(np.array([700, 701, 3, 4, 1499])).tolist() == [3, 1499]  # one of each block that is not open
    [*source.read([3, 80, 1499])]
    assert source.unread(samples).tolist() == []
    out = {"audio": np.empty((4, 90), np.float32), "audio_length": np.empty(4, np.int32), "label": np.empty(4, int)}
    source.gather(samples, out)
    for row, sample in enumerate(samples.tolist()):
        audio = decoded(source, sample)["audio"]
        assert out["audio"][row].tolist() == [*audio.tolist(), *[0] * (90 - len(audio))]
    assert out["label"].tolist() == samples.tolist()


def test_a_block_is_unpacked_once_for_all_processes_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    numbers = unpackings(monkeypatch)
    source, _ = opened(tmp_path)
    assert numbers == []  # nothing is kept while indexing
    order = random.Random(4).sample(range(len(RECORDS)), len(RECORDS))
    monkeypatch.setattr(gzip_files, "_MOST_OPEN", 2)
    [*source.read(order)]
    assert len(numbers) == len(set(numbers)) == 5
    source.close()
    [*open_source(spec_of("tfrecord", tmp_path, paths=["*.gz"])).read(order)]
    assert len(numbers) == len(set(numbers))


def test_blocks_are_unpacked_again_once_the_cache_has_evicted_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    source, _ = opened(tmp_path)
    source.files.cache = CacheSettings(folder=tmp_path / "cache", bytes=200_000)
    monkeypatch.setattr(gzip_files, "_MOST_OPEN", 1)
    numbers = unpackings(monkeypatch)
    order = [sample for _ in range(3) for sample in range(0, len(RECORDS), 100)]
    assert [*source.read(order)] == [RECORDS[sample] for sample in order]
    assert len(numbers) > len(set(numbers))
    held = sum(path.stat().st_size for path in (tmp_path / "cache" / "entries").rglob("*-mapped"))
    assert held <= 200_000


def test_a_cache_that_is_too_small_for_a_block_is_refused(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    source, _ = opened(tmp_path)
    source.files.cache = CacheSettings(folder=tmp_path / "cache", bytes=1000)
    with pytest.raises(ReadError, match=r"expected a cache of at least .* bytes"):
        raw_of(source, 0)


@pytest.mark.parametrize("lost", [1, 30_000])
def test_of_a_file_cut_short_the_records_before_are_kept_and_one_row_is_bad(tmp_path: Path, lost: int) -> None:
    packed = write_packed(tmp_path / "a.gz", RECORDS).read_bytes()
    (tmp_path / "a.gz").write_bytes(packed[:-lost])
    source, report = opened(tmp_path)
    (bad,) = report.bad
    assert (bad.reason, bad.line, bad.where) == ("broken_file", source.samples, str(tmp_path / "a.gz"))
    assert bad.detail.startswith("the compressed file ends")
    assert source.samples == len(RECORDS) if lost == 1 else 0 < source.samples < len(RECORDS)
    assert [*source.read(range(source.samples))] == RECORDS[: source.samples]


def test_of_a_file_with_damage_inside_the_records_before_are_kept(tmp_path: Path) -> None:
    packed = bytearray(write_packed(tmp_path / "a.gz", RECORDS).read_bytes())
    middle = len(packed) // 2
    packed[middle : middle + 60] = b"\xff" * 60
    (tmp_path / "a.gz").write_bytes(packed)
    source, report = opened(tmp_path)
    # What is unpacked from damaged bytes may still look like records for a while.
    assert report.bad[-1].reason == "broken_file"
    assert 100 < source.samples < len(RECORDS)
    assert [*source.read(range(100))] == RECORDS[:100]


def test_a_wrong_checksum_of_all_is_a_bad_row_behind_the_records(tmp_path: Path) -> None:
    packed = bytearray(write_packed(tmp_path / "a.gz", RECORDS).read_bytes())
    packed[-8] ^= 1
    (tmp_path / "a.gz").write_bytes(packed)
    source, report = opened(tmp_path)
    assert source.samples == len(RECORDS)
    assert [(bad.reason, bad.line) for bad in report.bad] == [("broken_file", len(RECORDS))]
    assert "checksum of the compressed file" in report.bad[0].detail


def test_a_damaged_header_inside_is_a_bad_row(tmp_path: Path) -> None:
    content = b"".join(map(record, RECORDS[:5])) + b"garbage" * 10_000
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    source, report = opened(tmp_path)
    assert source.samples == 5
    assert [(bad.reason, bad.line) for bad in report.bad] == [("broken_file", 5)]
    assert report.bad[0].detail.startswith("the checksum of its size does not match: nothing from byte ")


def test_files_without_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a text, and no records at all"))
    with pytest.raises(DataError, match=r"a\.gz: expected a TFRecord file, got another one: of its first record"):
        opened(tmp_path)
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"compressed as it were")
    with pytest.raises(DataError, match=r"a\.gz: expected .*compressed by GZIP, got one that cannot be unpacked"):
        opened(tmp_path)
    (tmp_path / "a.gz").write_bytes(zlib.compress(record(RECORDS[0])))
    with pytest.raises(DataError, match=r"a\.gz: expected .*, got one that is compressed by .*ZLIB"):
        opened(tmp_path)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="no records at all"):
        opened(tmp_path)


def test_a_record_of_the_size_that_gzip_begins_with_is_no_compressed_file() -> None:
    size = int.from_bytes(b"\x1f\x8b\x08", "little")
    assert not is_gzip(record(bytes(size)))
    assert is_gzip(gzip.compress(record(bytes(size))))


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    packed = write_packed(tmp_path / "a.gz", RECORDS).read_bytes()
    source, _ = opened(tmp_path)
    raw_of(source, 0)
    with (tmp_path / "a.gz").open("r+b") as file:  # in place, while it is mapped, and with its size kept
        file.seek(len(packed) - 2_000)
        file.write(bytes(100))
    assert raw_of(source, 0) == RECORDS[0]  # the block was unpacked before
    with pytest.raises(ReadError, match=r"a\.gz.*expected the file that was indexed"):
        raw_of(source, len(RECORDS) - 1)
    with pytest.raises(ReadError, match=r"a\.gz.*expected the file that was indexed"):
        raw_of(open_source(spec_of("tfrecord", tmp_path, paths=["*.gz"])), 0)
    (tmp_path / "a.gz").write_bytes(packed)
    assert raw_of(source, len(RECORDS) - 1) == RECORDS[-1]  # what was refused was not kept
    (tmp_path / "a.gz").write_bytes(packed[:-1])
    with pytest.raises(ReadError, match="expected the file that was indexed"):
        raw_of(source, 0)


def test_what_is_kept_beside_the_index_goes_with_the_file(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.gz", RECORDS)
    _, report = opened(tmp_path)
    kept = report.folder / "kept"
    before = {path.name: path.stat().st_ino for path in kept.iterdir()}
    assert sorted(Path(name).suffix for name in before) == [".gzidx", ".json", ".starts"]
    opened(tmp_path, piece_rows=50)
    assert {path.name: path.stat().st_ino for path in kept.iterdir()} == before
    write_packed(tmp_path / "a.gz", RECORDS[:-1])
    source, _ = opened(tmp_path)
    assert len([*kept.iterdir()]) == 3
    assert not {path.name for path in kept.iterdir()} & set(before)
    for path in kept.iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"a\.gz, index .*places to unpack the file from.*run loader-server index"):
        raw_of(open_source(spec_of("tfrecord", tmp_path, paths=["*.gz"])), 0)
    index_source(spec_of("tfrecord", tmp_path, paths=["*.gz"]))
    source.open(open_index(report.folder).indexed)
    assert raw_of(source, 0) == RECORDS[0]


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packed(tmp_path / "a.gz", RECORDS[:3])
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(SettingsError, match=r"a\.gz: expected indexed-gzip, .*Run `pip install .*\[gzip\]"):
        opened(tmp_path)
    monkeypatch.undo()
    opened(tmp_path)
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)  # only making the index needs it
    assert raw_of(open_source(spec_of("tfrecord", tmp_path, paths=["*.gz"])), 2) == RECORDS[2]


def test_a_source_without_an_index_has_no_place_for_it(tmp_path: Path) -> None:
    """Such as one of noises."""
    write_packed(tmp_path / "a.gz", RECORDS[:3])
    with pytest.raises(DataError, match=r"nothing beside an index.*compressed.*Unpack them \(gunzip\)"):
        spec_of("tfrecord", tmp_path, paths=["*.gz"]).make().survey()


def test_the_source_of_compressed_files_conforms(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.gz", RECORDS[:300])
    write_packed(tmp_path / "b.gz", [*RECORDS[300:310], b"no example"])

    def change() -> None:
        write_packed(tmp_path / "a.gz", RECORDS[1:301])

    case = SourceCase(spec=spec_of("tfrecord", tmp_path, paths=["*.gz"]), change=change, bad={"undecodable": 1})
    with forked_pools():
        results = check_source(case, tmp_path / "examined")
    assert [result for result in results if result.passed is False] == []
    assert sum(result.passed is True for result in results) > 10


def test_plain_and_compressed_files_may_be_mixed(tmp_path: Path) -> None:
    write_packed(tmp_path / "a.gz", RECORDS[:20])
    (tmp_path / "b.gz").write_bytes(b"".join(map(record, RECORDS[20:40])))
    source, _ = opened(tmp_path)
    assert source.parts == (0, 20)
    out = {"label": np.empty(40, int)}
    source.gather(np.arange(40), out)
    assert out["label"].tolist() == [*range(40)]
