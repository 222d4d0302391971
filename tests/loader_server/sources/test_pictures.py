"""Images that the first transform takes before they are arrays: the same pixels, whatever file and transform it is."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.sources.image_files import Images
from loader_server.sources.pictures import Picture
from loader_server.sources.source import decoded
from loader_server.stream import Stream
from shared.errors import SampleError
from tests.support.shards import write_shard

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ["jpeg", "png", "webp", "gif", "tiff", "bmp"]
COLOURS = {"RGB": 3, "L": 1, "RGBA": 4}


def encoded(form: str, mode: str = "RGB", size: tuple[int, int] = (31, 22), seed: int = 0) -> bytes:
    shape = (*size, COLOURS[mode]) if COLOURS[mode] > 1 else size
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert("RGB" if form in ("jpeg", "bmp") else mode).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("colours", COLOURS)
def test_a_picture_outlives_its_file_and_is_the_array(form: str, colours: str) -> None:
    raw = encoded(form, colours)
    picture = Images(colours).picture(raw, "here")
    expected = np.array(Image.open(io.BytesIO(raw)).convert(colours)).reshape(31, 22, -1)
    assert picture.shape == expected.shape == (31, 22, COLOURS[colours])
    assert np.array_equal(picture.array(), expected)
    assert np.array_equal(picture.part(3, 4, (20, 10)).array(), expected[3:23, 4:14])
    first = picture.array()
    first[...] = 0  # each has memory of its own
    assert np.array_equal(picture.array(), expected)


def test_what_a_file_lacks_is_noticed_before_a_transform_sees_it() -> None:
    raw = encoded("jpeg", size=(300, 300))
    with pytest.raises(SampleError, match="JPEG, PNG or another image"):
        Images("RGB").picture(raw[: len(raw) // 2], "here")


def of_parquet(folder: Path, files: list[bytes]) -> str:
    column = pa.array(
        [{"bytes": raw, "path": None} for raw in files], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    pyarrow.parquet.write_table(pa.table({"image": column}), folder / "a.parquet")
    return 'source = "parquet"\npaths = ["a.parquet"]'


def of_files(folder: Path, files: list[bytes]) -> str:
    for row, raw in enumerate(files):
        (folder / f"{row}.jpg").write_bytes(raw)
    (folder / "a.csv").write_text("\n".join(["image", *(f"{row}.jpg" for row in range(len(files)))]))
    return 'source = "files"\npaths = ["a.csv"]\ncolumns = { image = "image" }'


def of_shards(folder: Path, files: list[bytes]) -> str:
    write_shard(folder / "a.tar", [(f"{row}.jpg", raw) for row, raw in enumerate(files)])
    return 'source = "webdataset"\npaths = ["a.tar"]\nimages = ["jpg"]'


TRANSFORMS = {
    "resize_image": "size = [12, 17]",
    "centre_crop": "size = [8, 9]",
    "random_crop": "size = [8, 9]",
    "random_resized_crop": "size = [10, 11]",
}


@pytest.mark.parametrize("write", [of_parquet, of_files, of_shards])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("colours", COLOURS)
@pytest.mark.parametrize("mixed", [False, True])
def test_transforms_make_the_same_of_pictures_and_of_arrays(
    tmp_path: Path, write: object, name: str, colours: str, mixed: bool
) -> None:
    sizes = np.random.default_rng(3).integers(10, 40, (8, 2)).tolist()
    files = [encoded(FORMATS[row % 3], size=tuple(size), seed=row) for row, size in enumerate(sizes)]
    source = f'{write(tmp_path, files)}\ncolours = "{colours}"\nany_size = true'  # type: ignore[operator]
    if mixed:
        source = "\n".join(f"[[streams.train.sources]]\n{source}" for _ in range(2))
    stream = f'transforms = ["{name}"]\nrows = 2\n[streams.train.{name}]\n{TRANSFORMS[name]}\n'
    (tmp_path / "job.toml").write_text(
        f'[job]\nname = "x"\n[streams.train]\n{stream}\n{source}'
        if mixed
        else f'[job]\nname = "x"\n[streams.train]\n{source}\n{stream}'
    )
    index_streams(JobFile(tmp_path / "job.toml"), ["train"])
    opened = Stream(JobFile(tmp_path / "job.toml"), "train")
    numbers = range(opened.source.samples)
    assert len(numbers) >= 8
    for number, raw in zip(numbers, opened.source.read(numbers), strict=True):
        assert isinstance(opened.raw_values(number, raw)["image"], Picture)
        arrays = decoded(opened.source, number, raw)
        assert isinstance(arrays["image"], np.ndarray)
        expected = opened.chain.apply(arrays, seed=opened.seed, epoch=3, number=number)
        assert np.array_equal(opened.values(3, number, raw)["image"], expected["image"])
    opened.close()


def raw_of(stream: Stream, sample: int) -> bytes:
    (raw,) = stream.source.read([sample])
    return raw


def test_a_transform_of_ones_own_that_comes_first_gets_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "first_of_all.py").write_text(
        "from loader_server.transforms import transform\n"
        "@transform(draws=False)\ndef brighter(sample, rng):\n    sample['image'] += 1\n"
    )
    source = of_parquet(tmp_path, [encoded("png", seed=seed) for seed in range(4)])
    (tmp_path / "job.toml").write_text(
        f'[job]\nname = "x"\n[streams.train]\n{source}\nrows = 2\n'
        'transforms = ["first_of_all:brighter", "centre_crop"]\n'
        "[streams.train.centre_crop]\nsize = [8, 9]\n"
    )
    index_streams(JobFile(tmp_path / "job.toml"), ["train"])
    opened = Stream(JobFile(tmp_path / "job.toml"), "train")
    values = opened.values(0, 1, raw_of(opened, 1))["image"]
    whole = np.array(Image.open(io.BytesIO(encoded("png", seed=1)))) + np.uint8(1)
    assert np.array_equal(values, whole[11:19, 6:15])
