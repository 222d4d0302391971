"""Texts of a batch that are decoded and made ids together give the bytes of one by one: in mixtures, padded, packed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.building.builder import Builder
from loader_server.building.quarantine import Quarantine
from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.support.in_memory import Steps, memory_want
from tests.support.token_models import TEXTS, train_sentencepiece, train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

LINES = {"source": "lines", "paths": ["a.txt"]}
OBJECTS = {"source": "jsonl", "paths": ["a.jsonl"]}
TEXTS_OF_OBJECTS = {**OBJECTS, "keys": {"text": "text"}}
PAIRS = {"source": "parallel", "paths": {"text": "a.txt", "other": "b.txt"}}
MODELS = {"tokenizers": "tokenizer.json", "sentencepiece": "text.model"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    train_tokenizer(folder / "tokenizer.json")
    train_sentencepiece(folder / "text.model")
    lines = [" ".join(TEXTS[: 1 + number % 7]) + f" {number}" for number in range(300)]
    (folder / "a.txt").write_text("\n".join(lines) + "\n")
    (folder / "b.txt").write_text("\n".join(reversed(lines)) + "\n")
    objects = [{"text": line.upper(), "number": place} for place, line in enumerate(lines)]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in objects))
    return folder


def opened(folder: Path, sources: list[dict[str, object]], transform: str, batching: str) -> Stream:
    tables = ["\n".join(f"{key} = {_written(value)}" for key, value in one.items()) for one in sources]
    if len(tables) > 1:
        tables = ["weights = [1, 1]\ncycle = [false, false]", *(f"[[streams.train.sources]]\n{one}" for one in tables)]
    (folder / "job.toml").write_text(
        f'[job]\nname = "texts"\n[streams.train]\nlength = "text"\nbudget = "2000 tokens"\n{batching}\n'
        f'transforms = ["{transform}"]\n{transform}.models = {{ text = "{MODELS[transform]}" }}\n' + "\n".join(tables)
    )
    job = JobFile(folder / "job.toml")
    index_streams(job, ["train"], processes=1, force=True)
    return Stream(job, "train")


def _written(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("sources", "transform", "batching"),
    [
        ([LINES], "tokenizers", "shapes = 4"),
        ([TEXTS_OF_OBJECTS], "sentencepiece", 'packing = "300 tokens"'),
        ([PAIRS], "sentencepiece", "shapes = 4"),
        ([LINES, OBJECTS], "sentencepiece", "shapes = 4"),
        ([LINES, OBJECTS], "tokenizers", 'packing = "300 tokens"'),
    ],
    ids=["lines", "packed objects", "pairs", "a mixture", "a packed mixture"],
)
def test_the_bytes_are_those_of_one_by_one(
    folder: Path, sources: list[dict[str, object]], transform: str, batching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = opened(folder, sources, transform, batching)
    builder = Builder(stream, Quarantine(folder / "quarantine"), Steps())
    for number in range(builder.batches(0, 1)):
        want = replace(memory_want(), number=number)
        made = []
        for together in (True, False):
            with monkeypatch.context() as patch:
                # Whichever way is not meant must not be taken.
                patch.setattr(builder, "_together", together)
                if together:
                    patch.setattr(stream.source, "decode", None)
                prepared = builder.prepare(want)
                built = builder.build(want, prepared, np.full(prepared.layout.nbytes, 0xA5, np.uint8))
            made.append((built.digest, built.rows, built.masked, built.sample_cells, built.decoded))
        assert made[0] == made[1]
        assert made[0][2] == 0
    stream.close()
