"""A source that makes whole batches, in a job: its plan, its batches, and what such a stream may not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from loader_server.building.quarantine import Quarantine
from loader_server.building.whole_builder import WholeBuilder
from loader_server.commands.index import index_streams
from loader_server.commands.plan_command import open_stream
from loader_server.job_file import JobFile
from loader_server.sources.source import Found, Indexed, Inventory
from loader_server.sources.whole_source import WholeSource
from loader_server.stream import Stream
from loader_server.worker.service import builder_of
from shared.errors import SettingsError
from shared.hashing import digest64
from shared.pipelines.element_values import ElementValue, element_of, fields_of_element, flat_values
from shared.settings.parsers import setting, whole
from shared.wire.batch_layout import BucketShape
from tests.support.in_memory import Steps, memory_want

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

VALUES = (ElementValue("fixed", "float32", (2,)), ElementValue("steps", "int32", (None, None, 2)))
LONGEST = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class StairsSettings:
    producers: int = setting(whole(1), "shards", default=2)


class StairsSource(WholeSource):
    """Element k of shard s is s + 1 by k + 1 pairs; shard 0 has three of them, others have two."""

    Settings = StairsSettings
    apart: ClassVar[bool] = False
    elements = 3
    largest = BucketShape(rows=1, lengths={"steps:values": LONGEST})
    begun = 0

    @property
    def producers(self) -> int:
        return self.settings.producers

    @property
    def fields(self):
        return fields_of_element(VALUES)

    def survey(self) -> Inventory:
        return Inventory(total=1, rows_unknown=True, pieces=lambda _: iter([0]))

    def probe(self, piece: int) -> Found:
        return Found(rows=[piece], numbers={"shard": [piece]})

    def open(self, indexed: Indexed) -> None:
        self.indexed = indexed

    def begin_making(self) -> None:
        self.begun += 1

    def make_batch(self, epoch: int, number: int, begin: Callable[[int], None]) -> Mapping[str, Any] | None:
        begin(number)
        ordinal, shard = divmod(number, self.producers)
        if ordinal >= (3 if shard == 0 else 2):
            return None
        steps = np.full((shard + 1, ordinal + 1, 2), 10 * epoch + number, np.int32)
        return flat_values(VALUES, {"fixed": np.array([number, 0.5], np.float32), "steps": steps})


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], JobFile]:
    def write(more: str = "") -> JobFile:
        stream = f'[streams.train]\nsource = "{__name__}:StairsSource"\n{more}'
        (tmp_path / "job.toml").write_text(f'[job]\nname = "x"\n{stream}')
        return JobFile(tmp_path / "job.toml")

    return write


@pytest.fixture
def builder(job, tmp_path) -> WholeBuilder:
    made = job()
    assert index_streams(made, ["train"])["train"].samples == 1
    found = builder_of(Stream(made, "train"), Quarantine(tmp_path / "quarantine.jsonl"), Steps())
    assert isinstance(found, WholeBuilder)
    return found


def build(builder: WholeBuilder, number: int, **other: Any):
    """The batch, written over memory that holds something else."""
    want = memory_want(number, **other)
    prepared = builder.prepare(want)
    payload = np.full(prepared.layout.nbytes, 0xA5, np.uint8)
    built = builder.build(want, prepared, payload)
    assert built.digest == digest64(payload.data)
    return built, prepared, prepared.layout.arrays(payload)


def test_each_batch_is_an_element_in_a_shape_of_its_own(builder):
    assert builder.stream.source.begun == 1
    assert (builder.batches(7, 1), builder.batches(7, 4)) == (6, 8)
    for number, shape in ((0, (1, 1)), (1, (2, 1)), (3, (2, 2)), (4, (1, 3))):
        built, prepared, arrays = build(builder, number, epoch=2)
        assert (built.rows, built.masked) == (1, 0)
        assert prepared.shape == BucketShape(rows=1, lengths={"steps:values": shape[0] * shape[1]})
        element = element_of(arrays)
        assert element["fixed"].tolist() == [number, 0.5]
        np.testing.assert_array_equal(element["steps"], np.full((*shape, 2), 20 + number))
        assert (arrays["tag"].tolist(), arrays["weight"].tolist()) == ([number], [1.0])
        assert arrays["steps:values_length"].tolist() == [shape[0] * shape[1]]


@pytest.mark.parametrize(("number", "other"), [(5, {}), (7, {"group": 4}), (0, {"empty": True})])
def test_a_place_that_its_shard_does_not_fill_is_an_empty_batch(builder, number, other):
    built, prepared, arrays = build(builder, number, **other)
    assert (built.rows, prepared.shape.lengths) == (0, {"steps:values": 0})
    assert (arrays["tag"].tolist(), arrays["weight"].tolist()) == ([-1], [0.0])
    element = element_of(arrays)
    assert element["steps"].shape == (0, 0, 2)
    assert not element["fixed"].any()


def test_trainers_are_told_of_the_largest(builder):
    assert (builder.stream.producers, builder.stream.shapes) == (2, (StairsSource.largest,))


def test_the_number_of_shards_is_part_of_what_a_batch_is(job, builder):
    made = job("producers = 3\n")
    index_streams(made, ["train"])
    assert Stream(made, "train").digest != builder.stream.digest


@pytest.mark.parametrize("line", ['length = "steps"', 'budget = "9 steps"', 'transforms = ["characters"]'])
def test_settings_that_plan_batches_of_samples_are_refused(job, line):
    key = line.split()[0]
    with pytest.raises(
        SettingsError, match=rf'because the pipeline itself makes whole batches, got "{key}"\. Leave it out'
    ):
        job(line)


def test_it_is_no_part_of_a_mixture(job, tmp_path):
    (tmp_path / "job.toml").write_text(
        f'[job]\nname = "x"\n[streams.train]\nlength = "steps"\nbudget = "9 steps"\n'
        f'[[streams.train.sources]]\nsource = "{__name__}:StairsSource"\n'
    )
    with pytest.raises(SettingsError, match="number 1: expected sources of samples"):
        JobFile(tmp_path / "job.toml")


def test_there_is_no_plan_to_look_at(job):
    with pytest.raises(SettingsError, match="got train, which makes whole batches"):
        open_stream(job(), "train")
