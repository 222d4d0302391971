"""The source, over an index in memory and shards that are made up: what the index tells it, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from loader_server.job_file import JobFile
from loader_server.sources.pipeline import sharded_source as module
from loader_server.sources.pipeline.source import PipelineSettings, PipelineSource
from loader_server.sources.source import Indexed, OfJob
from loader_server.stream import sources_of
from shared.errors import DataError, SettingsError
from shared.pipelines.element_values import ElementValue, digest_of, flat_values

VALUES = (ElementValue("feat", "float32", (None, None, 5)), ElementValue("n", "int64", ()))
#: Shard 0 has three elements, shard 1 two.
SIZES = (3, 2)
CODE = "def dataset_pipeline(context): ...\n"


def element(shard, ordinal, epoch=0):
    return {"feat": np.full((2, ordinal + 1, 5), shard, np.float32), "n": np.int64(100 * epoch + 10 * shard + ordinal)}


class Run:
    """In a ShardRun's place."""

    def __init__(self, order, epoch, shard):
        assert (order.name, order.seed, order.shards, order.exact) == ("train", 4, 2, True)
        self.values = VALUES
        self._elements = iter([element(shard, ordinal, epoch) for ordinal in range(SIZES[shard])])

    def next_element(self):
        return next(self._elements, None)


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ShardRun", Run)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_shards.py").write_text(CODE)

    def make(seed=4, **settings):
        settings = {"pipeline": "my_shards:dataset_pipeline", "producers": 2, **settings}
        source = PipelineSource(PipelineSettings(**settings), tmp_path)
        source.of_job = OfJob(stream="train", seed=seed)
        return source

    return make


def indexed(source, folder):
    """As the indexer would have it."""
    inventory = source.survey()
    found = [source.probe(piece) for piece in inventory.pieces(1)]
    assert inventory.total == len(found) == 2
    rows = [row for one in found for row in one.rows]
    assert rows == sorted(set(rows))
    return Indexed(
        samples=len(rows),
        numbers={name: np.concatenate([one.numbers[name] for one in found]) for name in found[0].numbers},
        strings={"values": [text for one in found for text in one.strings["values"]]},
        about=inventory.about,
        origin=inventory.origin,
        place=folder,
    )


@pytest.fixture
def source(make, tmp_path):
    made = make()
    made.open(indexed(make(), tmp_path))
    return made


def test_the_index_says_what_crosses_how_much_and_how_many(source):
    assert [field.key for field in source.fields] == ["feat:values", "feat:shape", "n:values"]
    assert source.elements == 3
    assert source.largest.lengths == {"feat:values": 12}, "twice the six steps of the largest"
    digests = [digest_of(flat_values(VALUES, element(shard, n))) for shard in (0, 1) for n in range(SIZES[shard])]
    assert source.indexed.numbers["digest"].tolist() == digests
    assert source.lengths == {}


def test_batch_n_is_element_n_div_s_of_shard_n_mod_s(source):
    begun = []
    made = [source.make_batch(1, number, begun.append) for number in range(8)]
    assert [None if one is None else int(one["n:values"]) for one in made] == [
        100,
        110,
        101,
        111,
        102,
        None,
        None,
        None,
    ]
    assert begun == [0, 1, 2, 3, 4, 5]
    assert source.name(3) == "my_shards:dataset_pipeline, element 1 of shard 1"


def test_settings_make_room(make, tmp_path):
    source = make(elements=7, largest=1000)
    source.open(indexed(make(), tmp_path))
    assert (source.elements, source.largest.lengths) == (7, {"feat:values": 50})
    with pytest.raises(DataError, match="shard 0 of epoch 0: expected at most 2 elements in a shard"):
        indexed(make(elements=2), tmp_path)


def test_every_element_is_checked(make, tmp_path):
    source, index = make(), indexed(make(), tmp_path)
    source.open(replace(index, numbers={**index.numbers, "digest": index.numbers["digest"] + 1}))
    with pytest.raises(
        DataError, match="element 0 of shard 1 of epoch 0: expected the element that was made here first"
    ):
        source.make_batch(0, 1, bool)
    assert source.make_batch(1, 1, bool) is not None


def test_other_code_or_another_seed_asks_for_another_index(make, tmp_path):
    index = indexed(make(), tmp_path)
    with pytest.raises(DataError, match="expected the code, seed and base that the index was made with"):
        make(seed=5).open(index)
    Path(tmp_path / "my_shards.py").write_text(CODE + "WIDTH = 3\n")
    with pytest.raises(DataError, match="run loader-server index"):
        make().open(index)


def test_elements_of_another_kind_than_while_indexing_are_refused(source, monkeypatch):
    other = SimpleNamespace(values=VALUES[:1], next_element=lambda: None)
    monkeypatch.setattr(module, "ShardRun", lambda *_: other)
    with pytest.raises(
        DataError, match=r'expected elements of "feat" .*\[any, any, 5\]; "n" int64 \[\], as while indexing'
    ):
        source.make_batch(2, 0, bool)


def test_whether_data_changed_can_be_told_where_they_are_named(make, tmp_path):
    assert make().stamp() == ""
    (tmp_path / "a.txt").write_text("a")
    before = make(paths=("a.txt",)).stamp()
    assert before == make(paths=("a.txt",)).stamp() != ""
    (tmp_path / "a.txt").write_text("other")
    assert make(paths=("a.txt",)).stamp() != before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("producers = 2", "expected pipeline = a function, or base = a stream for the default pipeline, got neither"),
        ('base = "train"', r'expected another stream of the job, one of samples, got base = "train"\. Name a stream'),
        ('base = "tain"', '.* got base = "tain"'),
    ],
)
def test_something_has_to_be_run(line, message, tmp_path):
    (tmp_path / "job.toml").write_text(f'[job]\nname = "x"\n[streams.train]\nsource = "pipeline"\n{line}\n')
    job = JobFile(tmp_path / "job.toml")
    ((spec, _),) = sources_of(job, job.recipes["train"])
    with pytest.raises(SettingsError, match=rf"job\.toml, \[streams\.train\]: {message}"):
        spec.make().survey()
