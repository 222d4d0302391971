"""A user's own `tf.data` pipeline over a stream of the job, as docs/pipelines.md has it: the same function in workers,
one of which is killed, and here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import trainer_client
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.pipelines.element_values import digest_of, element_of
from tests.support.forked import run_module
from tests.support.loaders import Loaders, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text("utf-8")
JOB = """
[job]
name = "sentences"
seed = 5
listen = "tcp://127.0.0.1:*"
accept_graphs = true
"""
OTHERS = """
[streams.default]
source = "pipeline"
base = "sentences"

[streams.sent]
source = "graph"

[streams.words]
source = "my_words"
path = "text.txt"
length = "word"
budget = "100 steps"

[streams.check]
source = "pipeline"
pipeline = "my_words:dataset_fn"
base = "words"
"""
#: A reader in a package of the user's own, which a job file names by its entry point, and a data set function.
READER = """
import pathlib
from dataclasses import dataclass
import numpy as np
from loader_server.sources import Field, Found, Inventory, Source, setting, text

@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    path: str = setting(text, "a file of words")

class Words(Source):
    Settings = Settings
    fields = (Field(key="word", dtype="uint8", shape=(None,)),)

    def _words(self):
        return (self.base / self.settings.path).read_bytes().split()

    def survey(self):
        words = len(self._words())
        cut = lambda rows: (range(at, min(at + rows, words)) for at in range(0, words, rows))
        return Inventory(total=words, pieces=cut)

    def probe(self, piece):
        words = self._words()
        return Found(rows=list(piece), numbers={"length_word": [len(words[row]) for row in piece]})

    def read(self, samples):
        words = self._words()
        return (words[sample] for sample in samples)

    def decode(self, sample, raw):
        return {"word": np.frombuffer(raw, np.uint8)}

def dataset_fn(context):
    data, mode, metadata = context.base_dataset, context.dataset_name, context.base_dataset.element_spec
    assert metadata["word"].dtype == "uint8"
    if mode == "train":
        data = data.shuffle(1000)
    return context.map_producer_to_consumer(data.padded_batch(10))
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


def example(language: str, beginning: str = "") -> str:
    """The first example that begins so."""
    return next(iter(re.findall(rf"^```{language}\n({re.escape(beginning)}.*?)^```", PAGE, re.DOTALL | re.MULTILINE)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("pipelines")
    (folder / "my_pipeline.py").write_text(example("python") + WATCHED)
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    (folder / "job.toml").write_text(JOB + example("toml") + OTHERS)
    (folder / "my_words.py").write_text(READER)
    package = folder / "my_words-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: my_words\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[stoker.sources]\nmy_words = my_words:Words\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder / "job.toml"


@pytest.fixture(scope="module")
def loaders(job: Path) -> Iterator[Loaders]:
    with running(job, tensorflow=True) as loaders:
        yield loaders


def flat(batch: trainer_client.Batch) -> dict[str, np.ndarray]:
    return {key: batch[key][0] for key in batch if key.endswith((":values", ":shape"))}


@pytest.mark.slow
@pytest.mark.heritage("R1")
@pytest.mark.heritage("R2")
@pytest.mark.heritage("R3")
@pytest.mark.heritage("R4")
def test_one_function_serves_both_sides_and_a_lost_worker_changes_nothing(job: Path, loaders: Loaders) -> None:
    plain: list[trainer_client.Batch] = []
    with trainer_client.connect(loaders.endpoint, prefetch=2) as feed:
        for batch in feed:
            if batch.number == 1:  # both shards are being made
                makers = [one for one in loaders.workers() if [*job.parent.glob(f"made-*-by-{one.pid}")]]
                makers[0].kill()
            plain.append(batch)
        made = [len(list(job.parent.glob(f"made-{shard}-by-*"))) for shard in range(2)]
        with pytest.raises(trainer_client.DataError, match=r"(?s)ValueError: no second epoch.*my_pipeline\.py"):
            next(iter(feed))
    with trainer_client.connect(loaders.endpoint) as feed:
        mapped = through_tensorflow(feed)
    with trainer_client.connect(loaders.endpoint, stream="default") as feed:
        (most, *others) = [{key: tensor.numpy() for key, tensor in one.items()} for one in feed.pipeline()]
    # 25 lines a shard, 4 at a time: seven elements, interleaved. The index holds what one process made on its own.
    assert [(batch.number, batch.rows) for batch in plain] == [(number, 1) for number in range(14)]
    alone = Stream(JobFile(job), "train").source.indexed.numbers["digest"].reshape(2, 7).T.ravel()
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
    import my_pipeline  # type: ignore[import-not-found]  # it lies beside the job file

    data = feed.pipeline(my_pipeline.dataset_pipeline)
    assert [spec.shape.as_list() for spec in data.element_spec] == [[None, None], [None], [None]]
    return [tuple(part.numpy() for part in element) for element in data]


def test_the_same_function_decodes_one_sample_without_loaders(job: Path) -> None:
    import my_pipeline  # it lies beside the job file

    names: dict[str, Any] = {"trainer_client": trainer_client, "my_pipeline": my_pipeline}
    exec(example("python", "lone"), names)
    ((text, length, twice),) = [tuple(part.numpy().tolist() for part in one) for one in names["lone"]]
    assert (text, length, twice) == ([[7, 4, 11]], [3], [6])


@pytest.mark.heritage("E10")
def test_a_users_own_reader_and_data_set_function_make_the_batches(loaders: Loaders) -> None:
    import my_words  # type: ignore[import-not-found]  # it lies beside the job file

    with trainer_client.connect(loaders.endpoint, stream="check") as feed:
        elements = [element_of(batch) for batch in feed]
        assert feed.tag(0) == "my_words:dataset_fn, element 0 of shard 0"
    words = [row.tobytes().rstrip(b"\0").decode() for one in elements for row in one["word"]]
    assert [one["word"].shape[0] for one in elements] == [10] * 5
    assert words == LINES, "not shuffled in this mode"
    samples = [{"word": np.frombuffer(line.encode(), np.uint8)} for line in LINES]
    train = trainer_client.run_pipeline(my_words.dataset_fn, samples, name="train")
    mixed = [row.numpy().tobytes().rstrip(b"\0").decode() for one in train for row in one["word"]]
    assert sorted(mixed) == sorted(LINES)
    assert mixed != LINES


@pytest.mark.slow
def test_a_script_that_changes_one_line_gets_the_same_elements(job: Path, loaders: Loaders) -> None:
    import tensorflow as tf  # it takes seconds

    names: dict[str, Any] = {"tf": tf, "trainer_client": trainer_client, "endpoint": loaders.endpoint}
    names["path"] = str(job.parent / "text.txt")
    script = example("python", "data = tf.data")
    changed = "data = trainer_client.distribute("
    assert script.count(changed) == 1
    exec(re.sub(f"^{re.escape(changed)}.*\n", "", script, flags=re.MULTILINE), names)
    here, spec = plain(names["data"]), names["data"].element_spec
    exec(script, names)
    there = names["data"]
    assert (plain(there), there.element_spec) == (here, spec)
    assert len(here) == 13
    there.feed.close()

    coordinator = loaders.coordinator()
    coordinator.kill()
    wait_until(lambda: loaders.text().count('"event": "ready", "child": "coordinator"') == 2, "the coordinator is back")
    exec(script, names)  # a restart, or another rank: the same graph again
    assert plain(names["data"]) == here
    names["data"].feed.close()
    with pytest.raises(trainer_client.RefusedError, match=r"expected the data set of this stream, \w{16}, got \w{16}"):
        trainer_client.distribute(tf.data.Dataset.range(3), loaders.endpoint, stream="sent")


def plain(data: Any) -> list[Any]:
    return [[part.to_list() if hasattr(part, "to_list") else part.numpy().tolist() for part in one] for one in data]


@pytest.mark.slow
def test_whole_batches_are_verified_unless_somebody_trains_on_them(loaders: Loaders) -> None:
    def verify(*words: str) -> tuple[int, str, str]:
        return run_module("trainer_client", "verify", loaders.endpoint, "--stream", "check", "--json", *words)

    code, said, complained = verify("--cut")
    assert code == 0, complained
    assert json.loads(said)["differ"] == 0
    with trainer_client.connect(loaders.endpoint, stream="check") as feed, feed.open() as reading:
        next(reading)
        code, _, complained = verify()
        assert (code, "batches of check are made whole" in complained) == (4, True), complained
        assert len(list(reading)) == json.loads(said)["batches"] - 1
