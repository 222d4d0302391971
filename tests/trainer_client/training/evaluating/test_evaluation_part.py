"""A part in another process's evaluation: the model as it is, on all given streams, with no report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shared.errors import EndedError
from shared.quick_import import quick_import
from tests.support.fake_feed import FakeFeed

with quick_import():
    import keras

    from trainer_client.training.evaluating import evaluation_part
    from trainer_client.training.evaluating.evaluation_part import EvaluationPart
    from trainer_client.training.evaluating.evaluation_sums import Judged, OwnSums

FORM = {"inputs": "audio_length", "targets": "weight", "weights": "weight"}
JUDGED = Judged(label="levels", version="0123", epoch=2, step=9)


@pytest.fixture
def model():
    made = keras.Sequential([keras.layers.Input(()), keras.layers.Reshape((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def feeds(*batches):
    made = [FakeFeed(epochs=(count,), evaluation=True) for count in batches]
    for at, feed in enumerate(made):
        feed.session.stream = f"dev{at}"
    return made


def test_each_streams_batches_are_counted_and_nothing_is_reported(model, monkeypatch):
    asked = []
    monkeypatch.setattr(
        evaluation_part, "sums_of", lambda session, judged: asked.append((session.stream, judged)) or OwnSums()
    )
    made = feeds(3, 2)
    part = EvaluationPart(model, [(feed, feed.dataset(**FORM)) for feed in made], ["mae"])
    assert part.take_part(JUDGED) == {"dev0": 3, "dev1": 2}
    assert part.take_part(JUDGED) == {"dev0": 3, "dev1": 2}, "not of both times together"
    assert asked == [("dev0", JUDGED), ("dev1", JUDGED)] * 2
    assert [feed.session.reported for feed in made] == [[], []]


def test_a_job_that_is_ended_meanwhile_is_an_error_of_the_part(model, monkeypatch):
    ended = EndedError(expected="", got="", where="", remedy="")

    def refuse(*_how):
        raise ended

    (feed,) = feeds(1)
    sums = SimpleNamespace(is_shared=False, begin=lambda *_how: None, add=refuse)
    monkeypatch.setattr(evaluation_part, "sums_of", lambda *_how: sums)
    with pytest.raises(EndedError):
        EvaluationPart(model, [(feed, feed.dataset(**FORM))], []).take_part(JUDGED)
