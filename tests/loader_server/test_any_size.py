"""Values that differ along two axes, whichever source they come from: whole in batches, padded, and few shapes."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import loader_server
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import DataError, SettingsError, StokerError
from tests.support.example_protos import example
from tests.support.prepared import PACKAGE, prepare
from tests.support.shards import npy, write_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES = [(int(rows), int(columns)) for rows, columns in np.random.default_rng(8).integers(1, 19, (40, 2))]


def scores(sizes: list[tuple[int, int]] = SIZES) -> list[np.ndarray]:
    return [np.random.default_rng(row).random(size, np.float32) + 1 for row, size in enumerate(sizes)]


def pictures(sizes: list[tuple[int, int]] = SIZES) -> list[np.ndarray]:
    return [np.random.default_rng(row).integers(1, 256, (*size, 3), np.uint8) for row, size in enumerate(sizes)]


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


class Plots:
    """A user's own class, whose lengths are measured."""

    def __init__(self, count: int = len(SIZES)) -> None:
        self.values = scores()[:count]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"value": self.values[i], "label": i}


class Told(Plots):
    """One that knows its lengths."""

    def lengths(self) -> dict[str, list[int]]:
        return {
            "value": [len(value) for value in self.values],
            "value_width": [value.shape[1] for value in self.values],
        }


def of_files(folder: Path, values: list[np.ndarray]) -> str:
    rows = []
    for row, value in enumerate(values):
        np.save(folder / f"{row}.npy", value)
        rows.append(json.dumps({"value": f"{row}.npy"}))
    (folder / "a.jsonl").write_text("\n".join(rows))
    return 'source = "files"\npaths = ["a.jsonl"]\ncolumns = { value = "array" }\nany_size = ["value"]'


def of_image_files(folder: Path, values: list[np.ndarray]) -> str:
    for row, value in enumerate(values):
        (folder / f"{row}.png").write_bytes(png(value))
    (folder / "a.csv").write_text("\n".join(["value", *(f"{row}.png" for row in range(len(values)))]))
    return 'source = "files"\npaths = ["a.csv"]\ncolumns = { value = "image" }\nany_size = true'


def of_shards(folder: Path, values: list[np.ndarray]) -> str:
    write_shard(folder / "a.tar", [(f"{row:03}.value.npy", npy(value)) for row, value in enumerate(values)])
    return 'source = "webdataset"\npaths = ["a.tar"]\nany_size = ["value"]'


def of_image_shards(folder: Path, values: list[np.ndarray]) -> str:
    write_shard(folder / "a.tar", [(f"{row:03}.value.png", png(value)) for row, value in enumerate(values)])
    return 'source = "webdataset"\npaths = ["a.tar"]\nimages = ["png"]\nany_size = true'


def table_of(values: list[np.ndarray]) -> pa.Table:
    lists = pa.array([value.tolist() for value in values], pa.list_(pa.list_(pa.float32())))
    return pa.table({"value": lists, "label": list(range(len(values)))})


def of_parquet(folder: Path, values: list[np.ndarray]) -> str:
    pyarrow.parquet.write_table(table_of(values), folder / "values.parquet", row_group_size=7)
    return 'source = "parquet"\npaths = ["values.parquet"]\nany_size = ["value"]'


def of_arrow(folder: Path, values: list[np.ndarray]) -> str:
    table = table_of(values)
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=11)
    return 'source = "arrow"\npaths = ["a.arrow"]\nany_size = ["value"]'


def of_numpy(folder: Path, values: list[np.ndarray]) -> str:
    (folder / "data").mkdir(exist_ok=True)
    for name, array in cells_of(values).items():
        np.save(folder / "data" / f"value_{name}.npy", array)
    np.save(folder / "data" / "label.npy", np.arange(len(values)))
    return 'source = "numpy"\npaths = ["data"]\nany_size = ["value"]'


def cells_of(values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Cells of all, where those of each begin, and the rows and columns of each."""
    return {
        "values": np.concatenate([value.reshape(-1) for value in values]),
        "offsets": np.cumsum([0, *(value.size for value in values)]),
        "shapes": np.array([value.shape for value in values], np.int32),
    }


def of_hdf5(folder: Path, values: list[np.ndarray]) -> str:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, array in cells_of(values).items():
            file[f"value_{name}"] = array
        file["label"] = np.arange(len(values))
    return 'source = "hdf5"\npaths = ["a.h5"]\nany_size = ["value"]'


def of_variable_hdf5(folder: Path, values: list[np.ndarray]) -> str:
    with h5py.File(folder / "a.h5", "w") as file:
        rows = file.create_dataset("value", (len(values),), h5py.vlen_dtype(np.float32))
        for row, value in enumerate(values):
            rows[row] = value.reshape(-1)
        file["value_shapes"] = cells_of(values)["shapes"]
    return 'source = "hdf5"\npaths = ["a.h5"]\nany_size = ["value"]'


def of_class(folder: Path, values: list[np.ndarray]) -> str:
    return f'source = "{__name__}:Plots"\nany_size = ["value"]'


def of_told(folder: Path, values: list[np.ndarray]) -> str:
    return f'source = "{__name__}:Told"'


SOURCES: dict[str, tuple[Callable[[Path, list[np.ndarray]], str], Callable[[], list[np.ndarray]]]] = {
    "files": (of_files, scores),
    "image files": (of_image_files, pictures),
    "webdataset": (of_shards, scores),
    "webdataset images": (of_image_shards, pictures),
    "parquet": (of_parquet, scores),
    "arrow": (of_arrow, scores),
    "numpy": (of_numpy, scores),
    "hdf5": (of_hdf5, scores),
    "hdf5 variable": (of_variable_hdf5, scores),
    "class": (of_class, scores),
    "class with lengths": (of_told, scores),
}


def job_of(folder: Path, source: str, batching: str) -> Path:
    (folder / "job.toml").write_text(f'[job]\nname = "x"\n[streams.train]\n{source}\n{batching}\n')
    return folder / "job.toml"


def batches_of(path: Path, epoch: int = 0) -> list[dict[str, Any]]:
    index_streams(JobFile(path), ["train"])
    stream = loader_server.open(path).stream("train")
    return [stream.batch(number, epoch=epoch).arrays for number in range(stream.batches())]


def require_whole(batches: list[dict[str, Any]], values: list[np.ndarray], fill: float = 0) -> None:
    """Each value once, in the corner of its row, with the padding beside and below it."""
    seen = []
    for arrays in batches:
        for row, padded in enumerate(arrays["value"]):
            rows, columns = int(arrays["value_length"][row]), int(arrays["value_width"][row])
            if arrays["weight"][row]:
                seen.append(number := int(arrays["tag"][row]))
                assert (rows, columns) == values[number].shape[:2]
                assert np.array_equal(padded[:rows, :columns], values[number])
            else:
                assert (rows, columns) == (0, 0)
            assert (padded[rows:] == fill).all()
            assert (padded[:, columns:] == fill).all()
    assert sorted(seen) == list(range(len(values)))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("shapes", "subs"), [(1, 1), (3, 1), (2, 3)])
def test_values_come_whole_in_no_more_shapes_than_are_asked_for(
    tmp_path: Path, name: str, shapes: int, subs: int
) -> None:
    write, make = SOURCES[name]
    values = make()
    sub_buckets = f"sub_buckets = {{ value_width = {subs} }}" if subs > 1 else ""
    batching = f'length = "value"\nrows = 3\nshapes = {shapes}\npadding = {{ value = 7 }}\n{sub_buckets}'
    batches = batches_of(job_of(tmp_path, write(tmp_path, values), batching), epoch=2)
    require_whole(batches, values, fill=7)
    made = {arrays["value"].shape for arrays in batches}
    assert len(made) <= shapes * subs
    assert subs == 1 or len({shape[2] for shape in made}) > 1


@pytest.mark.parametrize("name", ["files", "webdataset", "parquet", "arrow", "class"])
def test_a_second_axis_that_nobody_declared_is_refused_with_what_to_write(tmp_path: Path, name: str) -> None:
    write, make = SOURCES[name]
    source = write(tmp_path, make()).replace('any_size = ["value"]', "")
    path = job_of(tmp_path, source, 'length = "value"\nrows = 3')
    path.write_text(path.read_text().replace('name = "x"', 'name = "x"\nmax_bad = "0 %"'))
    with pytest.raises(DataError, match=r'any_size = \["value"\]'):
        index_streams(JobFile(path), ["train"])


@pytest.mark.parametrize("name", SOURCES)
def test_a_key_that_has_no_two_axes_is_refused_with_those_that_have(tmp_path: Path, name: str) -> None:
    write, make = SOURCES[name]
    lines = [line for line in write(tmp_path, make()).splitlines() if not line.startswith("any_size")]
    path = job_of(tmp_path, "\n".join([*lines, 'any_size = ["valeu"]']), 'length = "value"\nrows = 3')
    with pytest.raises(StokerError, match='"valeu"'):
        index_streams(JobFile(path), ["train"])


@pytest.mark.parametrize("name", ["image files", "webdataset images"])
def test_images_are_either_resized_or_of_any_size(tmp_path: Path, name: str) -> None:
    write, make = SOURCES[name]
    source = write(tmp_path, make())
    for any_size in ("true", '["value"]'):
        asked = source.replace("any_size = true", f"any_size = {any_size}")
        both = job_of(tmp_path, f"{asked}\nresize = [8, 6]", "rows = 3")
        with pytest.raises(SettingsError, match="either resize or any_size = true, got both"):
            index_streams(JobFile(both), ["train"])
    resized = job_of(tmp_path, source.replace("any_size = true", "resize = [8, 6]"), "rows = 4")
    (shape,) = {arrays["value"].shape for arrays in batches_of(resized)}
    assert shape == (4, 8, 6, 3)


def test_lists_in_lists_in_lists_keep_their_last_axis(tmp_path: Path) -> None:
    values = [np.random.default_rng(row).integers(1, 9, (*size, 4), np.int16) for row, size in enumerate(SIZES)]
    column = pa.array([value.tolist() for value in values], pa.list_(pa.list_(pa.list_(pa.int16()))))
    pyarrow.parquet.write_table(pa.table({"value": column}), tmp_path / "a.parquet", row_group_size=9)
    source = 'source = "parquet"\npaths = ["a.parquet"]\nany_size = ["value"]'
    require_whole(batches_of(job_of(tmp_path, source, 'length = "value"\nrows = 3\nshapes = 2')), values)


def test_lists_that_are_uneven_within_a_row_are_bad_rows(tmp_path: Path) -> None:
    rows: list[Any] = [[[1.0, 2], [3, 4]], [[1], [2, 3]], [[5, 6, 7]], [], [[], []], [[8], None], None]
    column = pa.array(rows, pa.list_(pa.list_(pa.float32())))
    pyarrow.parquet.write_table(pa.table({"value": column}), tmp_path / "a.parquet")
    source = 'source = "parquet"\npaths = ["a.parquet"]\nany_size = ["value"]'
    path = job_of(tmp_path, source, 'length = "value"\nrows = 2\nmin_length = 0')
    (report,) = index_streams(JobFile(path), ["train"]).values()
    assert report.bad_counts == {"null": 2, "unequal_lists": 1}
    (uneven,) = [row for row in report.bad if row.reason == "unequal_lists"]
    assert uneven.detail == 'expected lists of one length in each row of "value", got several lengths'
    values = [np.array([[1, 2], [3, 4]]), np.array([[5, 6, 7]]), np.zeros((0, 0)), np.zeros((2, 0))]
    require_whole(batches_of(path), values)


def test_a_batch_gathered_from_lists_is_the_one_that_single_rows_give(tmp_path: Path) -> None:
    path = job_of(tmp_path, of_parquet(tmp_path, scores()), 'length = "value"\nrows = 3')
    index_streams(JobFile(path), ["train"])
    stream = Stream(JobFile(path), "train")
    assert stream.source.gathers
    numbers = np.array([5, 0, 39, 7])
    out = {
        "value": np.full((4, 20, 20), 9, np.float32),
        "value_length": np.zeros(4, np.int32),
        "value_width": np.zeros(4, np.int32),
    }
    stream.source.gather(numbers, out)
    for row, number in enumerate(numbers.tolist()):
        (raw,) = stream.source.read([number])
        value = stream.source.decode(number, raw)["value"]
        assert (out["value_length"][row], out["value_width"][row]) == value.shape == SIZES[number]
        padded = np.zeros((20, 20), np.float32)
        padded[: value.shape[0], : value.shape[1]] = value
        assert np.array_equal(out["value"][row], padded)


@pytest.mark.parametrize("name", ["numpy", "hdf5", "hdf5 variable"])
def test_cells_need_the_rows_and_columns_of_each_sample(tmp_path: Path, name: str) -> None:
    write, make = SOURCES[name]
    batching = 'length = "value"\nrows = 3'
    values = make()
    values[5] = values[5][:, :-1] if values[5].shape[1] > 1 else values[5][:-1]  # and the shapes of before
    path = job_of(tmp_path, write(tmp_path, values), batching)
    shapes = cells_of(make())["shapes"]
    if name == "numpy":
        np.save(tmp_path / "data" / "value_shapes.npy", shapes)
        with pytest.raises(DataError, match=r'expected shapes of "value" with as many cells .* of sample 5'):
            index_streams(JobFile(path), ["train"])
        np.save(tmp_path / "data" / "value_shapes.npy", shapes[:, :1])
        with pytest.raises(DataError, match="rows and columns of each of 40 samples"):
            index_streams(JobFile(path), ["train"])
        (tmp_path / "data" / "value_shapes.npy").unlink()
    else:
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            file["value_shapes"][...] = shapes
        (report,) = index_streams(JobFile(path), ["train"]).values()
        assert (report.samples, report.bad_counts) == (39, {"other_shape": 1})
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            del file["value_shapes"]
    with pytest.raises(DataError, match=r"no .?value_shapes"):
        index_streams(JobFile(path), ["train"])


def test_images_of_shards_stay_bytes_unless_they_are_asked_for(tmp_path: Path) -> None:
    images = pictures(SIZES[:3])
    write_shard(tmp_path / "a.tar", [(f"{row}.jpg", png(image)) for row, image in enumerate(images)])
    source = 'source = "webdataset"\npaths = ["a.tar"]'
    path = job_of(tmp_path, f'{source}\nimages = ["jpg"]\nany_size = true', "rows = 3")
    index_streams(JobFile(path), ["train"])
    stream = Stream(JobFile(path), "train")
    assert [(field.key, field.shape) for field in stream.source.fields] == [("image", (None, None, 3))]
    assert "pillow" in stream.source.versions
    with pytest.raises(DataError, match=r"members that end in \.webp"):
        index_streams(JobFile(job_of(tmp_path, f'{source}\nimages = ["webp"]', "rows = 3")), ["train"])
    write_shard(tmp_path / "a.tar", [("0.jpg", b"none"), *[(f"{row}.jpg", png(images[0])) for row in (1, 2)]])
    path = job_of(tmp_path, f'{source}\nimages = ["jpg"]', "rows = 3")
    (report,) = index_streams(JobFile(path), ["train"]).values()
    assert (report.samples, report.bad_counts) == (2, {"undecodable": 1})


@pytest.mark.parametrize(("lengths", "key"), [({}, "label"), ({"value": [1, 2]}, "value")])
def test_a_class_names_arrays_and_gives_both_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: dict[str, list[int]], key: str
) -> None:
    source = "Told" if lengths else "Plots"
    if lengths:
        monkeypatch.setattr(Told, "lengths", lambda self: lengths)
    table = f'source = "{__name__}:{source}"\narguments = {{ count = 2 }}\nany_size = ["{key}"]'
    path = job_of(tmp_path, table, 'length = "value"\nrows = 2')
    with pytest.raises(SettingsError, match=f'got "{key}"' + (".*lengths" if lengths else "")):
        index_streams(JobFile(path), ["train"])


def test_an_index_of_images_of_one_size_is_as_it_was(tmp_path: Path) -> None:
    """A setting that is not set enters no fingerprint, so indexes from before it stay valid."""
    path = job_of(
        tmp_path, of_class(tmp_path, []).replace('any_size = ["value"]', "arguments = { count = 1 }"), "rows = 1"
    )
    index_streams(JobFile(path), ["train"])
    facts = json.loads(next((tmp_path / ".stoker").rglob("meta.json")).read_text())
    assert "any_size" not in facts["settings"]
    assert facts["numbers"] == ["item", "length_value"]


DECODING = """
import io
import numpy as np
from PIL import Image
from loader_server.transforms import transform

@transform(DECLARED)
def decoded(sample, rng):
    sample["value"] = np.asarray(Image.open(io.BytesIO(sample.pop("value.png"))))
"""


def of_decoding(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, declared: str) -> Path:
    monkeypatch.syspath_prepend(str(folder))
    (folder / f"{name}.py").write_text(DECODING.replace("DECLARED", declared))
    source = of_image_shards(folder, pictures()).replace('images = ["png"]\nany_size = true', "")
    return job_of(folder, f'{source}\ntransforms = ["{name}:decoded"]', 'length = "value"\nrows = 3\nshapes = 2')


@pytest.mark.parametrize("processes", [1, 3])
def test_a_transform_declares_two_axes_whose_lengths_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    declared = '{"value": ("uint8", None, None, 3)}, removes=("value.png",), draws=False, measured=True'
    path = of_decoding(tmp_path, monkeypatch, f"decoding_{processes}", declared)
    index_streams(JobFile(path), ["train"], processes=processes)
    stream = Stream(JobFile(path), "train")
    assert stream.chain.measured
    assert [(field.key, field.shape) for field in stream.chain.fields] == [("value", (None, None, 3))]
    require_whole(batches_of(path), pictures())


def test_a_second_axis_that_a_transform_does_not_declare_is_refused_with_the_declaration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_decoding(tmp_path, monkeypatch, "decoding_bare", "measured=True")
    with pytest.raises(DataError) as refused:
        index_streams(JobFile(path), ["train"])
    assert '@transform({"value": ("uint8", None, None, 3)}, measured=True)' in str(refused.value)


def test_images_of_a_prepared_data_set_are_of_any_size_too(tmp_path: Path) -> None:
    place = tmp_path / "tiny" / "1.0.0"
    prepare(place, [[example(value=png(image), label=1) for image in pictures()]])
    image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8", "encodingFormat": "png"}
    features = json.loads((place / "features.json").read_text())
    own = features["featuresDict"]["features"]
    own["value"] = {"pythonClassName": f"{PACKAGE}image_feature.Image", "image": image}
    features["featuresDict"]["features"] = {key: own[key] for key in ("value", "label")}
    (place / "features.json").write_text(json.dumps(features))
    source = 'source = "tfds"\nfolder = "tiny/1.0.0"\nsplit = "train"\nany_size = ["value"]'
    require_whole(batches_of(job_of(tmp_path, source, 'length = "value"\nrows = 3\nshapes = 2')), pictures())
