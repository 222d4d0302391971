"""Bucket boundaries: the optimum, the choice of how many, and histograms."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.planning.buckets import Costs, LengthHistogram, best_boundaries, chosen_boundaries
from tests.loader_server.planning.tables import log_normal


def costs_of(samples, objective="area", budget=30_000, windows=1):
    lengths, counts = np.unique(samples, return_counts=True)
    return Costs(
        lengths=lengths,
        below=np.cumsum(counts),
        rows=np.maximum(budget // lengths, 1),
        used=lengths,
        total=int(samples.sum()),
        budget=budget,
        windows=windows,
        objective=objective,
    )


def cost(chosen, below, unit):
    return int((np.diff(below[chosen], prepend=0) * unit[chosen]).sum())


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=9, unique=True),
    st.lists(st.integers(1, 9), min_size=9, max_size=9),
    st.integers(1, 5),
)
def test_the_boundaries_are_the_best_of_all_choices(lengths, counts, shapes):
    unit = np.array(sorted(lengths))
    below = np.cumsum(counts[: len(unit)])
    found = best_boundaries(below, unit, shapes)
    for buckets, chosen in enumerate(found, start=1):
        last = len(unit) - 1
        every = itertools.combinations(range(last), buckets - 1)
        best = min(cost(np.array([*inner, last]), below, unit) for inner in every)
        assert cost(chosen, below, unit) == best
    assert len(found) == min(shapes, len(unit))


@pytest.mark.parametrize("objective", ["area", "steps"])
def test_as_many_shapes_as_asked_for_at_hardly_more_padding_than_the_optimum(objective):
    costs = costs_of(log_normal(20_000), objective)
    best = best_boundaries(costs.below, costs.sample(), 16)[15]
    chosen = np.searchsorted(costs.lengths, chosen_boundaries(costs, 16, 32))
    assert len(chosen) == 16
    assert costs.padding(chosen[None])[0] <= costs.padding(best[None])[0] + 0.002
    assert costs.waste(chosen[None])[0] <= costs.waste(best[None])[0]


def test_automatic_shapes_are_the_fewest_within_half_a_point():
    costs = costs_of(log_normal(200_000), windows=2)
    wastes = [costs.waste(chosen[None])[0] for chosen in best_boundaries(costs.below, costs.sample(), 32)]
    found = len(chosen_boundaries(costs, None, 32))
    assert wastes[found - 1] <= min(wastes) + 0.005
    assert min(wastes[: found - 1]) > min(wastes) + 0.005


def test_many_lengths_take_little_memory_at_once():
    lengths = np.arange(1, 10_001)
    tracemalloc.start()
    best_boundaries(lengths, lengths, 2)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10_000_000


def test_a_small_corpus_gets_few_shapes():
    few = chosen_boundaries(costs_of(speech := log_normal(1_500, spread=0.3)), None, 32)
    many = chosen_boundaries(costs_of(log_normal(50_000, spread=0.3)), None, 32)
    assert len(few) < 16 < len(many)
    filled = np.bincount(np.searchsorted(few, speech)) // (30_000 // few)
    assert (filled[:-1] >= 1).all()


def test_cells_above_the_budget_are_work_as_well():
    costs = costs_of(np.array([300, 3_000, 30_000, 30_001, 45_000, 60_000]), "steps")
    batches = costs.sample() / costs.sample()[2]
    assert batches == pytest.approx([0.01, 0.1, 1, 30_001 / 30_000, 1.5, 2])


def test_samples_longer_than_the_budget_are_not_all_padded_to_the_longest():
    chosen = chosen_boundaries(costs_of(np.linspace(2_100, 8_600, 13).astype(int), "steps", budget=6_000), None, 32)
    assert chosen.tolist() == [2_641, 5_891, 6_975, 8_600]


def test_the_work_of_a_billion_samples_far_above_the_budget_fits_into_64_bits():
    lengths = np.array([100, 3_000_000_000])
    costs = Costs(
        lengths=lengths, below=np.array([10, 2**30]), rows=np.array([20, 1]), used=lengths, total=1, budget=2_000,
        windows=1, objective="steps",
    )  # fmt: skip
    assert (costs.sample() > 0).all()
    assert costs.sample()[1] * 2**30 / 2**62 == pytest.approx(1, rel=0.01)
    assert [chosen.tolist() for chosen in best_boundaries(costs.below, costs.sample(), 2)] == [[1], [0, 1]]


def test_a_histogram_is_exact_for_short_lengths_and_within_a_thousandth_for_long_ones():
    short, long = log_normal(5_000, 400, 0.3), log_normal(5_000, 10**6, 1.0)
    histogram = LengthHistogram()
    for part in (short[:2_000], short[2_000:], long, long[:0]):
        histogram.add(part)
    lengths, counts = histogram.table()
    assert counts.sum() == 10_000
    assert lengths[-1] == long.max()
    everything = np.sort(np.concatenate([short, long]))
    binned = np.repeat(lengths, counts)
    assert (binned >= everything).all()
    assert (binned - everything <= everything / 1000).all()
    exact = everything < 2048
    assert (binned[exact] == everything[exact]).all()
