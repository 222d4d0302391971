"""What `docs/transforms.md` shows works as it stands there."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from loader_server import transforms
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from loader_server.transforms import declare
from loader_server.transforms.chain import Chain
from loader_server.transforms.find import built_ins
from shared.settings.job import tomllib
from shared.wire.batch_layout import Field
from tests.support.token_models import train_sentencepiece, train_tokenizer

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "transforms.md").read_text("utf-8")
RAW = (Field(key="audio", dtype="float32", shape=(None,)),)


def examples(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def my_package(tmp_path, monkeypatch):
    for source in examples("python"):
        name = re.match(r"# (\S+)", source)[1]
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").replace("/", "."), raising=False)
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_function_and_its_table(my_package):
    (toml,) = (one for one in examples("toml") if "my_package" in one)
    table = tomllib.loads(toml)["streams"]["train"]
    own = table["transforms"][:1]
    made = Chain.make(tuple(own), {"noise": table["noise"]}, "job", RAW)
    values = made.apply({"audio": np.zeros(10_000, np.float32)}, seed=1, epoch=0, number=0)
    assert values["audio"].std() == pytest.approx(table["noise"]["level"], rel=0.1)
    assert [name for name in table["transforms"] if name not in own] == ["logmel"]


@pytest.mark.parametrize(
    "toml",
    [one for one in examples("toml") if "transforms =" in one and not re.search("my_package|models =|image", one)],
)
def test_built_in_transforms_in_a_row(toml):
    table = tomllib.loads(toml)["streams"]["train"]
    tables = {name: settings for name, settings in table.items() if name != "transforms"}
    sample = {"audio": np.ones(4000, np.float32), "audio_rate": 8000, "text": "two"}
    made = Chain.make(tuple(table["transforms"]), tables, "job", RAW).apply(sample, seed=1, epoch=0, number=0)
    assert {key: value.ndim for key, value in made.items()} == {"audio": 2, "text": 1}


@pytest.mark.parametrize("toml", [one for one in examples("toml") if "any_size" in one])
def test_built_in_transforms_of_images(toml):
    for table in tomllib.loads(toml)["streams"].values():
        names = tuple(table["transforms"])
        tables = {name: settings for name, settings in table.items() if name in names}
        raw = (Field(key="image", dtype="uint8", shape=(None, None, 3)),)
        made = Chain.make(names, tables, "job", raw).apply(
            {"image": np.ones((300, 400, 3), np.uint8)}, seed=1, epoch=0, number=0
        )
        assert made["image"].shape == (224, 224, 3)
        assert made["image"].dtype == np.float32


@pytest.mark.parametrize("toml", [one for one in examples("toml") if "models =" in one])
def test_built_in_transforms_of_texts(toml, tmp_path):
    (tmp_path / "train.en").write_text("the fox\nthe big cat is blue\n")
    (tmp_path / "train.de").write_text("der Bär\nthe cat\n")
    (tmp_path / "pages.jsonl").write_text('{"text": "the fox"}\n{"text": ""}\n')
    for name in ("en.model", "de.model"):
        train_sentencepiece(tmp_path / name)
    train_tokenizer(tmp_path / "tokenizer.json")
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("</s>", "<|endoftext|>"))
    (tmp_path / "job.toml").write_text(f'[job]\nname = "x"\n{toml}')
    job = JobFile(tmp_path / "job.toml")
    index_streams(job, ["train"], processes=1)
    stream = Stream(job, "train")
    assert stream.samples == 2
    made = stream.values(0, 0, next(iter(stream.source.read([0]))))
    keys = [field.key for field in stream.chain.fields]
    assert {key: len(value) for key, value in made.items()} == {key: stream.table.lengths(key, 0, 1)[0] for key in keys}


def test_each_built_in_transform_is_in_the_table():
    for name in built_ins():
        assert re.search(rf"^\| \[?`{name}`", PAGE, re.MULTILINE), name


def test_the_class(my_package):
    (my_package / "words.txt").write_text("zero\none\n")
    settings = {"vocabulary": str(my_package / "words.txt"), "most": 2}
    made = Chain.make(("my_package.words:Words",), {"Words": settings}, "job", ())
    assert made.apply({"text": "one two one"}, seed=1, epoch=0, number=0)["text"].tolist() == [2, 0]
    assert made.lengths({"text": np.array([0, 1, 3, 9])})["text"].tolist() == [0, 1, 2, 2]
    assert not made.draws


def test_every_argument_of_the_declaration_is_explained():
    first, *others = inspect.signature(transforms.transform).parameters
    table = PAGE[PAGE.index("## What it declares") :]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == others
    assert first == "outputs"


def test_the_path_of_before_goes_on_working():
    assert declare.transform is transforms.transform
    assert declare.__all__.count("transform") == 1
