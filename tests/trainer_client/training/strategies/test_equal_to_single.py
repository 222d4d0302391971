"""Any synchronous strategy gives the losses and weights of a plain run over the same samples."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from functools import cache, partial

import numpy as np
import pytest

import tests.support.two_devices  # before TensorFlow is used
from shared.errors import DataError, SettingsError
from tests.support.counting_model import start_workers
from tests.support.fake_feed import SHAPES
from tests.support.joined_feed import joined_feed, spread_feed
from tests.support.lending import Lending

import keras  # isort: skip - after the devices are set
import tensorflow as tf  # isort: skip

from tests.support.strategy_runs import FORM, STEPS, Spoken, adam, saved, trained  # isort: skip
from trainer_client import InitialValues, Until  # isort: skip
from trainer_client.training.strategies.central import Central  # isort: skip
from trainer_client.training.strategies.mirrored import Mirrored  # isort: skip
from trainer_client.training.strategies.single import Single  # isort: skip

TOWERS = ("CPU:0", "CPU:1")


@cache
def lent(placement):
    """For runs of the usual model and optimizer."""
    return Lending(Single() if placement is Single else placement(TOWERS))


def scaled_sgd(**how):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=8.0, **how)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    losses, _ = trained(folder, lent(Single), joined_feed(2, epochs=STEPS))
    assert len(losses) == 20
    return losses, *saved(folder)


@pytest.mark.parametrize(
    ("placement", "xla"),
    [
        (lambda: lent(Mirrored), False),  # as later tests, which find its model as it is here before the first step
        (lambda: Mirrored(TOWERS, "cpu"), False),
        (lambda: lent(Central), False),
        (lambda: Central(TOWERS, "balanced"), False),
        (lambda: Mirrored(TOWERS), True),
        (lambda: Central(TOWERS, "balanced"), True),
    ],
    ids=["mirrored", "mirrored by cpu", "central", "central, balanced", "mirrored, XLA", "central, balanced, XLA"],
)
def test_losses_and_weights_are_those_of_a_plain_run_with_masked_rows_and_empty_batches(
    tmp_path, plain, placement, xla
):
    losses, arrays, record = plain
    made = placement()
    found, loop = trained(tmp_path, made, spread_feed(2, epochs=STEPS), xla=xla)
    np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-7)
    others, told = saved(tmp_path)
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert {name: told[name] for name in ("epoch", "step")} == {name: record[name] for name in ("epoch", "step")}
    step = made.first_step if isinstance(made, Lending) else loop._step
    assert step.traces == 2, "once for all shapes, on each device"
    assert loop._session.accounts.counts.retraces == 0


_OTHER_PARTS = {
    "none there": "checkpoint",
    "other steps": "totals",
    "other position": "feed position",
    "other stopping": "early stopping",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("T15")
def test_two_processes_of_a_cluster_do_the_same_and_decide_alike(tmp_path, plain):
    losses, arrays, _ = plain
    with ExitStack() as stack:
        for one in start_workers(stack, tmp_path, 2, module="tests.support.strategy_runs"):
            code, _, complained = one.ended(180)
            assert code == 0, complained
    first, second = (json.loads((tmp_path / f"came-{at}.json").read_text()) for at in range(2))
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(first["losses by xla"], losses[:8], rtol=1e-5, atol=1e-7)
    assert (first["losses"], first["variables"]) == (second["losses"], second["variables"])
    for one, other in zip(arrays, first["variables"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert (first["written"], second["written"]) == (3, 0), "the chief alone writes"
    for refused in (first["lost"], first["alone"]):
        assert "--strategy multi-worker: expected all 2 processes of the run" in refused
    for came in (first, second):
        assert re.search(r"others in the 2 processes: \S*embeddings", came["unequal"])
        assert re.search(r"others in the 2 processes: \S*embeddings", came["other variable"]), (
            "not overwritten: its run is another"
        )
        for name, part in _OTHER_PARTS.items():
            assert f"a run that begins alike in its 2 processes, got another {part} in some" in came[name]
        assert ("another checkpoint in some of them; here it is one." in came["damaged"]) == (came is first)
        assert "batch 2 of epoch 0 of fake, step 2: expected finite loss and gradients" in came["not finite"]
        assert re.search(r"in none: \S*first, \S*second", came["different"])
    assert "00000001.npz" in second["damaged"], "its own error, which says more"
    assert (first["copied"], first["equal again"], second["equal again"]) == ([], None, None)
    assert [path.rpartition("/")[2] for path in second["copied"]] == ["embeddings"]
    assert first["first"] == second["first"] == first["variables"][0]
    assert re.search(r"got tower 0 has one for \S*first\.", first["different"])
    assert re.search(r"got tower 0 has one for \S*second\.", second["different"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.heritage("T15")
def test_two_processes_of_two_replicas_each_do_what_one_process_does(tmp_path):
    losses, _ = trained(tmp_path / "plain", lent(Single), joined_feed(4, epochs=STEPS))
    with ExitStack() as stack:
        for one in start_workers(stack, tmp_path, 2, "2", module="tests.support.strategy_runs"):
            code, _, complained = one.ended(180)
            assert code == 0, complained
    first, second = (json.loads((tmp_path / f"came-{at}.json").read_text()) for at in range(2))
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-5, atol=1e-7)
    assert (first["losses"], first["variables"]) == (second["losses"], second["variables"])
    for one, other in zip(saved(tmp_path / "plain")[0], first["variables"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    for came in (first, second):
        assert "others in the 2 processes: " in came["unequal"], "though only the second has replicas that differ"
    assert (first["copied"], len(second["copied"])) == ([], 2)
    assert first["variables again"] == second["variables again"] == first["variables"]
    for came in (first, second):
        assert (
            "expected equally many replicas in each process of the run, got 2 in process 0, 3 in pr" in came["uneven"]
        )
    assert second["said"] == "multi-worker: process 1 of 2, 2 of 4 replicas; gradients by ring"


@pytest.mark.slow
@pytest.mark.heritage("T2")
@pytest.mark.heritage("T13")
def test_variables_lie_on_the_least_loaded_tower_or_on_the_cpu_and_an_optimizers_beside_them(tmp_path):
    for asked, places in (("balanced", {"CPU:0", "CPU:1"}), ("cpu", {"CPU:0"})):
        placement = Central(TOWERS, asked)
        feed = spread_feed(2, epochs=STEPS, shapes=SHAPES[:1])
        _, loop = trained(tmp_path / asked, placement, feed, until=Until(steps=1))
        model = loop._model
        on = {each.path: each.value.device[-5:] for each in (*model.variables, *model.optimizer.variables)}
        assert {on[each.path] for each in model.variables} == places
        for each in model.trainable_variables:
            beside = [path for path in on if path.startswith("adam") and each.path.replace("/", "_") in path]
            assert [on[path] for path in beside] == [on[each.path]] * 2
    assert Central(TOWERS, "gpu").choice.endswith("variables on CPU:0 (cpu, because no tower is on a GPU)")


@pytest.mark.heritage("T11")
@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_each_towers_batches_lie_on_its_device_and_are_staged_until_they_are_trained_on(placement):
    made, feed = placement(TOWERS), spread_feed(2, epochs=STEPS)
    for at, element in enumerate(made.data(feed, FORM), 1):
        towers = made._strategy.experimental_local_results(element) if placement is Mirrored else element
        on = [{each.device[-5:] for each in tf.nest.flatten(one)} for one in towers]
        assert on == [{"CPU:0"}, {"CPU:1"}]
        assert feed.session.batches_ahead()[1] >= 2 * at, "none is trained on"
    assert at == STEPS[0]


@pytest.mark.heritage("T3")
@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_with_sum_gradients_are_those_of_the_mean_times_the_replicas(tmp_path, placement):
    for name, made, rate in (("mean", placement(TOWERS), 0.02), ("sum", placement(TOWERS, sums=True), 0.01)):
        sgd = partial(keras.optimizers.SGD, rate)
        trained(tmp_path / name, made, spread_feed(2, epochs=STEPS), optimizer=sgd, until=Until(steps=6))
    (one, _), (other, _) = saved(tmp_path / "mean"), saved(tmp_path / "sum")
    weights = len(Spoken().weights) or 3
    for left, right in zip(one[:weights], other[:weights], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-7)


class Normal(keras.Model):
    """Batch statistics, and dropout, which has a seed."""

    def __init__(self):
        super().__init__(name="normal")  # of Keras' own choice, it would depend on how many there were before
        self.normal = keras.layers.BatchNormalization(momentum=0.5)
        self.drop = keras.layers.Dropout(0.3, seed=2)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        level = tf.reduce_mean(inputs["audio"], 1)
        return self.dense(self.drop(self.normal(level, training=training), training=training))


@cache
def lent_normal(placement):
    """For runs of `Normal` with Adam: each finds statistics, seeds and Adam's moments as they were at first."""
    return Lending(placement(TOWERS))


def each_replicas(placement, model):
    """The values of each variable on each replica."""
    of = placement._strategy.experimental_local_results
    return [[one.numpy() for one in of(each.value)] for each in (*model.variables, *model.optimizer.variables)]


@pytest.mark.heritage("T14")
def test_batch_statistics_and_all_else_are_the_same_on_all_replicas(tmp_path):
    placement = lent_normal(Mirrored)
    _, loop = trained(tmp_path, placement, spread_feed(2, epochs=STEPS), model=Normal, until=Until(steps=4))
    values = each_replicas(placement, loop._model)
    for one, other in values:
        np.testing.assert_array_equal(one, other)
    assert any(np.any(one != 0) for one, _ in values)
    loop.check_replicas()
    mean = loop._model.normal.moving_mean
    assert np.any(mean.numpy() != 0)
    first, second = placement._strategy.experimental_local_results(mean.value)
    second.assign(first + 1)
    with pytest.raises(DataError, match=r"others in the replicas of this process: normal/.*moving_mean"):
        loop.check_replicas()


@pytest.mark.heritage("T5")
@pytest.mark.parametrize("asked", ["auto", "cpu", "gpu", "nccl"])
def test_gradients_go_by_the_all_reduce_that_is_named(asked):
    placement = Mirrored(TOWERS, asked)
    assert re.search(r"gradients by cpu(, because .*)?$", placement.choice)
    operations = placement._strategy.extended._cross_device_ops
    assert type(operations) is tf.distribute.ReductionToOneDevice
    assert operations.reduce_to_device == "/cpu:0"


def spoil(placement, model, at):
    """Add 1 to each variable's copy on this replica, where one may: bits in integers."""
    for variable in (*model.variables, *model.optimizer.variables):
        copies = placement._strategy.experimental_local_results(variable.value)
        copies[at].assign(copies[at] + tf.ones_like(copies[at]))


@pytest.mark.heritage("T15")
def test_variables_are_copied_from_the_first_replica_when_asked(tmp_path):
    """All of them, of any dtype, the optimizer's too; also a zero's sign, and what is no number."""
    placement = lent_normal(Mirrored)
    _, loop = trained(tmp_path, placement, spread_feed(2, epochs=STEPS), model=Normal, until=Until(steps=4))
    model = loop._model
    first = placement._strategy.experimental_local_results(model.dense.bias.value)[0]
    first.assign([-0.0])
    placement._strategy.experimental_local_results(model.normal.beta.value)[0].assign([np.nan, np.inf, -1.0])
    before = [first for first, _ in each_replicas(placement, model)]
    spoil(placement, model, 1)
    with pytest.raises(DataError):
        loop.check_replicas()
    every = [variable.path for variable in (*model.variables, *model.optimizer.variables)]
    assert loop.broadcast_variables() == every
    for want, (one, other) in zip(before, each_replicas(placement, model), strict=True):
        assert one.tobytes() == other.tobytes() == want.tobytes()
    loop.check_replicas()
    assert loop.broadcast_variables() == []


@pytest.mark.heritage("T7")
@pytest.mark.heritage("T15")
def test_replicas_begin_with_the_first_ones_values_and_callbacks_can_have_them_copied_again(tmp_path, caplog):
    placement, copied = Lending(Mirrored(TOWERS)), []

    class Again(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.loop = self.params["loop"]
            self.loop.check_replicas()

        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                spoil(placement, self.model, 1)
                copied.append(self.loop.broadcast_variables())
                self.loop.check_replicas()

    def model():
        made = Normal()
        made({"audio": np.zeros((1, 1, 3), np.float32)})
        copies = placement._strategy.experimental_local_results(made.dense.kernel.value)
        copies[1].assign(copies[1] + 1)
        return made

    trained(tmp_path, placement, spread_feed(2, epochs=STEPS), model=model, until=Until(steps=3), callbacks=[Again()])
    assert len(copied[0]) > 10
    (warned,) = [record for record in caplog.records if "differed from the first replica's" in record.message]
    assert [path.rpartition("/")[2] for path in warned.fields["variables"]] == ["kernel"]


@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_all_replicas_begin_with_initial_values(tmp_path, placement):
    made = lent_normal(placement)
    trained(tmp_path / "source", made, spread_feed(2, epochs=STEPS), model=Normal, until=Until(steps=4))
    want, record = saved(tmp_path / "source")
    feed, initial = spread_feed(2, epochs=STEPS), InitialValues(tmp_path / "source")
    _, loop = trained(tmp_path / "own", made, feed, model=Normal, until=Until(steps=0), initial=initial)
    for name, value, variable in zip(record["names"], want, loop._model.variables, strict=False):
        if not name.endswith("seed_generator_state"):
            np.testing.assert_array_equal(variable.numpy(), value)
    loop.check_replicas()


def test_variables_of_one_copy_are_not_copied(tmp_path):
    for made in (lent(Single), lent(Central)):
        feed = joined_feed(2, epochs=STEPS) if made is lent(Single) else spread_feed(2, epochs=STEPS)
        _, loop = trained(tmp_path / type(made._placement).__name__, made, feed, until=Until(steps=1))
        assert loop.broadcast_variables() == []


class Seeded(Normal):
    """Draws numbers, of which XLA has others, and goes by none of them."""

    def __init__(self):
        super().__init__()
        self.drop = keras.layers.Dropout(0.0)
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs, training=False):
        return super().call(inputs, training) + 0 * keras.random.uniform((), seed=self.seeds)


@pytest.mark.slow
@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_xla_compiles_what_a_tower_computes_and_leaves_seeds_statistics_and_the_loss_scale_as_without_it(
    tmp_path, placement
):
    scaling = partial(scaled_sgd, dynamic_growth_steps=2)
    for name, xla in (("plain", False), ("xla", True)):
        feed, until = spread_feed(2, epochs=STEPS, shapes=SHAPES[:1]), Until(steps=4)
        made = {"model": Seeded, "optimizer": scaling}
        trained(tmp_path / name, placement(TOWERS), feed, until=until, xla=xla, **made)
    for one, other in zip(saved(tmp_path / "plain")[0], saved(tmp_path / "xla")[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class Unknown(keras.Model):
    """Computes what XLA has no code for."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        level = tf.py_function(lambda value: value, [tf.reduce_mean(inputs["audio"], 1)], tf.float32)
        return self.dense(tf.reshape(level, (-1, 3)))


class Synchronized(keras.Model):
    """Replicas exchange what they normalize by."""

    def __init__(self):
        super().__init__()
        self.normal = keras.layers.BatchNormalization(synchronized=True)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        return self.dense(self.normal(tf.reduce_mean(inputs["audio"], 1), training=training))


def test_what_xla_cannot_compile_ends_training(tmp_path):
    how = {"model": Unknown, "optimizer": keras.optimizers.SGD}
    for placement in (Mirrored, Central):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"unsupported operations(.|\n)*EagerPyFunc"):
            trained(tmp_path, placement(TOWERS), spread_feed(2, epochs=STEPS), xla=True, **how)
    with pytest.raises(SettingsError, match="replicas that exchange nothing while they compute, under --xla"):
        trained(tmp_path, Mirrored(TOWERS), spread_feed(2, epochs=STEPS), model=Synchronized, xla=True)


@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_statistics_of_towers_weigh_as_many_rows_as_they_have(tmp_path, placement):
    feed = spread_feed(2, epochs=(2,))
    fill = feed.session.fill

    def one_is_empty(arrays, epoch, number):
        fill(arrays, epoch, number)
        arrays["audio"][...] = 8 if number % 2 else 3
        arrays["weight"][...] = number % 2

    feed.session.fill = one_is_empty
    _, loop = trained(tmp_path, lent_normal(placement), feed, model=Normal, until=Until(steps=1))
    np.testing.assert_allclose(loop._model.normal.moving_mean.numpy(), 4.0)  # 0 and 8, by halves


class Different(keras.Model):
    """Multiplies by one variable on one device, and by another one elsewhere."""

    def __init__(self):
        super().__init__()
        self.first = self.add_weight(shape=(3,), initializer="ones", name="first")
        self.second = self.add_weight(shape=(3,), initializer="ones", name="second")
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        level = tf.reduce_mean(inputs["audio"], 1)
        return self.dense(level * (self.first if level.device.endswith("CPU:0") else self.second))


@pytest.mark.heritage("T6")
@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_towers_with_gradients_of_different_variables_are_refused_by_name(tmp_path, placement):
    with pytest.raises(SettingsError) as raised:
        trained(tmp_path, placement(TOWERS), spread_feed(2, epochs=STEPS), model=Different)
    said = str(raised.value)
    assert re.search(
        r"in none: \S*first, \S*second, got tower 0 has one for \S*first; tower 1 has .* \S*second\.", said
    )


@pytest.mark.heritage("T14")
def test_a_trained_variable_of_which_replicas_have_no_copy_is_refused_by_name(tmp_path):
    outside = keras.layers.Dense(1, name="outside")
    outside.build((None, 3))

    class Made(Normal):
        def __init__(self):
            super().__init__()
            self.dense = outside

        def build(self, shapes):
            self.normal.build((None, 3))

    with pytest.raises(SettingsError, match=r"each replica has a copy, got outside/kernel, outside/bias.*make them in"):
        trained(tmp_path, Mirrored(TOWERS), spread_feed(2, epochs=STEPS), model=Made)


@pytest.mark.parametrize("placement", [Mirrored, Central])
@pytest.mark.parametrize("scales", [False, True])
def test_gradients_that_are_not_finite_on_one_replica_are_applied_on_none(tmp_path, placement, scales):
    feed = spread_feed(2, epochs=STEPS)
    fill = feed.session.fill

    def spoilt(arrays, epoch, number):
        fill(arrays, epoch, number)
        arrays["weight"][...] = 1
        if number == 7:
            arrays["audio"][...] = np.nan

    feed.session.fill = spoilt
    optimizer = scaled_sgd if scales else adam
    placed = Lending(placement(TOWERS)) if scales else lent(placement)
    with pytest.raises(DataError, match="batch 6 of epoch 0 of fake, step 3: expected finite"):
        trained(tmp_path, placed, feed, optimizer=optimizer, retries=1, save_every_steps=1)
    arrays, record = saved(tmp_path)
    assert record["step"] == 3
    assert all(np.isfinite(one).all() for one in arrays)
    _, loop = trained(tmp_path, placed, spread_feed(2, epochs=STEPS), optimizer=optimizer, until=Until(steps=5))
    assert int(loop._model.optimizer.iterations.numpy()) == 5
    loop.check_replicas()


def test_a_checkpoint_of_another_strategy_is_taken(tmp_path):
    for done, placement in enumerate((Mirrored, Central, Mirrored)):
        trained(tmp_path, lent(placement), spread_feed(2, epochs=STEPS), until=Until(steps=2 + 2 * done))
    whole = tmp_path / "whole"
    trained(whole, lent(Single), joined_feed(2, epochs=STEPS), until=Until(steps=6))
    for one, other in zip(saved(tmp_path)[0], saved(whole)[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_a_world_of_another_size_is_taken_within_an_epoch(tmp_path):
    trained(tmp_path, lent(Single), spread_feed(1, epochs=(12,)), until=Until(steps=2))
    trained(tmp_path, lent(Mirrored), spread_feed(2, epochs=(6,)), until=Until(steps=5))
    record = saved(tmp_path)[1]
    assert (record["step"], record["feed"]["number"]) == (5, 8), "two steps of one batch, three of two"


@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_a_feed_of_other_ranks_is_refused(tmp_path, placement):
    with pytest.raises(SettingsError, match="expected a feed of 2 of 2 ranks, one for each replica, got one of 1 of 1"):
        trained(tmp_path, placement(TOWERS), joined_feed(2, epochs=STEPS))


@pytest.mark.parametrize("placement", [Mirrored, Central])
def test_one_of_several_processes_is_refused(monkeypatch, placement):
    monkeypatch.setenv("WORKER_HOSTS", "one:1,two:2")
    monkeypatch.setenv("JOB_NAME", "worker")
    monkeypatch.setenv("TASK_INDEX", "1")
    with pytest.raises(SettingsError, match="expected one process, got one of 2, as the environment says"):
        placement(TOWERS)


class Penalized(keras.Model):
    """Adds a loss of its own: a mean over rows with a sample, as the loss is one."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        level = tf.reduce_mean(inputs["audio"], 1)
        outputs = self.dense(level)
        valid = tf.cast(tf.reduce_any(level != 0, 1, keepdims=True), tf.float32)
        self.add_loss(9 * tf.math.divide_no_nan(tf.reduce_sum(valid * outputs**2), tf.reduce_sum(valid)))
        return outputs


def without_weights(feed):
    fill = feed.session.fill

    def filled(arrays, epoch, number):
        fill(arrays, epoch, number)
        arrays["weight"][...] = arrays["weight"] > 0

    feed.session.fill = filled
    return feed


PENALIZED = {"model": Penalized, "until": Until(steps=6), "optimizer": partial(keras.optimizers.SGD, 0.02)}


@pytest.fixture(scope="module")
def penalized(tmp_path_factory):
    """What a plain run came to: its losses, and what it saved."""
    folder = tmp_path_factory.mktemp("penalized")
    losses, _ = trained(folder, Single(), without_weights(joined_feed(2, epochs=STEPS, shapes=SHAPES[:1])), **PENALIZED)
    return losses, saved(folder)[0]


@pytest.mark.parametrize(("placement", "xla"), [(Mirrored, False), (Mirrored, True), (Central, False), (Central, True)])
def test_losses_of_the_models_own_weigh_as_many_rows_as_towers_have(tmp_path, penalized, placement, xla):
    losses, arrays = penalized
    feed = without_weights(spread_feed(2, epochs=STEPS, shapes=SHAPES[:1]))
    found, _ = trained(tmp_path, placement(TOWERS), feed, xla=xla, **PENALIZED)
    np.testing.assert_allclose(found, losses, rtol=1e-5, atol=1e-7)
    for one, other in zip(saved(tmp_path)[0], arrays, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
