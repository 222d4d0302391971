"""The jobs of docs/images_and_tables.md, as they stand there, over data that pandas' and WebDataset's users have."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import trainer_client
from tests.support.forked import run_module
from tests.support.loaders import running

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (Path(__file__).parents[2] / "docs" / "images_and_tables.md").read_text("utf-8")


def example(language: str, beginning: str) -> str:
    """The example that begins so."""
    return next(iter(re.findall(rf"^```{language}\n({re.escape(beginning)}.*?)^```", PAGE, re.DOTALL | re.MULTILINE)))


def job_of(name: str, *replaced: tuple[str, str]) -> str:
    text = example("toml", f'[job]\nname = "{name}"')
    for old, new in (("[job]", '[job]\nlisten = "tcp://127.0.0.1:*"'), *replaced):
        assert old in text
        text = text.replace(old, new, 1)
    return text


def write_table(folder: Path) -> pa.Table:
    rng = np.random.default_rng(0)
    columns = {name: rng.random(600, dtype=np.float32) for name in ("age", "income")}
    table = pa.table({**columns, "label": rng.integers(0, 2, 600).astype(np.int32)})
    pq.write_table(table, folder / "incomes.parquet")
    return table


def write_pictures(path: Path, count: int) -> None:
    with tarfile.open(path, "w") as shard:
        for number in range(count):
            image = io.BytesIO()
            Image.new("RGB", (40 + number, 30), (number, 255 - number, 7)).save(image, "JPEG")
            for suffix, content in (("jpg", image.getvalue()), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"{number:06}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def test_a_table_comes_in_batches_of_256_rows_whole_and_put_together(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    (tmp_path / "my_columns.py").write_text(example("python", "import numpy as np\nfrom loader_server"))
    text = job_of("incomes")
    whole = text[text.index("[streams.train]") :].replace("train", "put")
    (tmp_path / "job.toml").write_text(f'{text}\n{whole}transforms = ["my_columns:as_features"]\n')
    with running(tmp_path / "job.toml", workers=1) as loaders:
        for stream in ("train", "put"):
            with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
                batches = [{key: value.copy() for key, value in batch.items()} for batch in feed]
                assert [shape.rows for shape in feed.shapes] == [256]
            assert [len(batch["weight"]) for batch in batches] == [256] * 3
            assert [int(batch["weight"].sum()) for batch in batches] == [256, 256, 88]
            (last,) = batches[2:]
            assert last["tag"][88:].tolist() == [-1] * 168
            tags = np.concatenate([batch["tag"][batch["weight"] > 0] for batch in batches])
            assert sorted(tags) == list(range(600))
            for name, column in (("age", 0), ("income", 1)):
                values = [batch[name] if stream == "train" else batch["features"][:, column] for batch in batches]
                own = np.concatenate(values)[np.concatenate([batch["weight"] > 0 for batch in batches])]
                assert own.tolist() == table[name].to_numpy()[tags].tolist()
            assert last.keys() == {
                "train": {"age", "income", "label", "weight", "tag"}, "put": {"features", "label", "weight", "tag"},
            }[stream]  # fmt: skip


DECLARED = """
import numpy as np
from loader_server.transforms import transform

@transform({"x": ("float32", None)}, lengths={"x": lambda lengths: 3}, draws=False)
def three(sample, rng):
    sample["x"] = np.full(sample["label"] % 4, 9, np.float32)
"""


def test_keys_that_vary_are_padded_to_the_longest_also_if_the_source_has_no_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", label=np.arange(50, dtype=np.int32))
    (tmp_path / "my_threes.py").write_text(DECLARED)
    job = '[job]\nname = "j"\nlisten = "tcp://127.0.0.1:*"\n[streams.train]\nsource = "numpy"\npaths = ["a.npz"]\n'
    (tmp_path / "job.toml").write_text(job + 'rows = 16\ntransforms = ["my_threes:three"]\npadding = { x = -1 }\n')
    with running(tmp_path / "job.toml", workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        batches = [{key: value.copy() for key, value in batch.items()} for batch in feed]
    assert [batch["x"].shape for batch in batches] == [(16, 3)] * 4
    for batch in batches:
        lengths = np.where(batch["weight"] > 0, batch["label"] % 4, 0)
        assert batch["x_length"].tolist() == lengths.tolist()
        assert batch["x"].tolist() == np.where(np.arange(3) < lengths[:, None], 9.0, -1.0).tolist()


@pytest.mark.parametrize("name", ["pictures", "own_pictures"])
def test_images_come_in_batches_of_so_many_rows_drawn_anew_in_each_epoch(tmp_path: Path, name: str) -> None:
    tf = pytest.importorskip("tensorflow")
    write_pictures(tmp_path / "pictures-0.tar", 20)
    write_pictures(tmp_path / "dev.tar", 5)
    (tmp_path / "my_images.py").write_text(example("python", "import io"))
    (tmp_path / "job.toml").write_text(job_of(name, ("rows = 64", "rows = 8")))
    seen: list[dict[str, np.ndarray]] = []
    with running(tmp_path / "job.toml", workers=1) as loaders:
        with trainer_client.connect(loaders.endpoint, stream="train") as feed:
            data = feed.dataset(inputs="image", targets="cls", weights="weight")
            for image, label, weight in data:
                assert image.shape == (8, 224, 224, 3)
                assert image.dtype == tf.uint8
                red = image[:, 112, 112, 0].numpy()[weight.numpy() > 0].astype(int)
                assert (abs(red - label.numpy()[weight.numpy() > 0]) <= 3).all()
            seen += [{key: value.copy() for key, value in batch.items()} for batch in feed]
        with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
            dev = [batch["cls"][batch["weight"] > 0].tolist() for batch in feed]
    assert sorted(int(batch["weight"].sum()) for batch in seen) == [4, 8, 8]
    (last,) = (batch for batch in seen if batch["weight"].sum() == 4)
    assert not last["image"][4:].any()
    assert sorted(np.concatenate(dev).tolist()) == list(range(5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("rows = 256", 'rows = 256\nbudget = "8 s"'), 'got rows = 256 with budget = "8 s"'),
        (lambda text: text.replace("rows = 256", 'length = "age"\nbudget = "256 steps"'), "rows = 32, and no length"),
        (lambda text: text.replace("rows = 256", ""), "write rows = 32 instead of a budget"),
        (lambda text: text.replace("rows = 256", "rows = 256\nshapes = 4"), "got none with shapes = 4"),
        (
            lambda text: text.replace("rows = 256", 'rows = 256\nchunk = "3 steps"'),
            "length, the key along which samples",
        ),
    ],
)
def test_a_size_that_does_not_fit_is_refused_while_indexing_with_what_to_write(
    tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    write_table(tmp_path)
    (tmp_path / "job.toml").write_text(change(job_of("incomes")))
    code, _, errors = run_module("loader_server", "index", str(tmp_path / "job.toml"))
    assert code == 1
    assert words in errors
    assert "[streams.train]" in errors


def test_a_number_of_samples_is_refused_as_a_budget_with_the_place(tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", image=np.zeros((20, 4, 4), np.uint8))
    job = tmp_path / "job.toml"
    stream = '[job]\nname = "j"\n[streams.train]\nsource = "numpy"\npaths = ["digits.npz"]\nlength = "image"\n'
    job.write_text(stream + 'budget = "8 samples"\n')
    code, _, errors = run_module("loader_server", "index", str(job))
    assert code == 1
    assert "[streams.train], budget" in errors
    assert "Write rows = 8 for batches of 8 samples each" in errors
