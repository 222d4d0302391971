"""Keys that vary along two axes, from files to batches: shapes, widths, padding, masked rows, refusals."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import loader_server
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import SettingsError
from shared.wire.batch_layout import BucketShape, Field, fields_of_batch, layout_of

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [(int(rows), int(columns)) for rows, columns in np.random.default_rng(4).integers(3, 41, (60, 2))]


def picture(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, (rows, columns, 3), np.uint8)


def write(folder: Path, sizes: list[tuple[int, int]] = SIZES) -> list[np.ndarray]:
    images = [picture(*size, seed=seed) for seed, size in enumerate(sizes)]
    rows = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "png")
        rows.append({"bytes": file.getvalue(), "path": None})
    column = pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": column, "label": list(range(len(rows)))}), folder / "a.parquet")
    return images


def job_of(folder: Path, batching: str, *, any_size: str = "any_size = true", index: bool = True) -> Path:
    (folder / "job.toml").write_text(
        f'[job]\nname = "x"\n[streams.train]\nsource = "parquet"\npaths = ["a.parquet"]\n{any_size}\n{batching}\n'
    )
    if index:
        index_streams(JobFile(folder / "job.toml"), ["train"])
    return folder / "job.toml"


def batches_of(path: Path) -> list[dict[str, Any]]:
    stream = loader_server.open(path).stream("train")
    return [stream.batch(number).arrays for number in range(stream.batches())]


def require_whole(batches: list[dict[str, Any]], images: list[np.ndarray], fill: int = 0) -> None:
    """Each image once, in its own corner, with the padding beside, below and in rows without a sample."""
    seen = []
    for arrays in batches:
        for row, image in enumerate(arrays["image"]):
            rows, columns = int(arrays["image_length"][row]), int(arrays["image_width"][row])
            if arrays["weight"][row]:
                expected = images[arrays["label"][row]]
                assert (rows, columns) == expected.shape[:2]
                assert np.array_equal(image[:rows, :columns], expected)
                seen.append(int(arrays["label"][row]))
            else:
                assert (rows, columns) == (0, 0)
            assert (image[rows:] == fill).all()
            assert (image[:, columns:] == fill).all()
    assert sorted(seen) == list(range(len(images)))


@pytest.mark.parametrize(
    "batching",
    [
        'length = "image"\nrows = 4',
        'length = "image"\nrows = 4\nshapes = 3',
        'length = "image"\nbudget = "100 steps"\nshapes = 2',
        'length = "image"\nrows = 4\nshapes = 2\npad_to = "batch"',
        'length = "image"\nrows = 4\nshapes = "none"',
        'length = "image"\nrows = 2\nshapes = 3\nsub_buckets = { image_width = 3 }',
        'length = "image"\nbudget = "200 steps"\nlimits = { image_width = "160 steps" }',
    ],
)
def test_images_of_any_size_come_whole_and_padded_in_both_axes(tmp_path: Path, batching: str) -> None:
    images = write(tmp_path)
    require_whole(batches_of(job_of(tmp_path, batching)), images)


@pytest.mark.parametrize(("shapes", "subs"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_there_are_no_more_shapes_than_the_settings_say_and_sub_buckets_save_width(
    tmp_path: Path, shapes: int, subs: int
) -> None:
    images = write(tmp_path)
    sub_buckets = f"\nsub_buckets = {{ image_width = {subs} }}" if subs > 1 else ""
    path = job_of(tmp_path, f'length = "image"\nrows = 2\nshapes = {shapes}{sub_buckets}')
    batches = batches_of(path)
    require_whole(batches, images)
    made = {arrays["image"].shape for arrays in batches}
    assert len(made) <= shapes * subs
    if subs > 1:
        assert len({shape[2] for shape in made}) > 1


def test_padding_fills_both_axes_and_rows_without_a_sample(tmp_path: Path) -> None:
    images = write(tmp_path)
    path = job_of(tmp_path, 'length = "image"\nrows = 7\nshapes = 2\npadding = { image = 9 }')
    require_whole(batches_of(path), images, fill=9)


def test_a_sample_that_a_transform_refuses_masks_its_row_in_both_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "failing_images.py").write_text(
        "from loader_server.transforms import transform\n"
        "@transform(draws=False)\n"
        "def fails(sample, rng):\n    assert sample['label'] != 5\n"
    )
    path = job_of(
        tmp_path, 'length = "image"\nrows = 4\ntransforms = ["failing_images:fails"]\npadding = { image = 9 }'
    )
    stream = Stream(JobFile(path), "train")
    assert [field.shape for field in stream.chain.fields] == [(None, None, 3), ()]
    batches = batches_of(path)
    rows = [(arrays, row) for arrays in batches for row in range(4) if arrays["tag"][row] == 5]
    (arrays, row) = next((arrays, row) for arrays, row in rows if not arrays["weight"][row])
    assert (arrays["image"][row] == 9).all()
    assert (int(arrays["image_length"][row]), int(arrays["image_width"][row])) == (0, 0)
    assert sum(int(arrays["weight"].sum()) for arrays in batches) == len(images) - 1


def test_a_resized_stream_needs_no_bucket(tmp_path: Path) -> None:
    images = write(tmp_path)
    path = job_of(tmp_path, 'rows = 8\ntransforms = ["resize_image"]\n[streams.train.resize_image]\nsize = [16, 24]')
    batches = batches_of(path)
    assert {arrays["image"].shape for arrays in batches} == {(8, 16, 24, 3)}
    for arrays in batches:
        assert "image_length" not in arrays
        for row in np.flatnonzero(arrays["weight"]):
            own = Image.fromarray(images[arrays["label"][row]]).resize((24, 16), Image.Resampling.BILINEAR)
            assert np.array_equal(arrays["image"][row], np.array(own))


def test_small_images_are_bad_rows_of_a_crop(tmp_path: Path) -> None:
    write(tmp_path)
    path = job_of(
        tmp_path,
        'rows = 4\ntransforms = ["centre_crop"]\n[streams.train.centre_crop]\nsize = [10, 10]',
        index=False,
    )
    index_streams(JobFile(path), ["train"])
    large = sum(min(size) >= 10 for size in SIZES)
    assert Stream(JobFile(path), "train").source.samples == large


@pytest.mark.parametrize(
    ("batching", "any_size", "message"),
    [
        (
            'length = "image"\nbudget = "80 steps"\npacking = "80 steps"',
            "any_size = true",
            "vary along one axis.*packing",
        ),
        ('length = "image"\nrows = 2\nchunk = "8 steps"', "any_size = true", "chunk"),
        ('length = "image_width"\nrows = 2', "any_size = true", 'length = "image", got "image_width"'),
        (
            'length = "image"\nrows = 2',
            "any_size = true\nresize = [8, 8]",
            "either resize or any_size = true, got both",
        ),
    ],
)
def test_what_works_along_one_axis_is_refused(tmp_path: Path, batching: str, any_size: str, message: str) -> None:
    write(tmp_path)
    with pytest.raises(SettingsError, match=message):
        Stream(JobFile(job_of(tmp_path, batching, any_size=any_size)), "train")


def test_images_of_other_sizes_stay_bad_rows_unless_any_size_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, [(8, 9), (8, 9), (7, 9)])
    path = job_of(tmp_path, 'length = "image"\nrows = 2', any_size="")
    assert Stream(JobFile(path), "train").source.samples == 2


def test_layouts_have_both_lengths_and_no_other_key_gets_a_width() -> None:
    fields = (
        Field(key="image", dtype="uint8", shape=(None, None, 3)),
        Field(key="text", dtype="int32", shape=(None,)),
        Field(key="label", dtype="int64", shape=()),
    )
    batch = fields_of_batch(fields)
    assert [field.key for field in batch] == [
        *("image", "text", "label", "image_length", "text_length", "image_width", "weight", "tag")
    ]
    layout = layout_of(batch, BucketShape(rows=2, lengths={"image": 5, "image_width": 7, "text": 4}))
    assert layout.tensors[0].shape == (2, 5, 7, 3)
    assert [field.length_keys for field in fields] == [("image", "image_width"), ("text",), ()]
