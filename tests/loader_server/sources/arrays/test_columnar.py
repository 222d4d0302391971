"""The parquet and arrow sources: types and nulls, whole row groups, and files that are no good."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import DataError, ReadError
from shared.wire.batch_layout import Field
from tests.support.sources import decoded, index_source, open_source, spec_of

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.index.make import IndexReport


def tokens(count: int, start: int = 0) -> pa.Array:
    return pa.array([list(range(n % 5)) for n in range(start, start + count)], pa.list_(pa.int32()))


def written(path: Path, columns: dict[str, Any] | None = None, *, rows: int = 10) -> Path:
    """A file of its suffix's format, with so many rows a group."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"tokens": tokens(30), "label": pa.array(range(30))} if columns is None else columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
        return path
    kind = pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file
    with kind(path, table.schema) as file:
        file.write_table(table, max_chunksize=rows)
    return path


def opened(folder: Path, *paths: str, source: str = "", **settings: Any) -> tuple[Any, IndexReport]:
    name = source or ("parquet" if paths[0].endswith(".parquet") else "arrow")
    spec = spec_of(name, folder, paths=list(paths), **settings)
    report = index_source(spec)
    return open_source(spec), report


FORMATS = pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather"])


# --- names ---


@FORMATS
def test_columns_may_have_other_keys(tmp_path: Path, name: str) -> None:
    columns = {"sentence": pa.array(["a", "bc"]), "ids": pa.array([[1], [2, 3]]), "other": pa.array([1, 2])}
    written(tmp_path / name, columns)
    rename = {"text": "sentence", "tokens": "ids"}
    source, _ = opened(tmp_path, name, columns=["sentence", "ids"], rename=rename)
    assert (list(decoded(source, 1)), decoded(source, 1)["text"]) == (["text", "tokens"], "bc")
    assert source.lengths["text"].tolist() == [1, 2]
    texts = source.texts("text")
    assert texts is not None
    assert [list(block) for block in texts] == [["a", "bc"]]
    whole, _ = opened(tmp_path, name, rename=rename)
    assert list(decoded(whole, 0)) == ["text", "tokens", "other"]


@FORMATS
def test_a_name_that_no_column_has_or_two_get_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path / name)
    with pytest.raises(DataError, match='expected a column "sentence", as `rename` says, got "tokens", "label"'):
        opened(tmp_path, name, rename={"text": "sentence"})
    with pytest.raises(DataError, match=r'one column for each key, got two for one by rename = \{ label = "tokens" \}'):
        opened(tmp_path, name, rename={"label": "tokens"})


# --- types ---


@FORMATS
def test_types_become_fields_or_values_for_transforms(tmp_path: Path, name: str) -> None:
    columns = {
        "ids": pa.array([[1, 2], []], pa.large_list(pa.int64())),
        "frames": pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.float32(), 2))),
        "vector": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.uint8(), 3)),
        "half": pa.array(np.array([1.5, 2.5], np.float16)),
        "good": pa.array([True, False]),
        "text": pa.array(["", "štěstí"], pa.large_string()),
        "image": pa.array([b"\x00\xff", b""]),
    }
    source, _ = opened(tmp_path, written(tmp_path / name, columns).name)
    assert source.fields == (
        Field(key="ids", dtype="int64", shape=(None,)),
        Field(key="frames", dtype="float32", shape=(None, 2)),
        Field(key="vector", dtype="uint8", shape=(3,)),
        Field(key="half", dtype="float16", shape=()),
        Field(key="good", dtype="bool", shape=()),
    )
    first, second = (decoded(source, sample) for sample in range(2))
    assert (first["ids"].tolist(), second["ids"].tolist()) == ([1, 2], [])
    assert second["frames"].tolist() == [[3, 4], [5, 6]]
    assert (second["vector"].tolist(), second["half"], first["good"]) == ([4, 5, 6], 2.5, True)
    assert (second["text"], first["image"]) == ("štěstí", b"\x00\xff")
    lengths = {key: column.tolist() for key, column in source.lengths.items()}
    assert lengths == {"ids": [2, 0], "frames": [1, 2], "text": [0, 6], "image": [2, 0]}


def test_categories_of_a_data_frame_are_what_they_stand_for(tmp_path: Path) -> None:
    columns = {"tokens": tokens(4), "speaker": pa.array(["a", "b", "a", "b"]).dictionary_encode()}
    source, _ = opened(tmp_path, written(tmp_path / "a.parquet", columns).name)
    assert [decoded(source, sample)["speaker"] for sample in range(4)] == ["a", "b", "a", "b"]


@FORMATS
def test_where_nothing_differs_in_length_the_first_axis_is_the_length(tmp_path: Path, name: str) -> None:
    columns = {"vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), "label": pa.array([5, 6])}
    source, _ = opened(tmp_path, written(tmp_path / name, columns).name)
    assert [field.shape for field in source.fields] == [(None,), ()]
    out = {
        "vector": np.full((2, 3), 9, np.int32),
        "vector_length": np.zeros(2, np.int32),
        "label": np.zeros(2, np.int64),
    }
    source.gather(np.array([1, 0]), out)
    assert out["vector"].tolist() == [[3, 4, 0], [1, 2, 0]]
    assert (out["vector_length"].tolist(), out["label"].tolist()) == ([2, 2], [6, 5])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"bytes": b"", "name": ""}]),
        pa.array([["a"]]),
        pa.array([[["a"]]]),
        pa.array([1], pa.decimal128(9)),
    ],
)
def test_types_of_which_nothing_can_be_made_are_named_and_may_be_left_out(tmp_path: Path, column: pa.Array) -> None:
    written(tmp_path / "a.parquet", {"tokens": tokens(1), "odd": column})
    with pytest.raises(
        DataError, match=r'expected "odd" of numbers, texts, bytes, lists of numbers, or files .*, got .*columns ='
    ):
        opened(tmp_path, "a.parquet")
    source, _ = opened(tmp_path, "a.parquet", columns=["tokens"])
    assert [field.key for field in source.fields] == ["tokens"]


# --- nulls ---


@FORMATS
def test_rows_with_nulls_are_bad_wherever_the_null_is_and_samples_keep_their_rows(tmp_path: Path, name: str) -> None:
    lists = [[0], None, [2], [3, None], [4], [5], [6], [7]]
    vectors = [[n, n] for n in range(7)] + [None]
    columns = {
        "tokens": pa.array(lists, pa.list_(pa.int32())),
        "vector": pa.array([*vectors[:5], [1, None], *vectors[6:]], pa.list_(pa.int32(), 2)),
        "text": pa.array(["x", "y", None, "z", "u", "v", "w", "q"]),
    }
    source, report = opened(tmp_path, written(tmp_path / name, columns, rows=3).name)
    assert [(row.line, row.reason) for row in report.bad] == [(line, "null") for line in (1, 2, 3, 5, 7)]
    assert report.bad[0].where == str(tmp_path / name)
    assert report.bad[0].detail == 'expected "tokens" without nulls, got one'
    assert [decoded(source, sample)["tokens"].tolist() for sample in range(3)] == [[0], [4], [6]]
    assert [source.place(sample)[1] for sample in range(3)] == [0, 4, 6]
    out = {"tokens": np.zeros((3, 1), np.int32), "tokens_length": np.zeros(3, np.int32)}
    source.gather(np.arange(3), out)
    assert out["tokens"].tolist() == [[0], [4], [6]]


def test_texts_that_are_not_utf8_are_bad_rows(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"n\xe9", b"ok"]).buffers())
    _, report = opened(tmp_path, written(tmp_path / "a.parquet", {"tokens": tokens(3), "text": text}).name)
    assert [(row.line, row.reason) for row in report.bad] == [(1, "not_utf8")]
    assert report.bad[0].detail == '"text": expected UTF-8, got the byte 0xe9 after 1 others'


# --- groups and files ---


@FORMATS
def test_segments_are_whole_groups_small_ones_together(tmp_path: Path, name: str) -> None:
    lists = pa.array([[1]] * 30 + [None] * 10 + [[2]] * 20, pa.list_(pa.int32()))
    source, _ = opened(tmp_path, written(tmp_path / name, {"tokens": lists}, rows=10).name)
    assert source.indexed.about["first_samples"] == [0, 10, 20, 30, 30, 40, 50]
    assert source.segments.tolist() == [0, 50]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loader_server.sources.arrays.columnar.SEGMENT_SAMPLES", 8)
        assert source.segments.tolist() == [0, 10, 20, 30, 40, 50]
        patch.setattr("loader_server.sources.arrays.columnar.SEGMENT_SAMPLES", 20)
        assert source.segments.tolist() == [0, 20, 40, 50]


def test_files_count_as_one_in_their_order_and_are_the_parts(tmp_path: Path) -> None:
    for place, rows in enumerate((7, 4, 5)):
        columns = {"tokens": tokens(rows) if place != 1 else pa.array([None] * rows, pa.list_(pa.int32()))}
        written(tmp_path / "data" / f"{place}.parquet", columns, rows=3)
    source, report = opened(tmp_path, "data", source="parquet")
    assert (report.samples, report.rows, source.parts) == (12, 16, (0, 7))
    assert (source.name(6), source.name(7)) == ("data/0.parquet, row 6", "data/2.parquet, row 0")
    assert source.place(11) == (str(tmp_path / "data/2.parquet"), 4)
    assert decoded(source, 11)["tokens"].tolist() == [0, 1, 2, 3]
    assert source.identity(7).startswith("data/2.parquet, ")


def test_pieces_are_whole_groups_unless_they_have_to_be_small(tmp_path: Path) -> None:
    source = spec_of("parquet", tmp_path, paths=[written(tmp_path / "a.parquet").name]).make()
    pieces = source.survey().pieces
    assert list(pieces(4)) == [range(n, min(n + 4, 30)) for n in range(0, 30, 4)]
    assert list(pieces(10)) == [range(10), range(10, 20), range(20, 30)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(source), "piece_rows", 15)
        assert list(pieces(15)) == [range(20), range(20, 30)]
        patch.setattr(type(source), "piece_rows", 10)
        assert list(pieces(10)) == [range(10), range(10, 20), range(20, 30)]


def test_a_shuffled_epoch_decodes_each_group_once_a_window_in_bounded_memory(tmp_path: Path) -> None:
    lists = pa.array([[n] * (1 + n % 9) for n in range(40_960)], pa.list_(pa.int32()))
    written(tmp_path / "a.parquet", {"tokens": lists, "label": pa.array(range(40_960))}, rows=4096)
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "parquet"\npaths = ["a.parquet"]\nlength = "tokens"\n'
        'budget = "4096 tokens"\nshapes = 4\nwindow = 8192\ncache = "1 MiB"\n'
    )
    job = JobFile(tmp_path / "job.toml")
    index_streams(job, ["train"])
    stream = Stream(job, "train")
    epoch, source, seen = stream.plan.epoch(0, 1), stream.source, []
    for number in range(epoch.batches):
        batch = epoch.batch(number)
        ahead = source.unread(batch.samples)
        assert len(list(source.read(ahead.tolist()))) == len(ahead)
        length = batch.shape.lengths["tokens"]
        out = {
            "tokens": np.zeros((len(batch.samples), length), np.int32),
            "label": np.zeros(len(batch.samples), np.int64),
        }
        source.gather(batch.samples, {**out, "tokens_length": np.zeros(len(batch.samples))})
        assert np.array_equal(out["tokens"][:, 0], out["label"])
        seen += out["label"].tolist()
    assert sorted(seen) == list(range(40_960))
    assert source._kept.decoded == 10
    stream.close()


# --- data sets that were saved ---


def test_of_a_saved_data_set_those_files_count_that_its_state_names(tmp_path: Path) -> None:
    for name in ("data-00001-of-00002", "data-00000-of-00002", "cache-1234"):
        written(tmp_path / "saved" / f"{name}.arrow", {"tokens": tokens(3), "name": pa.array([name] * 3)})
    files = [{"filename": f"data-0000{place}-of-00002.arrow"} for place in range(2)]
    (tmp_path / "saved" / "state.json").write_text(json.dumps({"_data_files": files}))
    source, report = opened(tmp_path, "saved")
    assert report.samples == 6
    assert [decoded(source, sample)["name"][:10] for sample in (0, 3)] == ["data-00000", "data-00001"]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["saved", "test"]}')
    with pytest.raises(
        DataError, match=r'expected one data set, got a folder of several \(saved, test\).*\["\./saved"\]'
    ):
        opened(tmp_path, ".", source="arrow")
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(DataError, match='expected a file with "_data_files", as save_to_disk writes it, got KeyError'):
        opened(tmp_path, "saved")


# --- what is no good ---


@FORMATS
def test_a_file_of_another_schema_is_refused_by_name(tmp_path: Path, name: str) -> None:
    written(tmp_path / name)
    other = f"b.{name.partition('.')[2]}"
    written(tmp_path / other, {"tokens": tokens(3).cast(pa.list_(pa.int64())), "label": pa.array(range(3))})
    said = rf'{other}: expected "tokens" as int32 \[any\], as in the files before, got "tokens" as int64 \[any\]'
    with pytest.raises(DataError, match=said):
        opened(tmp_path, name, other)
    written(tmp_path / other, {"label": pa.array(range(3))})
    with pytest.raises(DataError, match=f"{other}: expected .* as in the files before"):
        opened(tmp_path, name, other)
    assert opened(tmp_path, name, other, columns=["label"])[1].samples == 33
    with pytest.raises(DataError, match=f'{other}: expected a column "tokens", got "label"'):
        opened(tmp_path, name, other, columns=["tokens"])


@FORMATS
def test_a_file_that_was_cut_or_is_something_else_is_refused_before_training(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=f"{name}: expected a whole file of this format"):
        opened(tmp_path, name)
    path.write_bytes(b"no columns at all" * 9)
    with pytest.raises(DataError, match=f"{name}: expected a whole file of this format"):
        opened(tmp_path, name)


@pytest.mark.parametrize("name", ["a.arrow", "a.feather"])
def test_an_arrow_file_that_was_cut_between_two_record_batches_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name)
    os.truncate(path, path.read_bytes().rindex(b"\xff\xff\xff\xff\0\0\0\0"))
    with pytest.raises(
        DataError, match=r"expected a whole file of this format, got no mark of its end after \d+ bytes"
    ):
        opened(tmp_path, name)


@pytest.mark.parametrize("wrong", [[0, 2**30], [0, -3], [2, 1]])
@pytest.mark.parametrize("column", ["tokens", "text"])
def test_offsets_that_lead_elsewhere_are_refused(tmp_path: Path, column: str, wrong: list[int]) -> None:
    right = [0, 3, 7]
    columns = {"tokens": pa.array([[1, 2, 3], [4, 5, 6, 7]]), "text": pa.array(["abc", "defg"])}
    path = written(tmp_path / "a.arrow", pa.table({column: columns[column]}))
    raw = path.read_bytes()
    assert raw.count(np.array(right, np.int32).tobytes()) == 1
    path.write_bytes(raw.replace(np.array(right, np.int32).tobytes(), np.array([*wrong, 7], np.int32).tobytes()))
    with pytest.raises(DataError, match=r"a\.arrow: expected rows from 0 on that can be decoded"):
        opened(tmp_path, "a.arrow")


def test_rows_that_cannot_be_decoded_are_an_error_that_names_them(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"tokens": pa.array([[n] * 90 for n in range(300)])}, rows=100)
    spec = spec_of("parquet", tmp_path, paths=["a.parquet"])
    index_source(spec)
    source = open_source(spec)
    assert decoded(source, 0)["tokens"].tolist() == [0] * 90
    meta = pq.read_metadata(path).row_group(1).column(0)
    start = meta.dictionary_page_offset or meta.data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + meta.total_compressed_size] = b"\xff" * meta.total_compressed_size
    path.write_bytes(raw)
    with pytest.raises(
        ReadError, match=r"a\.parquet: expected rows from 100 on that can be decoded, got .* has changed"
    ):
        decoded(source, 150)
    with pytest.raises(DataError, match=r"a\.parquet: expected rows from 100 on that can be decoded, got .*it anew"):
        index_source(spec, tmp_path / "again")


def test_another_file_of_the_same_size_is_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    path = written(tmp_path / "a.arrow", {"tokens": tokens(30)})
    spec = spec_of("arrow", tmp_path, paths=["a.arrow"])
    index_source(spec)
    os.utime(path, ns=(1, 1))
    open_source(spec).close()
    written(path, {"tokens": tokens(31, start=0).slice(1)})
    assert path.stat().st_size
    with pytest.raises(DataError, match=r"run loader-server index"):
        open_source(spec)


@FORMATS
def test_a_file_that_is_written_over_while_it_is_in_use_is_refused_and_one_that_is_touched_is_not(
    tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / name)
    source, _ = opened(tmp_path, name)
    assert decoded(source, 4)["label"] == 4
    os.utime(path, ns=(1, 1))
    assert decoded(source, 14)["label"] == 14
    other = written(tmp_path / f"other-{name}", {"tokens": tokens(30), "label": pa.array(range(60, 90))})
    path.write_bytes(other.read_bytes())
    with pytest.raises(ReadError, match=rf"{name}: expected the file that was indexed, .* has changed since"):
        decoded(source, 24)
    assert decoded(source, 4)["label"] == 4  # which was read before
