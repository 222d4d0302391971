"""One evaluation by several workers, over real servers: which values each evaluates, and what it has afterwards."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from shared.quick_import import quick_import
from tests.trainer_client.training.servers.test_served_model import NOTHING, Served
from trainer_client.training.servers import joint_evaluation

with quick_import():
    import keras

from trainer_client.training.checkpoints.saved_model import plain_value
from trainer_client.training.evaluating.evaluation_sums import digest_of_arrays
from trainer_client.training.servers.joint_evaluation import (
    EvaluationFollower,
    EvaluationLeader,
    JointEvaluation,
)


def model():
    made = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)], name="normal"
    )
    made.compile("sgd", "mse")
    return made


def digest(model):
    return digest_of_arrays([plain_value(variable) for variable in model.variables])


class Part:
    """As an `EvaluationPart`: it notes the model that it is to evaluate, and by what description."""

    def __init__(self, model):
        self.model, self.evaluated = model, []

    def take_part(self, judged):
        self.evaluated.append((digest(self.model), judged))
        return {"dev": 3}


def leader(*, every=1, streams=("dev",), locked=()):
    """The chief's part; `locked` streams are in lockstep."""
    feeds = [
        SimpleNamespace(
            _session=SimpleNamespace(
                spec=SimpleNamespace(stream=stream), cursor=SimpleNamespace(names_evaluations=stream not in locked)
            )
        )
        for stream in (*streams, *locked)
    ]
    return EvaluationLeader(feeds, every)


@pytest.fixture(params=[1, 2], ids=["one server", "two servers"])
def trainers(request, monkeypatch):
    """The chief's model and a worker's on servers, each joined; the worker's own values differ, and it asks at once."""
    monkeypatch.setattr(joint_evaluation, "_ASK_EVERY_S", 0.0)
    served = Served(request.param, make=lambda: keras.optimizers.SGD(0.1))
    models = [model(), model()]
    for at, made in enumerate(models):
        made.layers[0].moving_mean.assign(np.full(3, 5.0 + at))
    try:
        with served.trainer(models[0]) as chief, served.trainer(models[1]) as worker:
            chief.serve(NOTHING, 0)
            assert chief.look()
            assert worker.look()
            yield (chief, models[0]), (worker, models[1]), served
    finally:
        served.close()


def test_a_worker_evaluates_the_chiefs_cut_with_its_statistics_and_has_its_own_back(trainers, capsys):
    (chief, chiefs), (worker, own), _ = trainers
    chief.save(0)
    judge, connected = Part(own), []
    follower = EvaluationFollower(lambda streams: connected.append(streams) or judge, 1)
    assert not follower.take_part(worker, own), "nothing is offered"
    with leader(streams=("dev", "test"), locked=("odd",)).offered(chief, chiefs, 3, 18):
        own.layers[1].kernel.assign(own.layers[1].kernel + 1)
        assert follower.take_part(worker, own)
        assert not follower.take_part(worker, own), "once"
    ((evaluated, judged),) = judge.evaluated
    assert evaluated == judged.version == digest(chiefs)
    assert (judged.label, judged.epoch, judged.step) == ("normal", 3, 18)
    assert connected == [("dev", "test")]
    np.testing.assert_array_equal(own.layers[0].moving_mean.numpy(), np.full(3, 6.0))
    np.testing.assert_array_equal(own.layers[1].kernel.numpy(), chiefs.layers[1].kernel.numpy())
    assert capsys.readouterr().out == "dev at step 18, after 3 epochs: 3 batches were evaluated here\n"
    with leader().offered(chief, chiefs, 4, 20):
        assert not follower.take_part(worker, own), "the same cut, which it has evaluated"
    chief.save(0)
    with leader().offered(chief, chiefs, 4, 20):
        assert follower.take_part(worker, own)
    assert (len(judge.evaluated), len(connected)) == (2, 1)


def test_what_is_applied_since_the_cut_is_not_evaluated(trainers):
    (chief, chiefs), (worker, own), served = trainers
    chief.save(0)
    judge = Part(own)
    with leader().offered(chief, chiefs, 1, 1):
        for server, _ in served.running.values():
            for variable in server._store._variables:
                variable.assign(variable + 1)
            server._store._values = None
        assert EvaluationFollower(lambda _streams: judge, 1).take_part(worker, own)
        worker.pull()
    assert judge.evaluated[0][0] == digest(chiefs)
    assert not np.array_equal(own.layers[1].kernel.numpy(), chiefs.layers[1].kernel.numpy())


@pytest.mark.parametrize(
    "chiefs_part", [leader(every=2), leader(streams=(), locked=("dev",))], ids=["not due", "in lockstep"]
)
def test_what_is_not_evaluated_now_or_not_leased_is_not_offered(trainers, chiefs_part):
    (chief, chiefs), (worker, own), _ = trainers
    chief.save(0)
    with chiefs_part.offered(chief, chiefs, 1, 1):
        assert not EvaluationFollower(lambda _streams: Part(own), 1).take_part(worker, own)


def test_an_evaluation_that_is_over_once_the_worker_has_connected_is_not_begun_anew(trainers):
    (chief, chiefs), (worker, own), _ = trainers
    chief.save(0)
    judge = Part(own)

    def slowly(_streams):
        chief.end_evaluation()
        return judge

    with leader().offered(chief, chiefs, 1, 1):
        assert EvaluationFollower(slowly, 1).take_part(worker, own)
    assert judge.evaluated == []
    np.testing.assert_array_equal(own.layers[0].moving_mean.numpy(), np.full(3, 6.0))


def test_a_cut_that_was_replaced_meanwhile_changes_nothing(trainers):
    (chief, chiefs), (worker, own), _ = trainers
    chief.save(0)
    before = digest(own)

    def slowly(_streams):
        chief.save(0)
        return Part(own)

    with leader().offered(chief, chiefs, 1, 1):
        assert not EvaluationFollower(slowly, 1).take_part(worker, own)
    assert digest(own) == before


def test_servers_that_have_moved_end_no_evaluation_of_the_chief_and_have_the_worker_pull_anew(trainers):
    (chief, chiefs), (worker, own), _ = trainers
    chief.save(0)
    chief.withdraw()
    done = []
    with leader().offered(chief, chiefs, 1, 1):
        done.append("evaluated")
        assert EvaluationFollower(lambda _streams: Part(own), 1).take_part(worker, own)
    assert done == ["evaluated"]


def test_after_the_last_epoch_a_worker_waits_for_the_evaluation_and_takes_part(trainers):
    (chief, chiefs), (worker, own), _ = trainers
    chief.save(0)
    judge, asked = Part(own), threading.Event()
    offer = leader().offered(chief, chiefs, 2, 9)

    def heed():  # the chief comes later
        if not asked.is_set():
            asked.set()
        elif not judge.evaluated and offer is not None:
            begin()

    def begin():
        nonlocal offer
        begun, offer = offer, None
        begun.__enter__()

    EvaluationFollower(lambda _streams: judge, 2).wait_for_last(worker, own, 2, heed)
    assert len(judge.evaluated) == 1


def test_a_chief_that_offers_nothing_is_waited_for_until_a_deadline_and_that_is_logged(trainers, monkeypatch, caplog):
    _, (worker, own), _ = trainers
    monkeypatch.setattr(joint_evaluation, "_LAST_S", 0.3)
    began_s = time.monotonic()

    def heed():  # without a deadline the test fails here, and does not hang
        assert time.monotonic() - began_s < 5, "it waits without end"

    EvaluationFollower(lambda _streams: Part(own), 2).wait_for_last(worker, own, 2, heed)
    assert time.monotonic() - began_s >= 0.3
    ((event, fields),) = [(record.event, record.fields) for record in caplog.records]
    assert event == "evaluation of the last epoch did not come, so this worker ends without it"
    assert fields == {"epoch": 2, "waited_s": 0.3}


def test_it_does_not_wait_where_nothing_comes(trainers, caplog):
    """An epoch that is not evaluated, a run that is over, and an interruption."""
    (chief, _), (worker, own), _ = trainers
    heeded = []
    follower = EvaluationFollower(lambda _streams: Part(own), 2)
    follower.wait_for_last(worker, own, 3, lambda: heeded.append("odd"))
    assert heeded == []

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follower.wait_for_last(worker, own, 2, interrupted)
    chief.finish("2 epochs are reached")
    follower.wait_for_last(worker, own, 2, lambda: heeded.append("asked"))
    assert len(heeded) == 1
    assert not caplog.records


def test_a_run_without_validation_has_no_part_in_any(trainers):
    (chief, chiefs), (worker, own), _ = trainers
    none = JointEvaluation()
    with none.offered(chief, chiefs, 1, 1):
        assert not none.take_part(worker, own)
    none.wait_for_last(worker, own, 1, lambda: pytest.fail("it waits"))
