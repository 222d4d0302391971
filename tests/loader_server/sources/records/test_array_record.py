"""The array_record source: every record a sample, what cannot be used named, and no record that has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.sources.records import array_record_files
from loader_server.sources.records.array_record import ArrayRecordSource
from shared.errors import DataError, ReadError
from tests.support.example_protos import example
from tests.support.records import damage, write_array_records
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loader_server.index.make import IndexReport


def spoken(n: int) -> bytes:
    return example(audio=[float(n)] * (n + 1), label=n, words=f"word {n}")


def indexed(folder: Path, *files: Sequence[bytes], **table: Any) -> tuple[ArrayRecordSource, IndexReport]:
    for number, records in enumerate(files):
        write_array_records(folder / f"{number}.array_record", records)
    spec = spec_of("array_record", folder, **{"paths": ["*.array_record"], **table})
    report = index_source(spec)
    source = open_source(spec)
    assert isinstance(source, ArrayRecordSource)
    return source, report


def test_a_sample_is_a_record_with_each_feature_under_its_key(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, [spoken(0), spoken(1)], [], [spoken(2)])
    assert [(field.key, field.dtype, field.shape) for field in source.fields] == [
        ("audio", "float32", (None,)),
        ("label", "int64", ()),
    ]
    found = decoded(source, 2)
    assert (found["audio"].tolist(), found["label"], found["words"]) == ([2, 2, 2], 2, b"word 2")
    assert {key: lengths.tolist() for key, lengths in source.lengths.items()} == {"audio": [1, 2, 3]}
    assert (report.samples, report.rows, source.parts) == (3, 3, (0, 2))
    assert [source.name(n) for n in range(3)] == ["0.array_record:0", "0.array_record:1", "2.array_record:0"]
    assert source.place(1) == (str(tmp_path / "0.array_record"), 1)


def test_batches_are_gathered_as_samples_are_decoded(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [spoken(n) for n in range(4)], [spoken(n) for n in range(4, 7)])
    samples = np.array([5, 0, 3])
    out = {
        "audio": np.full((3, 8), 7, np.float32),
        "label": np.zeros(3, np.int64),
        "audio_length": np.zeros(3, np.int32),
    }
    assert source.gathers
    source.gather(samples, out)
    assert out["label"].tolist() == samples.tolist()
    assert out["audio_length"].tolist() == [6, 1, 4]
    assert out["audio"].tolist() == [[n] * (n + 1) + [0] * (7 - n) for n in samples.tolist()]


def test_files_are_opened_again_if_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_record_files, "_MOST_OPEN", 2)
    source, _ = indexed(tmp_path, *([spoken(n)] for n in range(4)))
    assert list(source.read([3, 0, 2, 1, 3])) == [spoken(3), spoken(0), spoken(2), spoken(1), spoken(3)]
    assert len(source._opened._known) <= 2


def test_records_that_cannot_be_used_are_bad_rows_with_file_and_number(tmp_path: Path) -> None:
    records = [spoken(0), b"no example", spoken(2), spoken(3), example(label=1), spoken(5)]
    write_array_records(tmp_path / "0.array_record", records)
    damage(tmp_path / "0.array_record", b"word 3")
    features = {"audio": "float32 [any]", "words": "text"}
    source, report = indexed(tmp_path, features=features)
    assert [(row.where, row.line, row.reason) for row in report.bad] == [
        (str(tmp_path / "0.array_record"), 1, "undecodable"),
        (str(tmp_path / "0.array_record"), 3, "corrupted"),
        (str(tmp_path / "0.array_record"), 4, "missing_feature"),
    ]
    assert report.bad[1].detail.startswith("expected a record that fits its checksum, got Corrupted Riegeli")
    assert [source.place(sample)[1] for sample in range(3)] == [0, 2, 5]


def test_a_file_that_is_cut_short_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    whole = write_array_records(tmp_path / "0.array_record", [spoken(0)]).read_bytes()
    for content in (whole[:-9], b"", b"a,b" * 9):
        (tmp_path / "0.array_record").write_bytes(content)
        with pytest.raises(DataError, match=r"0\.array_record: expected a whole ArrayRecord file, got one without"):
            indexed(tmp_path)
    with pytest.raises(DataError, match=r"gone: expected a file that can be read, got No such file"):
        indexed(tmp_path, paths=["gone"])


@pytest.mark.fault(29)
def test_a_record_that_changed_is_refused_when_it_is_read_and_others_are_not(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [spoken(0), spoken(1), spoken(2)])
    write_array_records(tmp_path / "0.array_record", [spoken(0), spoken(3)[: len(spoken(1))], spoken(2)])
    damage(tmp_path / "0.array_record", b"word 2")
    assert raw_of(source, 0) == spoken(0)
    with pytest.raises(ReadError, match=r"0\.array_record, record 1: expected the record that was indexed, got other"):
        raw_of(source, 1)
    with pytest.raises(ReadError, match=r"0\.array_record, record 2: expected a record that fits its checksum"):
        raw_of(source, 2)


def test_a_record_keeps_its_identity_while_others_come_and_go(tmp_path: Path) -> None:
    before = indexed(tmp_path, [spoken(0), spoken(1)])[0]
    known = before.identity(1)
    assert known != before.identity(0)
    assert indexed(tmp_path, [spoken(5), spoken(6), spoken(1)])[0].identity(2) == known


def test_a_file_in_a_store_that_cannot_be_reached_makes_no_bad_row(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [spoken(0), spoken(1)])
    piece = next(iter(source.survey().pieces(2)))

    class Unreachable(dict[str, Any]):
        def __missing__(self, path: str) -> Any:
            raise ReadError(expected="an answer", got="none", where=path, remedy="Try again.")

    source._opened = Unreachable()  # type: ignore[assignment]
    with pytest.raises(ReadError):
        source.probe(piece)
