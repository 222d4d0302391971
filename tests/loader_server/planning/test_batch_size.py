"""Batches of a fixed number of rows, in every shape; and what is refused where a size is neither a budget nor rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_server.planning import Plan
from loader_server.planning.batch_size import refuse_number_of_samples, refuse_wrong_size
from loader_server.planning.settings import NO_KEY, limits_of
from shared.errors import SettingsError
from tests.loader_server.planning.tables import RATES, Lengths, batches_of, log_normal, plan_of, settings_of

VARIANTS = [
    {},
    {"shapes": 4, "order": "sorted"},
    {"shapes": ["5 s", "20 s"], "objective": "area"},
    {"shapes": "none"},
    {"shapes": "none", "order": "laplace", "laplace_samples": 7},
    {"pad_to": "batch"},
    {"window": 16, "length_multiple": 8},
    {"sub_buckets": {"text": 2}},
    {"max_length": {"0": "8 s", "1": "20 s"}},
    {"epoch_parts": 2},
]
lengths_of = st.builds(
    lambda size, seed: np.minimum(log_normal(size, seed=seed), 2000), st.integers(20, 200), st.integers(1, 9)
)


@settings(max_examples=150, deadline=None)
@given(lengths_of, st.integers(1, 40), st.integers(1, 5), st.sampled_from(VARIANTS))
def test_each_batch_has_exactly_so_many_rows_and_no_sample_is_lost(lengths, rows, group, variant):
    table = {"audio": lengths, "text": 1 + lengths % 7}
    parts = variant.get("epoch_parts", 1)
    if parts > 1:  # there has to be a group for each
        rows, group = min(rows, 9), 1
    plan = plan_of(table, segment=8, rows=rows, **variant)
    epochs = [plan.epoch(2 + part, group) for part in range(parts)]
    batches = [batch for epoch in epochs for batch in batches_of(epoch)]
    assert {shape.rows for shape in plan.buckets} == {rows}
    assert {batch.shape.rows for batch in batches} == {rows}
    assert sorted(np.concatenate([batch.samples for batch in batches])) == list(range(len(lengths)))
    assert all(len(batch.samples) <= rows for batch in batches)
    assert all(epoch.batches <= plan.most_batches(group) for epoch in epochs)


def test_in_one_window_as_few_batches_as_can_be_hold_all_samples():
    lengths = log_normal(1000)
    for variant in ({}, {"shapes": 1}, {"shapes": "none"}):
        assert len(batches_of(plan_of(lengths, rows=32, **variant).epoch(0, 1))) == -(-1000 // 32)


def test_shapes_are_chosen_for_the_least_padding_as_they_cannot_save_batches():
    lengths = log_normal(3000)
    chosen = plan_of(lengths, rows=32, shapes=4).buckets
    assert chosen == plan_of(lengths, rows=32, shapes=4, objective="area").buckets
    assert len(chosen) == 4


def test_packed_batches_and_lanes_have_so_many_rows_too():
    packed = plan_of(np.minimum(log_normal(300, median=300), 2000), rows=6, packing="20 s")
    assert {batch.shape.rows for batch in batches_of(packed.epoch(0, 1))} == {6}
    assert {shape.lengths["audio"] for shape in packed.buckets} == {2000}


@settings(max_examples=60, deadline=None)
@given(lengths_of, st.integers(1, 40), st.integers(1, 5), st.sampled_from([{}, {"pad_to": "batch"}, {"window": 16}]))
def test_without_a_bucketed_key_all_samples_are_in_one_bucket(lengths, rows, group, variant):
    table = Lengths(8, **{NO_KEY: np.ones_like(lengths), "text": lengths % 7})
    table.keys = ("text",)
    plan = Plan.make(
        table, settings_of(rows=rows, **variant), key=NO_KEY, seed=1, per_second={"text": None, NO_KEY: None}
    )
    batches = batches_of(plan.epoch(0, group))
    assert sorted(np.concatenate([batch.samples for batch in batches])) == list(range(len(lengths)))
    assert [(shape.rows, [*shape.lengths]) for shape in plan.buckets] == [(rows, ["text"])]
    for batch in batches:
        assert batch.shape.rows == rows
        assert batch.shape.lengths.keys() == {"text"}
        assert (lengths[batch.samples] % 7).max(initial=1) <= batch.shape.lengths["text"] <= 6


def test_rows_are_part_of_the_digest():
    lengths = log_normal(100)
    assert len({plan_of(lengths, **table).digest for table in ({}, {"rows": 16}, {"rows": 32})}) == 3


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        ({"budget": "3 s", "rows": 3}, "audio", r'expected rows alone.*got rows = 3 with budget = "3 s"'),
        ({"rows": 3, "max_rows": 4}, "audio", r"got rows = 3 with max_rows = 4"),
        ({"rows": 3, "max_rows": 4, "rows_multiple": 2}, "audio", r"with max_rows = 4 and rows_multiple = 2"),
        ({"rows": 3, "quadratic_length": "3 s"}, "audio", r'with quadratic_length = "3 s"'),
        ({"rows": 3, "limits": {"text": "3 tokens"}}, "audio", r"with limits"),
        ({}, NO_KEY, r'expected "length" .*or "rows".*got no such setting.*write rows = 32'),
        ({"rows": 3, "shapes": 2}, NO_KEY, r"got none with shapes = 2"),
        ({"rows": 3, "order": "sorted", "packing": "3 s"}, NO_KEY, r'none with order = "sorted" and packing'),
        ({"rows": 3, "max_length": "3 s"}, NO_KEY, r"none with max_length"),
        ({"rows": 3, "curriculum_epochs": 1}, NO_KEY, r"none with curriculum_epochs = 1"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(table, key, words):
    with pytest.raises(SettingsError, match=words):
        refuse_wrong_size(settings_of(**table), key)


def test_a_size_has_to_be_given():
    with pytest.raises(
        SettingsError, match=r'expected "budget" .*or "rows".*Add budget = .*write rows = 32'
    ) as refused:
        refuse_wrong_size(dataclass_without_size(), "audio")
    assert refused.value.where == "budget"


def dataclass_without_size():
    return settings_of(rows=1).__class__()


@pytest.mark.parametrize("rows", [0, -1, True, "32", 2**20 + 1, 1.5])
def test_rows_are_a_whole_number(rows):
    with pytest.raises(SettingsError, match="an integer from 1 to 1048576"):
        settings_of(rows=rows)


def test_errors_about_a_budget_point_to_rows():
    for budget, key in (("0 frames", "audio"), ("3 s", "text")):
        with pytest.raises(SettingsError, match="write rows = 32 instead of a budget"):
            limits_of(settings_of(budget=budget), key=key, per_second=RATES)
    with pytest.raises(SettingsError, match="`rows = 32` makes batches of 32 samples"):
        settings_of(budget=32)


def test_a_number_of_samples_is_no_budget():
    words = (
        r'no key is audio, got budget = "8 samples". Write rows = 8 for batches of 8 .*budget = "8 steps" for so many'
    )
    with pytest.raises(SettingsError, match=words):
        refuse_number_of_samples(settings_of(budget="8 samples").budget, "image")


def test_other_budgets_and_none_pass():
    refuse_number_of_samples(None, "image")
    refuse_number_of_samples(settings_of(budget="8 steps").budget, "image")
