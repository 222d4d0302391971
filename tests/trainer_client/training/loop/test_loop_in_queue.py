"""The training loop over leased batches: an epoch's end is seen only by asking, and checkpoints hold what is done."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from shared.errors import DataError, RefusedError
from shared.wire.message_parts import Lease
from tests.support.fake_feed import FakeFeed, LeasedCursor
from tests.support.lending import Lending

import keras  # isort: skip

from trainer_client import EarlyStop, NoProgress, Until  # isort: skip
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip
from trainer_client.training.strategies.single import Single  # isort: skip
from trainer_client.training.loop.training_loop import LoopSettings, TrainingData, TrainingLoop  # isort: skip

FORM = {"inputs": "audio_length", "targets": "weight", "weights": "weight"}
STEPS = (4, 3)
LENT = Lending(Single())


class DoneCursor(LeasedCursor):
    """Says which batches are done, as a lease account does: the epoch moves only once a reader has come to its end."""

    def __init__(self, session, leases=None):
        super().__init__(session)
        self._leases = leases

    @property
    def is_taken_back(self):
        return self._leases is not None and self._leases.is_taken_back

    def in_hand(self):
        return self._leases.in_hand()

    def state(self):
        is_over = self.done == self.session.batches(self.at.epoch)
        return {"epoch": self.at.epoch + is_over, "number": 0 if is_over else self.done, "plan": "p"}

    def restore(self, state):
        self._go_to(state["epoch"], 0)
        self.done = state["number"]

    def rewind(self):
        self.restore({"epoch": 0, "number": 0})


class LeasesOutOfOrder:
    """Leases as the loop asks for them, of a trainer that shares its epoch with others."""

    is_taken_back = False

    def in_hand(self):
        return Lease(3, 17, 1)


def compiled(begin="ones"):
    model = keras.Sequential(
        [keras.layers.Input(()), keras.layers.Reshape((1,)), keras.layers.Dense(1, kernel_initializer=begin)]
    )
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def run(folder, until, *, in_queue=True, callbacks=(), leases=None, begin=None, **settings):
    """Train from the folder's checkpoint on; what early stopping has seen."""
    feed = FakeFeed(epochs=STEPS)
    if in_queue:
        feed.session.cursor = DoneCursor(feed.session, leases)
    model, placement = (LENT.model(compiled), LENT) if begin is None else (compiled(begin), Single())
    data = TrainingData(feed=feed, elements=placement.data(feed, FORM), for_each_shape=partial(feed.warm_up, **FORM))
    settings = LoopSettings(until=until, checkpoints=folder, save_every_steps=1, **settings)
    callbacks = [*callbacks, EarlyStop(NoProgress(9), monitor="loss")]
    TrainingLoop(model, data, placement, settings, callbacks).run()
    arrays, record = CheckpointFolder(folder, 3).read_last()
    return arrays, record


@pytest.fixture(scope="module")
def in_lockstep(tmp_path_factory):
    """What an unbroken run saved."""
    return run(tmp_path_factory.mktemp("lockstep"), Until(epochs=2), in_queue=False)


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_stopped_after_any_step_and_resumed_it_is_the_run_in_lockstep(tmp_path, in_lockstep, stop):
    want, whole = in_lockstep
    _, there = run(tmp_path / "queue", Until(steps=stop))
    assert (there["step"], there["epoch"], there["feed"]["epoch"]) == (stop, stop // 4, stop // 4)
    assert len(there["early_stop"]["evaluated"]) == stop // 4, "an epoch that is over was judged"
    got, record = run(tmp_path / "queue", Until(epochs=2))
    assert (record["step"], record["epoch"], record["feed"]["epoch"]) == (7, 2, 2)
    assert record["early_stop"]["evaluated"] == whole["early_stop"]["evaluated"]
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_an_epoch_that_is_over_is_not_saved_before_it_was_judged(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Until(epochs=2), callbacks=[Interrupt()])
    _, record = CheckpointFolder(tmp_path, 3).read_last()
    assert (record["step"], record["feed"]) == (3, {"epoch": 0, "number": 3, "plan": "p"})


def test_a_batch_whose_gradients_stay_infinite_is_named_by_its_lease(tmp_path):
    begin = keras.initializers.Constant(np.inf)
    with pytest.raises(DataError, match=r"batch 17 of epoch 3 of fake, step 0.*--epoch 3 --batch 17"):
        run(tmp_path, Until(epochs=1), leases=LeasesOutOfOrder(), begin=begin, retries=0)


@pytest.mark.parametrize(("when", "trained"), [("within a step", 3), ("between epochs", 4)])
def test_a_run_whose_queue_another_one_takes_back_ends_and_saves_nothing_more(tmp_path, when, trained):
    leases, steps = LeasesOutOfOrder(), []

    class Another(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            leases.is_taken_back = epoch == 1

        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)
            leases.is_taken_back |= when == "within a step" and batch == 2

    with pytest.raises(RefusedError, match="expected to be the only run that trains a model on fake, got another"):
        run(tmp_path, Until(epochs=2), leases=leases, callbacks=[Another()])
    assert len(steps) == trained
    assert CheckpointFolder(tmp_path, 3).read_last()[1]["step"] == {3: 2, 4: 4}[trained]
