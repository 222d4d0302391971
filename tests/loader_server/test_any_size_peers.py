"""Values of any size as other packages write and read them: the same, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.loader_server.test_any_size import job_of, pictures, scores

if TYPE_CHECKING:
    from pathlib import Path

_BATCHING = 'length = "image"\nrows = 4\nshapes = 2'


def samples_of(path: Path) -> list[dict[str, Any]]:
    index_streams(JobFile(path), ["train"])
    stream = Stream(JobFile(path), "train")
    numbers = range(stream.source.samples)
    return [stream.values(0, number, raw) for number, raw in zip(numbers, stream.source.read(numbers), strict=True)]


@pytest.mark.parametrize(
    ("suffix", "mode", "colours"), [("jpg", "rgb8", "RGB"), ("png", "l8", "L"), ("png", "rgba8", "RGBA")]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves the shard open
def test_shards_of_webdataset(tmp_path: Path, suffix: str, mode: str, colours: str) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as shard:
        for number, image in enumerate(pictures()):
            made = Image.fromarray(image).convert("RGB" if suffix == "jpg" else colours)
            shard.write({"__key__": f"{number:04}", suffix: made, "npy": scores()[number]})
    source = f'source = "webdataset"\npaths = ["a.tar"]\nimages = ["{suffix}"]\ncolours = "{colours}"'
    ours = samples_of(job_of(tmp_path, f'{source}\nany_size = ["image", "npy"]', _BATCHING))
    theirs = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False, empty_check=False).decode(mode))
    assert len(ours) == len(theirs) == len(pictures())
    for own, other in zip(ours, theirs, strict=True):
        assert np.array_equal(own["image"].reshape(other[suffix].shape), other[suffix])
        assert np.array_equal(own["npy"], other["npy"])


def test_columns_of_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "scores": datasets.Sequence(datasets.Sequence(datasets.Value("float32")))}
    )
    rows = {"image": [Image.fromarray(image) for image in pictures()], "scores": [value.tolist() for value in scores()]}
    made = datasets.Dataset.from_dict(rows, features=features)
    made.to_parquet(tmp_path / "a.parquet")
    made.save_to_disk(tmp_path / "saved")
    for source in ('source = "parquet"\npaths = ["a.parquet"]', 'source = "arrow"\npaths = ["saved"]'):
        ours = samples_of(job_of(tmp_path, f'{source}\nany_size = ["image", "scores"]', _BATCHING))
        for own, other in zip(ours, made, strict=True):
            assert np.array_equal(own["image"], np.array(other["image"]))
            assert np.array_equal(own["scores"], np.array(other["scores"], np.float32))
