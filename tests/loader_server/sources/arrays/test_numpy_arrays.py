"""The numpy source: which arrays make a key, in files and archives, and which are refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.commands.index import index_streams
from loader_server.index.folder import open_index
from loader_server.job_file import JobFile
from loader_server.sources.arrays import numpy_arrays
from loader_server.sources.arrays.numpy_arrays import NumpySource
from loader_server.sources.source import Chunk
from loader_server.stream import Stream
from shared.errors import DataError, ReadError
from shared.wire.batch_layout import Field
from tests.support.sources import decoded, index_source, open_source, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader_server.sources.arrays.numpy_files import ArrayColumn

LENGTHS = [2, 0, 3, 1]
RAGGED = {"values": np.arange(6, dtype=np.int32), "offsets": np.array([0, 2, 2, 5, 6])}


def indexed(folder: Path, *, paths: tuple[str, ...] = ("data",), **settings: Any) -> NumpySource:
    spec = spec_of("numpy", folder, paths=list(paths), **settings)
    index_source(spec)
    source = open_source(spec)
    assert isinstance(source, NumpySource)
    return source


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / "data" / name, array)
    return folder


def test_a_sample_has_the_values_between_two_offsets(tmp_path: Path) -> None:
    source = indexed(saved(tmp_path, **RAGGED))
    assert source.fields == (Field(key="values", dtype="int32", shape=(None,)),)
    assert [decoded(source, sample)["values"].tolist() for sample in range(4)] == [[0, 1], [], [2, 3, 4], [5]]
    assert source.lengths["values"].tolist() == LENGTHS
    assert source.name(2) == "data, row 2"
    assert source.place(2) == (str(tmp_path / "data"), 2)


def test_several_keys_are_called_by_what_their_arrays_share_and_may_be_chosen(tmp_path: Path) -> None:
    arrays = {f"tokens_{name}": array for name, array in RAGGED.items()}
    arrays |= {"label": np.arange(4.0), "pictures": np.zeros((4, 2, 3), np.uint8)}
    found = {field.key: field for field in indexed(saved(tmp_path, **arrays)).fields}
    assert found == {
        "label": Field(key="label", dtype="float64", shape=()),
        "pictures": Field(key="pictures", dtype="uint8", shape=(2, 3)),
        "tokens": Field(key="tokens", dtype="int32", shape=(None,)),
    }
    chosen = indexed(tmp_path, keys=["tokens", "label"])
    assert [field.key for field in chosen.fields] == ["tokens", "label"]
    assert decoded(chosen, 2)["label"] == 2.0


def test_where_nothing_is_ragged_the_first_axis_is_the_length(tmp_path: Path) -> None:
    source = indexed(saved(tmp_path, frames=np.arange(24.0).reshape(4, 3, 2), label=np.arange(4)))
    assert [field.shape for field in source.fields] == [(None, 2), ()]
    assert source.lengths["frames"].tolist() == [3] * 4
    out = {"frames": np.ones((2, 4, 2)), "frames_length": np.zeros(2, np.int32)}
    source.gather(np.array([3, 1]), out)
    assert out["frames"][0].tolist() == [[18, 19], [20, 21], [22, 23], [0, 0]]
    assert out["frames_length"].tolist() == [3, 3]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_holds_the_same_as_a_folder(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "all.npz", **RAGGED, label=np.asfortranarray(np.arange(12, dtype=np.int16).reshape(4, 3)))
    source = indexed(tmp_path, paths=("all.npz",))
    sample = decoded(source, 2)
    assert (sample["values"].tolist(), sample["label"].tolist()) == ([2, 3, 4], [6, 7, 8])


def test_members_that_are_not_compressed_are_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **RAGGED, nothing=np.zeros((4, 0)))
    source = indexed(tmp_path, paths=("all.npz",), keys=["values"])
    (column,) = source._columns
    assert not column.values.flags.writeable  # nobody read it into memory
    assert not column.values.flags.owndata


def test_samples_that_transforms_refuse_leave_the_others_in_their_rows(tmp_path: Path, monkeypatch: Any) -> None:
    """Measuring drops rows, so that a sample's number is not its row."""
    saved(tmp_path, **RAGGED)
    (tmp_path / "own_of_numpy.py").write_text(
        "from loader_server.transforms import transform\n"
        "@transform(measured=True, draws=False)\n"
        "def filled(sample, rng):\n"
        "    if not len(sample['values']):\n"
        "        raise ValueError('empty')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "numpy"\npaths = ["data"]\nlength = "values"\n'
        'budget = "9 steps"\ntransforms = ["own_of_numpy:filled"]\n'
    )
    job = JobFile(tmp_path / "job.toml")
    assert index_streams(job, ["train"])["train"].samples == 3
    stream = Stream(job, "train")
    assert [decoded(stream.source, sample)["values"].tolist() for sample in range(3)] == [[0, 1], [2, 3, 4], [5]]
    out = {"values": np.ones((3, 3), np.int32), "values_length": np.zeros(3, np.int32)}
    stream.source.gather(np.arange(3), out)
    assert out["values"].tolist() == [[0, 1, 0], [2, 3, 4], [5, 0, 0]]
    stream.close()


# --- what is refused ---


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"values": RAGGED["values"], "offsets": np.array([0, 2, 5])}, "from 0 to its 6 values, got from 0 to 5"),
        ({"values": RAGGED["values"], "offsets": np.array([1, 2, 6])}, "from 0 to its 6 values, got from 1 to 6"),
        ({"values": RAGGED["values"], "offsets": np.array([0, 4, 2, 6])}, "that never fall, got a fall after number 1"),
        ({"values": RAGGED["values"], "offsets": np.array([0.0, 6.0])}, "whole numbers in one axis.* got float64"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, '3 samples of "b", as of "a", got 4'),
        ({"a": np.array(["x", "y"])}, '"a" of a dtype of bool, float16.*, got <U1'),
        ({"a": np.zeros(3, ">i4")}, "got >i4.*Convert it by astype"),
        ({"a": np.float32(3)}, 'an array "a" with a row a sample, got a single number'),
    ],
)
def test_arrays_that_make_no_samples_are_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        indexed(saved(tmp_path, **arrays))


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_pickles_are_never_loaded(tmp_path: Path, save: Any) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "trapped"),)

    path = tmp_path / ("a.npy" if save is np.save else "a.npz")
    save(path, np.array([Trap(), None], object))
    with pytest.raises(DataError, match=r"expected a whole file of plain arrays, no pickles, got .*[Oo]bject"):
        indexed(tmp_path, paths=(path.name,))
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, name: str) -> None:
    (np.save if name == "a.npy" else np.savez)(tmp_path / name, np.arange(1000))
    os.truncate(tmp_path / name, 5000)
    with pytest.raises(DataError, match=f"{name}: expected a whole file of plain arrays"):
        indexed(tmp_path, paths=(name,))


def test_an_archive_that_is_damaged_inside_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, np.arange(1000))
    raw = path.read_bytes()
    path.write_bytes(raw[:100] + b"\xff" * 100 + raw[200:])
    with pytest.raises(DataError, match=r"a\.npz: expected a whole file of plain arrays"):
        indexed(tmp_path, paths=("a.npz",))


def test_an_archive_without_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz")
    with pytest.raises(DataError, match=r"none\.npz: expected at least one array, got none"):
        indexed(tmp_path, paths=("none.npz",))


def test_an_unknown_key_and_a_name_twice_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, **RAGGED)
    with pytest.raises(DataError, match='expected an array "tokens", got "values"'):
        indexed(tmp_path, keys=["tokens"])
    np.savez(tmp_path / "more.npz", **RAGGED)
    with pytest.raises(DataError, match=r'expected one array ".*", got another one'):
        indexed(tmp_path, paths=("data", "more.npz"))


def test_data_of_the_same_size_that_are_others_are_refused_and_a_copy_is_not(tmp_path: Path) -> None:
    saved(tmp_path, values=np.arange(300_000), offsets=np.arange(300_001))
    spec = spec_of("numpy", tmp_path, paths=["data"])
    index_source(spec)
    path = tmp_path / "data" / "values.npy"
    untouched = spec.make()
    untouched.files.read = None  # type: ignore[assignment, method-assign]  # nothing is read of a file as old as it was
    untouched.open(open_index(tmp_path / "index").indexed)
    untouched.close()
    os.utime(path, ns=(1, 1))
    open_source(spec).close()
    np.save(path, np.arange(300_000) + 1)
    with pytest.raises(DataError, match=r"another one of the same size.*run loader-server index"):
        open_source(spec)


def write_over(path: Path) -> None:
    written = np.load(path, mmap_mode="r+")
    written[:] = 9
    written.flush()
    os.utime(path, ns=(1, 1))


def test_arrays_that_are_written_over_while_they_are_in_use_are_refused(tmp_path: Path) -> None:
    source = indexed(saved(tmp_path, **RAGGED))
    out = {"values": np.empty((1, 3), np.int32), "values_length": np.empty(1, np.int32)}
    source.gather(np.array([2]), out)
    assert out["values"].tolist() == [[2, 3, 4]]
    path = tmp_path / "data/values.npy"
    write_over(path)
    for read in (lambda: source.gather(np.array([2]), out), lambda: decoded(source, 2)):
        with pytest.raises(ReadError, match=r"values\.npy: expected the file that was indexed, got another one"):
            read()
    path.unlink()
    with pytest.raises(ReadError, match=r"values\.npy: expected the file that was indexed, got No such file"):
        decoded(source, 2)


def test_what_was_only_touched_while_it_is_in_use_is_compared_once(tmp_path: Path) -> None:
    source = indexed(saved(tmp_path, **RAGGED))
    os.utime(tmp_path / "data/values.npy", ns=(1, 1))
    assert decoded(source, 2)["values"].tolist() == [2, 3, 4]
    source.files.read = None  # type: ignore[assignment, method-assign]  # which comparing takes
    assert decoded(source, 2)["values"].tolist() == [2, 3, 4]


@pytest.mark.parametrize("by", ["samples", "chunks"])
@pytest.mark.parametrize("when", ["between two samples", "within one"])
def test_arrays_that_are_written_over_while_a_batch_is_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, when: str
) -> None:
    source = indexed(saved(tmp_path, **RAGGED))
    path, values_of = tmp_path / "data/values.npy", numpy_arrays._values_of
    chunks = [Chunk(sample=sample, start=0, stop=1, keys=("values",)) for sample in (2, 3)]
    reads = source.read([2, 3]) if by == "samples" else source.read_chunks(chunks)
    assert next(reads)

    def write_over_and_read(column: ArrayColumn, row: int) -> np.ndarray:
        write_over(path)
        return values_of(column, row)

    if when == "within one":
        monkeypatch.setattr(numpy_arrays, "_values_of", write_over_and_read)
    else:
        write_over(path)
    with pytest.raises(ReadError, match=r"values\.npy: expected the file that was indexed, got another one"):
        next(reads)


def test_arrays_that_were_cut_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A process that reads a mapped file beyond its end dies."""
    source = indexed(saved(tmp_path, **RAGGED))
    assert decoded(source, 2)
    os.truncate(tmp_path / "data/values.npy", 0)
    chunk = Chunk(sample=2, start=0, stop=1, keys=("values",))
    out = {"values": np.empty((1, 3), np.int32), "values_length": np.empty(1, np.int32)}
    reads: list[Callable[[], object]] = [
        lambda: next(source.read([2])),
        lambda: next(source.read_chunks([chunk])),
        lambda: source.gather(np.array([2]), out),
    ]
    for read in reads:
        with pytest.raises(ReadError, match=r"values\.npy: expected the file that was indexed, got another one of 0"):
            read()
