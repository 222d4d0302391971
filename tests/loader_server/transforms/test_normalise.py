"""`normalise`: by each sample's own mean and deviation, or by those of the data."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.chain import Chain
from loader_server.transforms.normalise import Moments, Normalise, NormaliseSettings, statistics_text
from shared.errors import SettingsError
from shared.wire.batch_layout import Field

RNG = np.random.default_rng(0)
RAW = (Field(key="audio", dtype="float32", shape=(None, 4), per_second=100.0),)
NOTHING = Chain.make((), {}, "job", RAW).recipe


def features(steps=50):
    return np.random.default_rng(3).normal([1, -20, 300, 0], [1, 2, 30, 1e-3], (steps, 4)).astype(np.float32)


def normalised(values, **said):
    sample = {"audio": values}
    Normalise(NormaliseSettings(**said))(sample, RNG)
    return sample["audio"]


def test_each_band_of_a_sample_has_mean_0_and_deviation_1():
    values = features()
    before = values.copy()
    made = normalised(values)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made.mean(axis=0, dtype=np.float64), 0, atol=2e-5)
    np.testing.assert_allclose(made.std(axis=0, dtype=np.float64), 1, rtol=1e-4)
    assert (values == before).all()


def test_the_mean_alone():
    values = features()
    made = normalised(values, variance=False)
    np.testing.assert_allclose(made, values - values.mean(axis=0), atol=1e-4)


def test_audio_is_one_band():
    made = normalised(np.array([1, 3, 1, 3], np.float32))
    assert made.tolist() == [-1, 1, -1, 1]


def test_a_band_that_never_changes_becomes_0_and_nothing_stays_nothing():
    assert normalised(np.full((3, 2), 7, np.float32)).tolist() == [[0, 0]] * 3
    assert normalised(np.zeros((0, 4), np.float32)).shape == (0, 4)


@pytest.fixture
def written(tmp_path):
    def written(recipe=NOTHING, values=None):
        path = tmp_path / "statistics.json"
        path.write_text(statistics_text(recipe, Moments.of(features(500) if values is None else values)))
        return path

    return written


def chain(path, **said):
    tables = {"normalise": {"statistics": path.name, **said}}
    return Chain.make(("normalise",), tables, "job", RAW, FilePlaces(path.parent))


def test_by_the_statistics_of_the_data(written):
    made = chain(written()).apply({"audio": features()}, seed=0, epoch=0, number=0)["audio"]
    data = features(500).astype(np.float64)
    wanted = (features() - data.mean(axis=0)) / data.std(axis=0)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, wanted, atol=1e-3)
    alone = chain(written(), variance=False).apply({"audio": features()}, seed=0, epoch=0, number=0)["audio"]
    np.testing.assert_allclose(alone, features() - data.mean(axis=0), atol=1e-4)


def test_other_statistics_are_another_recipe(written):
    before = chain(written()).recipe
    assert chain(written()).recipe == before
    assert chain(written(values=features(400))).recipe != before


def test_shapes_and_lengths_stay(written):
    made = chain(written())
    assert made.fields == RAW
    assert not made.draws
    assert made.lengths({"audio": np.array([0, 9])})["audio"].tolist() == [0, 9]


def test_statistics_of_other_transforms_are_refused(written):
    message = (
        r"job, normalise: expected statistics of what the source now makes, got those of other transforms, or of other "
        r"settings of these\. Run loader-server index --statistics\."
    )
    with pytest.raises(SettingsError, match=message):
        chain(written(recipe="another"))


def test_transforms_that_draw_do_not_count(written):
    path = written()
    tables = {"normalise": {"statistics": path.name}}
    made = Chain.make(("spec_augment", "normalise"), tables, "job", RAW, FilePlaces(path.parent))
    assert made.steady_recipe == chain(path).steady_recipe
    with pytest.raises(SettingsError, match="expected statistics of what spec_augment, logmel now makes"):
        Chain.make(("spec_augment", "logmel", "normalise"), tables, "job", RAW, FilePlaces(path.parent))


def test_statistics_that_are_not_there_yet(tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"got No such file.*statistics\.json\. Run loader-server index --statistics, which makes it",
    ):
        chain(tmp_path / "statistics.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "got JSONDecodeError"),
        ("[]", "got TypeError"),
        ("{}", "got KeyError: 'mean'"),
        (
            json.dumps({"made_of": "", "mean": [1], "deviation": [1, 2]}),
            r"mean \(1,\) and deviation \(2,\) that do not fit",
        ),
        (json.dumps({"made_of": "", "mean": [float("nan")], "deviation": [1]}), "or are no numbers"),
        (json.dumps({"made_of": "", "mean": "a", "deviation": [1]}), "got ValueError"),
    ],
)
def test_a_file_that_holds_something_else(tmp_path, content, message):
    (tmp_path / "statistics.json").write_text(content)
    with pytest.raises(SettingsError, match=rf"job, normalise, statistics, .*: expected statistics as .*{message}"):
        chain(tmp_path / "statistics.json")


def test_bad_settings():
    with pytest.raises(SettingsError, match=r"normalise, variance: expected true or false, got 1"):
        Chain.make(("normalise",), {"normalise": {"variance": 1}}, "job", RAW)


@given(cuts=st.lists(st.integers(1, 499), max_size=5, unique=True), shape=st.sampled_from([(), (7,), (2, 3)]))
def test_pieces_together_are_the_whole(cuts, shape):
    values = np.random.default_rng(1).normal(1e4, 0.5, (500, *shape)).astype(np.float32)
    first, *others = (Moments.of(piece) for piece in np.split(values, sorted(cuts)))
    for other in others:
        first = first.merged(other)
    assert first.steps == 500
    np.testing.assert_allclose(first.mean, values.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(first.deviation, values.std(axis=0, dtype=np.float64), rtol=1e-9)


def test_pieces_count_by_their_steps():
    made = Moments.of(np.array([0.0])).merged(Moments.of(np.array([3.0, 3.0, 3.0])))
    assert (made.steps, float(made.mean), float(made.deviation)) == (4, 2.25, np.sqrt(27 / 16))
