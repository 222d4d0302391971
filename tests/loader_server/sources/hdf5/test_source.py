"""The hdf5 source: rows, ragged values, strings, RETURNN's sequences, and files that do not hold together."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest

from shared.errors import DataError, ReadError
from tests.loader_server.sources.hdf5.data import RETURNN, ragged, sequences, write_ragged, write_returnn
from tests.support.sources import decoded, index_source, open_source, raw_of, spec_of

CHUNKED = {"chunks": (4, 3), "compression": "gzip"}


def indexed(folder, *paths, **how):
    spec = spec_of("hdf5", folder, paths=list(paths) or ["a.h5"], **how)
    report = index_source(spec)
    return open_source(spec), report


@pytest.mark.parametrize("how", [{}, CHUNKED, {"dtype": ">f4"}, {"dtype": "f8"}])
def test_ragged_values_labels_and_texts(tmp_path, how):
    samples = ragged(3, 0, 1, 40)
    write_ragged(tmp_path / "a.h5", samples, **how)
    source, report = indexed(tmp_path)
    dtype = "float64" if how.get("dtype") == "f8" else "float32"
    assert {(one.key, one.dtype, one.shape) for one in source.fields} == {
        ("audio", dtype, (None, 3)),
        ("label", "int32", ()),
    }
    assert source.lengths["audio"].tolist() == [3, 0, 1, 40]
    assert source.lengths["text"].tolist() == [7] * 4
    for n, sample in enumerate(samples):
        got = decoded(source, n)
        assert (got["audio"].tolist(), got["label"], got["text"]) == (sample.tolist(), n, f"zwölf {n}")
        assert got["audio"].dtype == np.dtype(dtype)
    assert (report.rows, source.name(2), source.place(2)) == (4, "a.h5, row 2", (str(tmp_path / "a.h5"), 2))
    source.close()


def test_values_in_one_piece_are_read_from_their_place(tmp_path, monkeypatch):
    write_ragged(tmp_path / "a.h5", ragged(3, 5))
    source, _ = indexed(tmp_path, keys=["audio"])
    asked, read = [], source.files.read
    monkeypatch.setattr(source.files, "read", lambda path, *place: asked.append(place) or read(path, *place))
    assert decoded(source, 1)["audio"].tolist() == ragged(3, 5)[1].tolist()
    with h5py.File(tmp_path / "a.h5") as file:
        assert asked == [(file["audio_values"].id.get_offset() + 3 * 12, 5 * 12)]


def test_rows_of_equal_shape_have_their_first_axis_as_length(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/features"] = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
        file["train/good"] = np.array([True, False, True])
    source, _ = indexed(tmp_path, group="train")
    assert {(one.key, one.dtype, one.shape) for one in source.fields} == {
        ("features", "float32", (None, 2)),
        ("good", "bool", ()),
    }
    assert (source.lengths["features"].tolist(), decoded(source, 1)["good"]) == ([4, 4, 4], False)
    assert decoded(source, 2)["features"].tolist() == np.arange(16, 24).reshape(4, 2).tolist()


def test_rows_of_variable_length_types(tmp_path):
    rows = [np.arange(n, dtype=np.int16) for n in (2, 0, 5)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("tokens", (3,), h5py.vlen_dtype(np.int16))
        for place, row in enumerate(rows):
            made[place] = row
        file["name"] = np.array([b"a", b"\xff", "é".encode()])
    source, report = indexed(tmp_path)
    assert [(bad.where, bad.line, bad.reason) for bad in report.bad] == [(str(tmp_path / "a.h5"), 1, "not_utf8")]
    assert [decoded(source, n)["tokens"].tolist() for n in range(2)] == [[0, 1], [0, 1, 2, 3, 4]]
    assert [decoded(source, n)["name"] for n in range(2)] == ["a", "é"]
    assert source.lengths["tokens"].tolist() == [2, 5]


@pytest.mark.parametrize("by", ["returnn", "h5py"])
def test_sequences_of_returnn_have_their_tags_as_names(tmp_path, by):
    if by == "returnn":
        shutil.copy(RETURNN, tmp_path / "a.hdf")
    else:
        write_returnn(tmp_path / "a.hdf")
    spec = spec_of("hdf5", tmp_path, paths=["a.hdf"], keys=["data", "classes"])
    index_source(spec, piece_rows=1)
    source = open_source(spec)
    assert [(one.key, one.dtype, one.shape) for one in source.fields] == [
        *(("data", "float32", (None, 5)), ("classes", "int32", (None,))),
    ]
    for n, (tag, (data, classes)) in enumerate(sequences().items()):
        assert (source.name(n), tag in source.identity(n)) == (tag, True)
        assert (source.lengths["data"][n], source.lengths["classes"][n]) == (len(data), len(classes))
        got = decoded(source, n)
        assert (got["data"].tolist(), got["classes"].tolist()) == (data.tolist(), classes.tolist())


def test_returnn_itself_reads_the_same(tmp_path):
    returnn = pytest.importorskip("returnn.datasets.hdf", reason="what it wrote is kept in golden/")
    write_returnn(tmp_path / "a.hdf")
    source, _ = indexed(tmp_path, "a.hdf")
    theirs = returnn.HDFDataset(files=[str(tmp_path / "a.hdf")])
    theirs.initialize()
    theirs.init_seq_order(epoch=1)
    theirs.load_seqs(0, 3)
    for n in range(3):
        assert source.name(n) == theirs.get_tag(n)
        for key in ("data", "classes", "align"):
            assert decoded(source, n)[key].tolist() == theirs.get_data(n, key).tolist()


def test_several_files_are_parts_and_have_the_same_keys(tmp_path):
    write_ragged(tmp_path / "a.h5", ragged(2, 3))
    write_ragged(tmp_path / "b.h5", ragged(4), **CHUNKED)
    source, _ = indexed(tmp_path, "a.h5", "b.h5")
    assert (source.parts, source.name(2)) == ((0, 2), "b.h5, row 0")
    assert decoded(source, 2)["audio"].tolist() == ragged(4)[0].tolist()
    write_returnn(tmp_path / "c.h5")
    with pytest.raises(DataError, match=r'c.h5: expected the keys of a.h5: "audio" as float32 \[3\], .*got "data" as'):
        indexed(tmp_path, "a.h5", "c.h5")


def _cut(path):
    path.write_bytes(path.read_bytes()[:-500])


def _drop(name):
    def change(path):
        with h5py.File(path, "r+") as file:
            del file[name]

    return change


def _put(name, values):
    def change(path):
        _drop(name)(path)
        with h5py.File(path, "r+") as file:
            file[name] = np.array(values)

    return change


@pytest.mark.parametrize(
    ("change", "how", "message"),
    [
        (_cut, {}, r"a.h5: expected a whole HDF5 file, got .*truncated file.*cut short or damaged"),
        (lambda path: path.write_bytes(b"text" * 99), {}, r"expected a whole HDF5 file, got .*signature not found"),
        (lambda path: None, {"keys": ["mel"]}, r'expected a dataset "mel", got "audio", "label", "text"\. Mend `keys`'),
        (lambda path: None, {"group": "dev"}, r'expected a group "dev", got "audio_offsets", .*Mend `group`'),
        (lambda path: None, {"group": "label"}, r'expected a group "label", got a dataset of that name\. Mend `group`'),
        (_put("label", [1, 2]), {}, r'expected 3 samples of "label", as of "audio", got 2'),
        (_put("audio_offsets", [0, 5, 2, 9]), {}, r'expected lengths of "audio" from 0 up.*got others in row 1'),
        (_put("audio_offsets", [1, 5, 6, 9]), {}, r"offsets that begin with 0, got others in row 0"),
        (_put("audio_offsets", [0, 5, 6, 8]), {}, r"expected 8 values in audio_values, .*got 9"),
        (_put("audio_offsets", [0.0, 9.0]), {}, r'offsets of "audio": whole numbers in one axis.*got float64 \[2\]'),
        (_put("label", [1j, 2, 3]), {}, r'expected "label" of strings, or of a dtype of .*got complex128'),
        (_put("text", [[b"a"], [b"b"], [b"c"]]), {}, r'expected one string a sample as "text", got several'),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused(tmp_path, change, how, message):
    write_ragged(tmp_path / "a.h5", ragged(2, 3, 4))
    change(tmp_path / "a.h5")
    with pytest.raises(DataError, match=message):
        indexed(tmp_path, **how)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _put("seqLengths", [[4, 1], [2, 1], [7, 1]]),
            r"expected seqLengths of whole numbers, with a column for each of 3",
        ),
        (
            _put("seqLengths", [[4, 1, 1], [2, 1, 2], [6, 1, 3]]),
            r'expected 12 values in inputs, as the lengths of "data" say, got 13',
        ),
        (_put("seqLengths", [[4, 1, 1], [-2, 1, 2], [6, 1, 3]]), r'expected lengths of "data" from 0 up.*row 1'),
        (_put("seqLengths", 3), r"expected seqLengths of whole numbers, with a column for .*got int64 \[\]"),
        (_put("seqTags", [b"a"]), r"expected 3 names in seqTags, got 1"),
    ],
)
def test_sequences_whose_lengths_are_of_other_data_are_refused(tmp_path, change, message):
    write_returnn(tmp_path / "a.h5")
    change(tmp_path / "a.h5")
    with pytest.raises(DataError, match=message):
        indexed(tmp_path)


def test_a_chunk_that_is_damaged_stops_the_job_by_name(tmp_path):
    write_ragged(tmp_path / "a.h5", ragged(8, 8), **CHUNKED)
    with h5py.File(tmp_path / "a.h5") as file:
        chunk = file["audio_values"].id.get_chunk_info(3)
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"x" * chunk.size)
    source, _ = indexed(tmp_path)
    assert raw_of(source, 0)
    with pytest.raises(
        ReadError, match=r'a.h5: expected the values of "audio" from row 8 on, got .*filter returned failure'
    ):
        raw_of(source, 1)


@pytest.mark.fault(29)
def test_another_file_of_equal_size_is_refused(tmp_path):
    write_ragged(tmp_path / "a.h5", ragged(8, 8))
    indexed(tmp_path)
    write_ragged(tmp_path / "a.h5", [one + 1 for one in ragged(8, 8)])
    with pytest.raises(DataError, match=r"The file has changed: .*run loader-server index"):
        open_source(spec_of("hdf5", tmp_path, paths=["a.h5"]))


def test_a_file_that_is_written_over_while_it_is_in_use_is_refused(tmp_path):
    write_ragged(tmp_path / "a.h5", ragged(3, 5))
    write_ragged(tmp_path / "b.h5", [-sample for sample in ragged(3, 5)])
    source, _ = indexed(tmp_path)
    assert decoded(source, 1)["audio"].tolist() == ragged(3, 5)[1].tolist()
    (tmp_path / "a.h5").write_bytes((tmp_path / "b.h5").read_bytes())
    with pytest.raises(ReadError, match=r"a\.h5: expected the file that was indexed, got another one of"):
        decoded(source, 1)


@pytest.mark.parametrize("when", ["between two samples", "within one"])
def test_a_file_that_is_written_over_while_a_batch_is_read_is_refused(tmp_path, monkeypatch, when):
    write_ragged(tmp_path / "a.h5", ragged(3, 5))
    write_ragged(tmp_path / "b.h5", [-sample for sample in ragged(3, 5)])
    source, _ = indexed(tmp_path)
    reads, read = iter(source.read([0, 1])), source.files.read
    assert next(reads)

    def write_over():
        (tmp_path / "a.h5").write_bytes((tmp_path / "b.h5").read_bytes())

    def write_over_and_read(*place):
        write_over()
        return read(*place)

    if when == "within one":
        monkeypatch.setattr(source.files, "read", write_over_and_read)
    else:
        write_over()
    with pytest.raises(ReadError, match=r"a\.h5: expected the file that was indexed, got another one of"):
        next(reads)
