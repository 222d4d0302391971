"""What `docs/transforms.md` shows works as it stands there."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from loader_server import transforms
from loader_server.transforms import declare
from loader_server.transforms.chain import Chain
from shared.config import tomllib
from shared.wire.layout import Field

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
    (toml,) = examples("toml")
    table = tomllib.loads(toml)["streams"]["train"]
    own = table["transforms"][:1]
    made = Chain.make(tuple(own), {"noise": table["noise"]}, "job", RAW)
    values = made.apply({"audio": np.zeros(10_000, np.float32)}, seed=1, epoch=0, number=0)
    assert values["audio"].std() == pytest.approx(table["noise"]["level"], rel=0.1)
    assert [name for name in table["transforms"] if name not in own] == ["logmel"]


def test_the_class(my_package):
    (my_package / "words.txt").write_text("zero\none\n")
    settings = {"vocabulary": str(my_package / "words.txt"), "most": 2}
    made = Chain.make(("my_package.words:Words",), {"Words": settings}, "job", ())
    assert made.apply({"text": "one two one"}, seed=1, epoch=0, number=0)["text"].tolist() == [2, 0]
    assert made.lengths({"text": np.array([0, 1, 3, 9])})["text"].tolist() == [0, 1, 2, 2]
    assert not made.draws


def test_every_argument_of_the_declaration_is_explained():
    first, *others = inspect.signature(transforms.transform).parameters
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == others
    assert first == "outputs"


def test_the_path_of_before_goes_on_working():
    assert declare.transform is transforms.transform
    assert declare.__all__.count("transform") == 1
