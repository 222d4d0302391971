"""Mixing sources by weight: shares in every window, ends and cycles as chosen."""

import numpy as np
import pytest

from loader_server.planning.mixing import Mixture
from shared.errors import SettingsError
from tests.loader_server.planning.tables import batches_of, log_normal, plan_of

BOTH = log_normal(64 * 60)
SOURCES = (0, 64 * 40)


def trained(plan, epoch=0, group=1):
    return [batch.samples for batch in batches_of(plan.epoch(epoch, group))]


@pytest.mark.heritage("R11")
@pytest.mark.parametrize(("weights", "windows", "share"), [([1, 1], 4, 0.5), ([3, 1], 5, 0.75)])
def test_each_window_has_the_weights_share_of_each_source(weights, windows, share):
    plan = plan_of(BOTH, sources=SOURCES, weights=weights, window=640)
    epoch = plan.epoch(0, 1)
    shares = {}
    for number in range(epoch.batches):
        shares.setdefault(epoch.window_of(number), []).append(epoch.batch(number).samples < SOURCES[1])
    means = [np.concatenate(of).mean() for of in shares.values()]
    assert len(means) == windows
    assert all(share - 0.1 <= mean <= share + 0.1 for mean in means)


def test_the_epoch_ends_with_the_first_source_that_does_not_cycle():
    samples = np.concatenate(trained(plan_of(BOTH, sources=SOURCES, weights=[1, 1])))
    assert len(np.unique(samples)) == len(samples) == 64 * 40
    assert (samples >= SOURCES[1]).sum() == 64 * 20


@pytest.mark.heritage("R11")
def test_a_cycling_source_starts_over_until_the_other_is_through():
    plan = plan_of(BOTH, sources=SOURCES, weights=[1, 1], cycle=[False, True])
    samples = np.concatenate(trained(plan))
    times = np.bincount(samples, minlength=len(BOTH))
    assert (times[: SOURCES[1]] == 1).all()
    assert (times[SOURCES[1] :] == 2).all()
    assert plan.epoch(0, 1).batches <= plan.most_batches(1)
    assert len(list(plan.epoch(0, 1).find(len(BOTH) - 1))) == 2


def test_a_source_of_one_sample_cycles_like_any_other():
    samples = np.concatenate(trained(plan_of(BOTH[:65], sources=(0, 64), weights=[1, 1], cycle=[False, True])))
    assert np.bincount(samples).tolist() == [1] * 64 + [64]


def test_no_more_cycles_are_shuffled_than_the_pass_reaches():
    shuffled = []

    def shuffle(segments, cycle):
        shuffled.append((int(segments[0]), cycle))
        return segments

    mixture = Mixture(segments=((0, 2), (2, 3)), weights=(1.0, 1.0), cycle=(False, True))
    mixture.turns(np.array([64, 64, 64]), shuffle)
    assert shuffled == [(0, 0), (2, 0), (2, 1)]


def test_batches_mix_sources_by_sample():
    batches = [samples for samples in trained(plan_of(BOTH, sources=SOURCES, weights=[2, 1])) if len(samples) > 10]
    mixed = [0 < (samples < SOURCES[1]).sum() < len(samples) for samples in batches]
    assert np.mean(mixed) > 0.9


@pytest.mark.parametrize("asked", [{"weights": [1]}, {"weights": [1, 1], "cycle": [True, True]}])
def test_weights_that_fit_no_sources_are_refused(asked):
    with pytest.raises(SettingsError, match="one weight a source"):
        plan_of(BOTH, sources=SOURCES, **asked)
