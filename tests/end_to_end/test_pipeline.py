"""A user's own `tf.data` pipeline over a stream of the job, as docs/pipelines.md has it: the same function in workers,
one of which is killed, and here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainer_client
from loader_server.stream import JobFile
from shared.pipeline_elements import digest_of, element_of
from tests.support.loaders import running

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text("utf-8")
JOB = """
[job]
name = "sentences"
seed = 5
listen = "tcp://127.0.0.1:*"
"""
DEFAULT = """
[streams.default]
source = "pipeline"
base = "sentences"
"""
#: Tells who runs which shard, and fails in the second epoch.
WATCHED = """
import os, pathlib
_documented = dataset_pipeline

def dataset_pipeline(context):
    if context.epoch:
        raise ValueError("no second epoch")
    (pathlib.Path(__file__).parent / f"made-{context.shard}-by-{os.getpid()}").touch()
    return _documented(context)
"""
LINES = [chr(97 + n % 26) * (1 + n % 7) for n in range(50)]


def example(language: str) -> str:
    return next(iter(re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_pipeline.py").write_text(example("python") + WATCHED)
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "job.toml").write_text(JOB + example("toml") + DEFAULT)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "job.toml"


def flat(batch: trainer_client.Batch) -> dict[str, np.ndarray]:
    return {key: batch[key][0] for key in batch if key.endswith((":values", ":shape"))}


@pytest.mark.heritage("R1")
@pytest.mark.heritage("R2")
@pytest.mark.heritage("R3")
@pytest.mark.heritage("R4")
def test_one_function_serves_both_sides_and_a_lost_worker_changes_nothing(job: Path) -> None:
    with running(job) as loaders:
        plain: list[trainer_client.Batch] = []
        with trainer_client.connect(loaders.endpoint, prefetch=2) as feed:
            for batch in feed:
                if batch.number == 1:  # both shards are being made
                    makers = [one for one in loaders.workers() if [*job.parent.glob(f"made-*-by-{one.pid}")]]
                    makers[0].kill()
                plain.append(batch)
            made = [len(list(job.parent.glob(f"made-{shard}-by-*"))) for shard in range(2)]
            with pytest.raises(trainer_client.RefusedError, match=r"(?s)ValueError: no second epoch.*my_pipeline\.py"):
                next(iter(feed))
        with trainer_client.connect(loaders.endpoint) as feed:
            mapped = through_tensorflow(feed)
        with trainer_client.connect(loaders.endpoint, stream="default") as feed:
            (most, *others) = [{key: tensor.numpy() for key, tensor in one.items()} for one in feed.pipeline()]
    # 25 lines a shard, 4 at a time: seven elements, interleaved. The index holds what one process made on its own.
    assert [(batch.number, batch.rows) for batch in plain] == [(number, 1) for number in range(14)]
    alone = JobFile(job).open("train").source.indexed.numbers["digest"].reshape(2, 7).T.ravel()
    assert [digest_of(flat(batch)) for batch in plain] == alone.tolist()
    elements = [element_of(batch) for batch in plain]
    assert sorted(length for one in elements for length in one["text_length"]) == sorted(map(len, LINES))
    assert max(made) >= 3, "the index, a worker, and who came in for the one that died"
    for (text, length, twice), element in zip(mapped, elements, strict=True):
        np.testing.assert_array_equal(text, element["text"])
        np.testing.assert_array_equal(length, element["text_length"])
        np.testing.assert_array_equal(twice, 2 * length)
    assert (most["text"].shape, most["text_length"].tolist()) == ((32, 7), [*map(len, LINES[:32])])
    assert [one["text"].shape for one in others] == [(18, 7)]


def through_tensorflow(feed: trainer_client.Feed) -> list[tuple[Any, ...]]:
    import my_pipeline  # type: ignore[import-not-found]  # noqa: PLC0415 - it lies beside the job file

    data = feed.pipeline(my_pipeline.dataset_pipeline)
    assert [spec.shape.as_list() for spec in data.element_spec] == [[None, None], [None], [None]]
    return [tuple(part.numpy() for part in element) for element in data]
