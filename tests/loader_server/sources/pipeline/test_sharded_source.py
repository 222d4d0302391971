from types import SimpleNamespace

import numpy as np
import pytest

from loader_server.sources.pipeline import sharded_source
from loader_server.sources.pipeline.sharded_source import ShardReader
from shared.errors import DataError
from shared.pipelines.element_values import ElementValue


class Shard:
    """A shard of `elements`, each its ordinal; it counts how often it is run, and what is made."""

    def __init__(self, has=6, *, elements=6):
        self.has, self.runs, self.checked, self.begun = has, 0, [], []
        self.reader = ShardReader(self.run, self.check, elements=elements, where="shard")

    def check(self, ordinal, flat):
        self.checked.append(int(flat["n:values"]))

    def run(self):
        self.runs += 1
        made = iter([{"n": np.array(n)} for n in range(self.has)])
        return SimpleNamespace(values=(ElementValue("n", "int64", ()),), next_element=lambda: next(made, None))

    def ask(self, ordinal):
        element = self.reader.element(ordinal, self.begun.append)
        return None if element is None else int(element["n:values"])


def test_elements_are_made_once_in_order_and_kept_for_whoever_is_behind():
    shard = Shard()
    assert [shard.ask(ordinal) for ordinal in (2, 0, 1, 3, 2)] == [2, 0, 1, 3, 2]
    assert (shard.runs, shard.checked, shard.begun) == (1, [0, 1, 2, 3], [0, 1, 2, 3])


def test_the_end_is_told_as_often_as_somebody_asks():
    shard = Shard(3, elements=5)
    assert [shard.ask(ordinal) for ordinal in (4, 3, 2)] == [None, None, 2]
    assert shard.runs == 1


def test_what_is_not_kept_is_made_again_from_the_beginning(monkeypatch, caplog):
    monkeypatch.setattr(sharded_source, "_KEPT_BYTES", 24)
    monkeypatch.setattr(sharded_source, "_WORTH_TELLING", 2)
    caplog.set_level("INFO")
    shard = Shard()
    assert [shard.ask(ordinal) for ordinal in (5, 3, 2)] == [5, 3, 2]
    assert (shard.runs, shard.checked) == (2, [0, 1, 2, 3, 4, 5, 0, 1, 2])
    assert "a shard is made from its beginning  shard=shard to=2" in caplog.text


def test_more_elements_than_there_is_room_for_are_an_error_at_the_last():
    shard = Shard(6, elements=5)
    assert shard.ask(3) == 3
    with pytest.raises(DataError, match=r"^shard: expected at most 5 elements, .*, got more\. .* elements = …$"):
        shard.ask(4)
    with pytest.raises(DataError):
        shard.ask(4)
    assert shard.runs == 2
