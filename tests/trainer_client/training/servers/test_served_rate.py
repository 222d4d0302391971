"""The learning rate on real servers: set by the chief, or a schedule's, which counts the servers' steps."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.quick_import import quick_import
from tests.trainer_client.training.servers.test_served_model import NOTHING, Served, lease

with quick_import():
    import keras

    from trainer_client.training.servers.served_model import MovedError, refuse_what_servers_cannot_hold


def fixed():
    return keras.optimizers.SGD(0.5)


def falling():
    """Half as much with each step."""
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5))


def small():
    """A model of one variable: the second server holds nothing."""
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.build((None, 1))
    return model


@contextmanager
def joined(make, servers=2):
    served = Served(servers, make=make)
    try:
        with served.trainer(small()) as chief, served.trainer(small()) as worker:
            chief.serve(NOTHING, 0)
            assert chief.look()
            worker.wait_for_shares(60)
            worker.pull()
            chief.pull()
            yield served, chief, worker
    finally:
        served.close()


def push(trainer, number):
    """The gradient is 1; the change that the servers made of it."""
    before = trainer._variables[0].numpy().item()
    assert trainer.push(lease(number), {0: np.ones((1, 1), np.float32)})
    trainer.pull()
    return before - trainer._variables[0].numpy().item()


def test_what_the_chief_sets_holds_for_every_later_push_of_any_worker():
    with joined(fixed) as (_served, chief, worker):
        assert push(worker, 0) == 0.5
        chief.pull()
        chief.set_rate(0.25)
        assert push(worker, 1) == 0.25
        worker.pull()
        chief.set_rate(0.0)
        worker.pull()
        assert worker._state.common[1].numpy() == 0.0, "before anything else is pushed"
        assert push(worker, 2) == 0.0
        assert worker._state.common[1].numpy() == 0.0, "a copy that goes on between pulls goes by it as well"
        chief.pull()
        assert push(chief, 3) == 0.0


def test_a_checkpoint_has_the_rate_and_another_number_of_servers_is_given_it():
    with joined(fixed) as (_served, chief, worker):
        chief.set_rate(0.25)
        push(worker, 0)
        chief.save(0)
        state = [one.numpy() for one in chief._state.common]
        assert state == [1, 0.25]
    with joined(fixed, servers=1) as (_served, chief, worker):
        for variable, value in zip(chief._state.common, state, strict=True):
            variable.assign(value)
        chief.serve(NOTHING, 0)
        assert chief.look()
        worker.wait_for_shares(60)
        worker.pull()
        assert push(worker, 0) == 0.25


def test_a_schedule_counts_the_steps_of_all_workers_on_every_server():
    with joined(falling) as (served, chief, worker):
        changes = []
        for number in range(4):
            who = (chief, worker)[number % 2]
            who.pull()
            changes.append(push(who, number))
        assert changes == pytest.approx([0.5, 0.25, 0.125, 0.0625])
        assert worker.push(lease(4), {}), "a batch without a valid row is no step"
        chief.save(0)
        assert int(chief._state.common[0].numpy()) == 4
        counted = [one._store._optimizer.iterations.numpy() for one, _ in served.running.values()]
        assert counted == [4, 4], "the server that holds nothing has counted, too"


def test_servers_that_have_moved_take_no_rate_and_nothing_until_they_are_given_shares():
    with joined(fixed) as (_served, chief, worker):
        chief.withdraw()
        for act in (lambda: chief.set_rate(0.25), worker.pull, lambda: worker.push(lease(0), {})):
            with pytest.raises(MovedError):
                act()
        assert not worker.look()
        chief.serve(NOTHING, 0)
        worker.wait_for_shares(60)


def test_several_optimizers_are_refused():
    model = small()
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(fixed()))
    with pytest.raises(SettingsError, match="one optimizer for all variables, got a MultiOptimizer"):
        refuse_what_servers_cannot_hold(model, several)
