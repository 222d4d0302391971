"""The tfrecord source: every record a sample, what cannot be used named, and no record that has changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.records import file_records, tfrecord
from loader_server.sources.records.tfrecord import TFRecordSource
from loader_server.stream import Stream
from shared.errors import DataError, ReadError, SettingsError
from tests.support.example_protos import SequenceExample, example
from tests.support.records import record, write_records
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loader_server.index.make import IndexReport

GOLDEN = Path(__file__).parents[3] / "support" / "golden"


def spoken(n: int) -> bytes:
    return example(audio=[float(n)] * (n + 1), label=n, words="x" * (n % 3 + 1))


def indexed(folder: Path, *files: Sequence[bytes], **table: Any) -> tuple[TFRecordSource, IndexReport]:
    for number, records in enumerate(files):
        write_records(folder / f"{number}.tfrecord", records)
    spec = spec_of("tfrecord", folder, **{"paths": ["*.tfrecord"], **table})
    report = index_source(spec)
    source = open_source(spec)
    assert isinstance(source, TFRecordSource)
    return source, report


def test_a_sample_is_a_record_with_each_feature_under_its_key(tmp_path: Path) -> None:
    source, report = indexed(tmp_path, [spoken(0), spoken(1)], [], [spoken(2)])
    assert [field.key for field in source.fields] == ["audio", "label"]
    assert (source.fields[0].shape, source.fields[0].dtype, source.fields[1].shape) == ((None,), "float32", ())
    found = decoded(source, 2)
    assert found.keys() == {"audio", "label", "words"}
    assert found["audio"].tolist() == [2, 2, 2]
    assert (found["label"], found["words"]) == (2, b"xxx")
    assert {key: lengths.tolist() for key, lengths in source.lengths.items()} == {"audio": [1, 2, 3]}
    assert (report.samples, report.rows, source.parts) == (3, 3, (0, 2))
    assert [source.name(sample) for sample in range(3)] == ["0.tfrecord:0", "0.tfrecord:1", "2.tfrecord:0"]
    assert source.place(1) == (str(tmp_path / "0.tfrecord"), 1)


def test_features_may_be_named_as_if_they_lay_in_folders(tmp_path: Path) -> None:
    """As object detection's are."""
    records = [example(**{"image/height": n, "image/object/bbox": [0.5] * n, "100%": n}) for n in (2, 3)]
    source, _ = indexed(tmp_path, records)
    assert {key: value.tolist() for key, value in decoded(source, 1).items()} == {
        "100%": 3,
        "image/height": 3,
        "image/object/bbox": [0.5] * 3,
    }
    assert source.lengths["image/object/bbox"].tolist() == [2, 3]


def test_only_the_features_that_are_asked_for_are_there(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [spoken(0), spoken(4)], features={"words": "text", "label": "int8"})
    assert decoded(source, 1) == {"words": "xx", "label": np.int8(4)}
    assert source.lengths["words"].tolist() == [1, 2]


def test_what_tensorflow_wrote_is_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "tensorflow.tfrecord", tmp_path)
    source, _ = indexed(
        tmp_path, features={"audio": "float32 [any]", "label": "int64", "words": "text"}, checksums=True
    )
    first, second = decoded(source, 0), decoded(source, 1)
    assert first["audio"].tolist() == [0.5, -1.25, float(np.float32(3e38))]
    assert (first["label"], first["words"]) == (-7, "zwei Bäume")
    assert (len(second["audio"]), second["label"], second["words"]) == (0, 2**40, "")


def test_feature_lists_and_context_of_a_sequence_example(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "tensorflow_sequence.tfrecord", tmp_path)
    source, _ = indexed(tmp_path)
    found = decoded(source, 0)
    assert (found["frames"].tolist(), found["frames"].dtype) == ([[1, 2, 3], [4, 5, 6]], np.float32)
    assert (found["tokens"].tolist(), found["speaker"]) == ([300, -1], b"anna")
    assert {key: lengths.tolist() for key, lengths in source.lengths.items()} == {"frames": [2], "tokens": [2]}


def test_values_in_several_runs_are_read_whole(tmp_path: Path) -> None:
    made = SequenceExample()
    for value in (1, 2):
        made.context.feature["i"].int64_list.value.append(value)
    source, report = indexed(tmp_path, [made.SerializeToString(), UNPACKED])
    assert [decoded(source, sample)["i"].tolist() for sample in range(report.samples)] == [[1, 2], [7, 8]]
    assert (source.indexed.numbers["run_i"] == -1).tolist() == [False, True]


def test_records_that_cannot_be_used_are_bad_rows_with_file_and_number(tmp_path: Path) -> None:
    records = [spoken(0), b"no example", example(audio=[1.0], label=2), spoken(3), b""]
    source, report = indexed(tmp_path, [spoken(7)], records, features={"audio": "float32 [any]", "words": "text"})
    assert [(row.where, row.line, row.reason) for row in report.bad] == [
        (str(tmp_path / "1.tfrecord"), 1, "undecodable"),
        (str(tmp_path / "1.tfrecord"), 2, "missing_feature"),
        (str(tmp_path / "1.tfrecord"), 4, "missing_feature"),
    ]
    assert report.bad[1].detail == 'expected a value of "words", got none'
    assert [source.name(sample) for sample in range(3)] == ["0.tfrecord:0", "1.tfrecord:0", "1.tfrecord:3"]


def test_of_a_file_that_is_cut_short_the_records_before_are_kept(tmp_path: Path) -> None:
    (tmp_path / "0.tfrecord").write_bytes((record(spoken(0)) + record(spoken(1)))[:-3])
    source, report = indexed(tmp_path, paths=["0.tfrecord"])
    (bad,) = report.bad
    size, start = len(spoken(1)), len(record(spoken(0)))
    assert (source.samples, bad.reason, bad.line) == (1, "broken_file", 1)
    said = f"it has {size} bytes, but the file ends after {size + 1} of them: nothing from byte {start} on can be read"
    assert bad.detail == said


def test_a_file_of_another_kind_is_refused_before_anything_is_indexed(tmp_path: Path) -> None:
    (tmp_path / "0.tfrecord").write_bytes(b"\x78\x9c" + b"compressed as it were")
    with pytest.raises(DataError, match=r"0\.tfrecord: expected a TFRecord file that is not compressed"):
        indexed(tmp_path, paths=["0.tfrecord"])
    with pytest.raises(DataError, match=r"gone\.tfrecord: expected a file that can be read, got No such file"):
        indexed(tmp_path, paths=["gone.tfrecord"])
    with pytest.raises(DataError, match=r"expected records that are tf\.train\.Example or SequenceExample"):
        indexed(tmp_path, [b"other", b"things"])


def damaged(path: Path) -> None:
    """Another bit in the data of the first record, the checksum behind it as it was."""
    with path.open("r+b") as file:
        file.seek(len(record(spoken(0))) - 5)
        file.write(b"y")


def test_checksums_are_checked_if_that_is_asked_for(tmp_path: Path) -> None:
    write_records(tmp_path / "0.tfrecord", [spoken(0), spoken(1)])
    damaged(tmp_path / "0.tfrecord")
    table = {"paths": ["0.tfrecord"], "features": {"audio": "float32 [any]"}}
    assert indexed(tmp_path, **table)[1].bad == ()
    source, report = indexed(tmp_path, **table, checksums=True)
    assert [(bad.line, bad.reason) for bad in report.bad] == [(0, "wrong_checksum")]
    assert "which is written behind the record, got data of 0x" in report.bad[0].detail
    assert source.name(0) == "0.tfrecord:1"


@pytest.mark.fault(29)
def test_a_record_that_changed_is_refused_when_it_is_read_and_others_are_not(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [spoken(0), spoken(1)], checksums=True)
    with (tmp_path / "0.tfrecord").open("r+b") as file:
        file.write(record(example(audio=[5.0], label=0, words="x")))
    assert raw_of(source, 1) == spoken(1)
    with pytest.raises(ReadError, match=r"0\.tfrecord, record 0: expected the record that was indexed .*other bytes"):
        raw_of(source, 0)
    write_records(tmp_path / "0.tfrecord", [spoken(0), spoken(1)])
    damaged(tmp_path / "0.tfrecord")
    with pytest.raises(ReadError, match=r"record 0: expected the checksum 0x.*which is written behind the record"):
        raw_of(source, 0)


def test_files_of_other_sizes_are_refused_when_they_are_opened(tmp_path: Path) -> None:
    indexed(tmp_path, [spoken(0)])
    write_records(tmp_path / "0.tfrecord", [spoken(1)])
    with pytest.raises(DataError, match=r"0\.tfrecord, index .*expected the file that the index was made from"):
        open_source(spec_of("tfrecord", tmp_path, paths=["*.tfrecord"]))


def test_it_does_not_matter_how_many_headers_are_followed_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "a.tfrecord", [spoken(n) for n in range(7)])
    (tmp_path / "b.tfrecord").write_bytes(record(spoken(1)) + b"broken")
    source = spec_of("tfrecord", tmp_path, paths=["."]).make()
    monkeypatch.setattr(tfrecord, "_BLOCK_RECORDS", 2)
    inventory = source.survey()
    pieces = list(inventory.pieces(3))
    assert [(piece.rows, piece.number, piece.row) for piece in pieces] == [(3, 0, 0), (3, 3, 3), (1, 6, 6), (2, 0, 7)]
    found = [source.probe(piece) for piece in pieces]
    assert [row for one in found for row in (*one.rows, *one.bad)] == list(range(inventory.total)) == list(range(9))


def test_features_come_from_the_first_records_of_as_many_files_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_records, "FIRST_RECORDS", 3)
    files = [[example(x=1)], [example(x=1), example(x=[1, 2])], [example(y=1)]]
    source, report = indexed(tmp_path, *files)
    assert source.indexed.about["features"] == {"x": "int64 [any]"}
    assert report.bad_counts == {}  # a list that is missing is empty


def test_a_record_keeps_its_identity_while_others_come_and_go(tmp_path: Path) -> None:
    before = indexed(tmp_path, [spoken(0), spoken(1), spoken(2)])[0]
    known = {int(decoded(before, sample)["label"]): before.identity(sample) for sample in range(3)}
    after = indexed(tmp_path, [spoken(5), spoken(2), spoken(1)])[0]
    assert [after.identity(1), after.identity(2)] == [known[2], known[1]]
    assert len(set(known.values())) == 3


UNPACKED = b"\x0a\x0d\x0a\x0b\x0a\x01i\x12\x06\x1a\x04\x08\x07\x08\x08"  # of i the values 7 and 8, a field each


def test_batches_are_gathered_as_samples_are_decoded(tmp_path: Path) -> None:
    features = {"f": "float32 [any]", "d": "float64 [any]", "i": "int32 [any]", "n": "int64", "s": "uint8 [any, 2]"}
    records = [
        example(f=[0.5] * n, d=[1.5] * n, i=list(range(-n, n)), n=[-1, 2**40, 3][n % 3], s=b"ab" * n) for n in range(9)
    ]
    source, _ = indexed(tmp_path, records, [*records, UNPACKED + example(n=5)], features=features)
    assert source.gathers
    samples = np.array([18, 3, 0, 12, 3])
    wide = {"f": 9, "d": 9, "i": 18, "s": 9}
    out = {key: np.full((5, width), 77, features[key].split()[0]) for key, width in wide.items() if key != "s"}
    out |= {"s": np.full((5, 9, 2), 77, np.uint8), "n": np.zeros(5, np.int64)}
    out |= {f"{key}_length": np.zeros(5, np.int32) for key in wide}
    source.gather(samples, out)
    for row, sample in enumerate(samples.tolist()):
        expected = decoded(source, sample)
        assert out["n"][row] == expected["n"]
        for key in wide:
            length = out[f"{key}_length"][row]
            assert out[key][row, :length].tolist() == expected[key].tolist()
            assert not out[key][row, length:].any()
    source.gather(samples[:0], {key: array[:0] for key, array in out.items()})


def test_no_batch_is_gathered_of_records_that_have_changed_or_whose_checksums_are_checked(tmp_path: Path) -> None:
    source, _ = indexed(tmp_path, [spoken(0), spoken(1)], features={"label": "int64"})
    with (tmp_path / "0.tfrecord").open("r+b") as file:
        file.write(record(example(audio=[5.0], label=0, words="x")))
    out = {"label": np.zeros(1, np.int64)}
    source.gather(np.array([1]), out)
    with pytest.raises(ReadError, match=r"0\.tfrecord, record 0: expected the record that was indexed"):
        source.gather(np.array([0]), out)
    assert not indexed(tmp_path, [spoken(0)], checksums=True)[0].gathers


def test_a_feature_that_no_record_has_is_refused_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = {"audo": "float32 [any]", "label": "int64"}
    said = r'\*\.tfrecord, features: expected features out of audio, label, words, perhaps "audio", got "audo"'
    with pytest.raises(SettingsError, match=said):
        indexed(tmp_path, [spoken(0), b"no example"], features=features)
    rare = [*(example(label=n) for n in range(9)), example(label=9, audo=[1.0])]
    assert indexed(tmp_path, rare, features=features)[0].lengths["audo"].tolist() == [0] * 9 + [1]
    monkeypatch.setattr(file_records, "MOST_RECORDS_WITHOUT", 9)
    with pytest.raises(SettingsError, match="none of the first records has"):
        indexed(tmp_path, rare, features=features)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    with pytest.raises(SettingsError, match=r"checksums: expected google-crc32c.*pip install 'stoker\[tfrecord\]'"):
        indexed(tmp_path, [spoken(0)], checksums=True)
    assert indexed(tmp_path, [spoken(0)])[1].samples == 1


def test_a_job_has_its_features_in_a_table(tmp_path: Path) -> None:
    write_records(tmp_path / "train-0.tfrecord", [spoken(n) for n in range(9)])
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "tfrecord"\npaths = ["train-*.tfrecord"]\nlength = "audio"\n'
        'budget = "20 steps"\n[streams.train.features]\naudio = "float32 [any]"\nlabel = "int32"\n'
    )
    job = JobFile(tmp_path / "job.toml")
    index_streams(job, ["train"])
    stream = Stream(job, "train")
    assert [(field.key, field.dtype) for field in stream.chain.fields] == [("audio", "float32"), ("label", "int32")]
    stream.close()
    toml = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(toml.replace("float32 [any]", "floats"))
    with pytest.raises(
        SettingsError, match=r'job\.toml, \[streams\.train\], features, "audio": expected a dtype, and axes'
    ):
        JobFile(tmp_path / "job.toml")
