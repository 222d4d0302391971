"""`spec_augment`: stripes of the right sizes in the right places, and nothing else is touched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.chain import Chain
from loader_server.transforms.spec_augment import SpecAugmentSettings, SpecAugmentTransform
from shared.errors import SettingsError
from shared.settings.tables import read_table
from shared.wire.batch_layout import Field

RAW = (Field(key="audio", dtype="float32", shape=(None, 40), per_second=100.0),)


def augmented(features, seed=0, **settings):
    sample = {"audio": features}
    SpecAugmentTransform(SpecAugmentSettings(**settings))(sample, np.random.default_rng(seed))
    return sample["audio"]


def noise(steps=200, bands=40):
    return np.random.default_rng(5).normal(3, 1, (steps, bands)).astype(np.float32)


def wiped(features, **settings):
    """The steps and the bands that were wiped out, each as a mask."""
    hole = augmented(features, **settings) != features
    return hole.all(axis=1), hole.all(axis=0)


def test_what_came_in_is_left_alone_and_what_is_not_wiped_out_too():
    features = noise()
    before = features.copy()
    made = augmented(features)
    assert (features == before).all()
    steps, bands = wiped(features)
    assert steps.any()
    assert bands.any()
    hole = steps[:, None] | bands[None]
    assert (made[~hole] == features[~hole]).all()
    assert (made[hole] == features.mean()).all()


def test_zeros_for_features_that_are_normalised():
    features = noise()
    made = augmented(features, fill="zero")
    assert set(made[made != features].tolist()) == {0.0}


def test_the_stripes_are_those_of_the_definition():
    """Widths, then places, of time, then of bands: whoever draws otherwise gives other bytes."""
    rng, features = np.random.default_rng(11), noise()
    wanted = features.copy()
    for axis, (stripes, most, size) in enumerate([(2, 40, 200), (3, 7, 40)]):
        widths = rng.integers(0, most + 1, stripes)
        starts = [int(rng.integers(0, size - width + 1)) for width in widths]
        for start, width in zip(starts, widths, strict=True):
            np.moveaxis(wanted, axis, 0)[start : start + width] = 0
    made = augmented(features, seed=11, time_share=0.2, band_stripes=3, band_width=7, fill="zero")
    assert (made == wanted).all()


@given(steps=st.integers(0, 60), seed=st.integers(0, 50), width=st.integers(0, 30), share=st.floats(0, 1))
def test_a_stripe_is_never_wider_than_allowed(steps, seed, width, share):
    features = noise(steps)
    masked, _ = wiped(features, seed=seed, time_stripes=1, time_width=width, time_share=share, band_stripes=0)
    assert masked.sum() <= min(width, share * steps)
    assert np.abs(np.diff(masked.astype(int), prepend=0, append=0)).sum() in (0, 2)


def test_every_width_and_every_place_occurs():
    features = noise(5, 4)
    seen = {
        tuple(wiped(features, seed=seed, time_stripes=0, band_stripes=1, band_width=9)[1].tolist())
        for seed in range(200)
    }
    assert len(seen) == 1 + 4 + 3 + 2 + 1


def test_none_of_one_kind():
    features = noise()
    steps, bands = wiped(features, time_stripes=0)
    assert not steps.any()
    assert bands.any()
    assert (augmented(features, time_stripes=0, band_stripes=0) == features).all()


def test_lengths_and_shapes_stay_and_each_sample_draws_its_own():
    chain = Chain.make(("spec_augment",), {}, "job", RAW)
    assert chain.fields == RAW
    assert chain.draws
    one, again, other = (
        chain.apply({"audio": noise()}, seed=1, epoch=0, number=number)["audio"] for number in (3, 3, 4)
    )
    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"time_share": 2}, r"time_share: expected a number from 0 to 1, got 2\."),
        ({"band_width": -1}, r"band_width: expected an integer of at least 0, got -1"),
        ({"fill": "noise"}, r'fill: expected one of "mean", "zero", got .noise.'),
    ],
)
def test_bad_settings(table, message):
    with pytest.raises(SettingsError, match=message):
        read_table(SpecAugmentSettings, table, "job")


def test_before_what_makes_features_it_is_an_error_and_no_bad_sample():
    chain = Chain.make(("spec_augment",), {}, "job", (Field(key="audio", dtype="float32", shape=(None,)),))
    with pytest.raises(SettingsError, match=r'expected "audio" as features, .* one axis\. Write it behind'):
        chain.apply({"audio": noise()[0]}, seed=0, epoch=0, number=0)
