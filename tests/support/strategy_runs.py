"""Short runs of the training loop under any strategy, over feeds in memory; as a program, those of one process of a
cluster: `python -m tests.support.strategy_runs` writes what came of them into the current folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from shared.errors import StokerError
from tests.support.joined_feed import spread_feed
from tests.support.lending import Lending
from tests.support.loaders import wait_until

import keras  # isort: skip
import tensorflow as tf  # isort: skip

from trainer_client import Until  # isort: skip
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder  # isort: skip
from trainer_client.training.strategies.multi_worker import MultiWorker  # isort: skip
from trainer_client.training.strategies.multi_worker import refuse_uneven  # isort: skip
from trainer_client.training.loop.training_loop import LoopSettings, TrainingData, TrainingLoop  # isort: skip

__all__ = ["FORM", "STEPS", "Spoken", "adam", "saved", "trained"]

FORM = {"inputs": {"audio": "audio", "text": "text"}, "targets": "tag", "weights": "weight"}
STEPS = (6, 4)


class Spoken(keras.Model):
    """A dense layer over sound and an embedding of text, whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.words = keras.layers.Embedding(5, 3)
        self.dense = keras.layers.Dense(1, kernel_regularizer="l2")

    def call(self, inputs):
        return self.dense(tf.reduce_mean(inputs["audio"], 1) + tf.reduce_mean(self.words(inputs["text"]), 1))


def per_row(tags, outputs):
    return tf.square(tf.cos(tf.cast(tags, tf.float32)) - outputs[:, 0])


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["loss"])


def trained(folder, placement, feed, *, optimizer=None, model=Spoken, loss=None, until=None, callbacks=(), **settings):
    """Losses of a run's steps, and the loop; of a placement that lends, it is the model of the first run."""

    def new():
        made = model()
        made.compile((optimizer or adam)(), loss or per_row)
        return made

    keras.utils.set_random_seed(3)
    with placement.scope():
        made = placement.model(new) if isinstance(placement, Lending) else new()
    data = TrainingData(feed=feed, elements=placement.data(feed, FORM), for_each_shape=partial(feed.warm_up, **FORM))
    losses = Losses()
    settings = LoopSettings(until=until or Until(steps=20), checkpoints=folder, **settings)
    loop = TrainingLoop(made, data, placement, settings, [losses, *callbacks])
    loop.run()
    return losses.seen, loop


def adam():
    return keras.optimizers.Adam(0.05, global_clipnorm=0.2)


def saved(folder):
    arrays, record = CheckpointFolder(folder, 3).read_last()
    return [arrays[str(at)] for at in range(len(arrays))], record


# --- one process of a cluster ---


def _run(folder: Path) -> None:
    placement = MultiWorker()
    lent, rank, world = Lending(placement), placement.ranks["rank"], placement.ranks["world"]
    feed = partial(spread_feed, 1, epochs=STEPS, rank=rank, world=world)
    came: dict[str, object] = {}
    with TemporaryDirectory() as own:
        losses, loop = trained(Path(own), lent, feed())
        variables = [*loop._model.variables, *loop._model.optimizer.variables]
        came |= {"losses": losses, "variables": [each.numpy().tolist() for each in variables]}
        came["losses by xla"], _ = trained(Path(own) / "xla", placement, feed(), until=Until(steps=8), xla=True)
        came["written"] = len(list(Path(own).glob("*.npz")))
        if rank:
            loop._model.variables[0].assign(loop._model.variables[0] + 1)
        came["unequal"] = _refusal(loop.check_replicas)
        came["copied"] = loop.broadcast_variables()
        came["equal again"] = _refusal(loop.check_replicas)
        came["first"] = loop._model.variables[0].numpy().tolist()
        for name, change in _OTHERS.items():
            elsewhere = _other_checkpoint(Path(own), folder, rank, name, change)
            came[name] = _refusal(partial(trained, elsewhere, lent, feed(), until=Until(steps=99)))
        came["different"] = _refusal(partial(_trained, placement, feed(), model=partial(HalfTrained, rank)))
        poisoned = feed()
        if rank:
            _poison(poisoned)
        came["not finite"] = _refusal(partial(_trained, lent, poisoned))
        if rank == 0:
            came["lost"] = _refusal_at_last(placement.refuse_lost)
            came["alone"] = _refusal(loop.check_replicas)
    (folder / f"came-{rank}.json").write_text(json.dumps(came))


def _none(_arrays, _record):
    return None


def _damaged(_arrays, _record):
    return b"cut off"


def _other_variable(arrays, record):
    return {**arrays, "0": arrays["0"] + 1}, record


def _other_steps(arrays, record):
    return arrays, {**record, "run": {**record["run"], "steps": record["run"]["steps"] + 2}}


def _other_position(arrays, record):
    return arrays, {**record, "feed": {**record["feed"], "number": record["feed"]["number"] + 1}}


def _other_stopping(arrays, record):
    return arrays, {**record, "early_stop": {"evaluated": [[0, 1.0]]}}


#: What the second process reads, made of the first one's checkpoint.
_OTHERS = {
    "none there": _none,
    "damaged": _damaged,
    "other variable": _other_variable,
    "other steps": _other_steps,
    "other position": _other_position,
    "other stopping": _other_stopping,
}


def _other_checkpoint(own, folder, rank, name, change):
    """A folder with the same checkpoint in each process, but for a change."""
    elsewhere, done = [folder / f"{name} {at}" for at in range(2)], folder / f"{name} is there"
    if rank == 0:
        shutil.copytree(own, elsewhere[0], ignore=shutil.ignore_patterns("xla"))
        changed = change(*CheckpointFolder(own, 3).read_last())
        elsewhere[1].mkdir()
        if isinstance(changed, bytes):
            (elsewhere[1] / "00000001.npz").write_bytes(changed)
        elif changed is not None:
            CheckpointFolder(elsewhere[1], 3).write(*changed)
        done.touch()
    wait_until(done.exists, "the checkpoints are there", 100)
    return elsewhere[rank]


def _trained(placement, feed, **how):
    with TemporaryDirectory() as folder:
        trained(Path(folder), placement, feed, retries=1, **how)


def _refusal(act):
    try:
        act()
    except StokerError as error:
        return str(error)
    return None


def _refusal_at_last(act):
    refusals = []
    wait_until(lambda: refusals.append(_refusal(act)) or refusals[-1], "it is refused", 100)
    return refusals[-1]


class HalfTrained(keras.Model):
    """Trains one variable in one process, and another in others."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.parts = [self.add_weight(shape=(3,), initializer="ones", name=name) for name in ("first", "second")]
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(tf.reduce_mean(inputs["audio"], 1) * self.parts[self.rank])


def _poison(feed):
    fill = feed.session.fill

    def poisoned(arrays, epoch, number):
        fill(arrays, epoch, number)
        arrays["weight"][...] = 1
        if number == 2:
            arrays["audio"][...] = np.nan

    feed.session.fill = poisoned


def _run_several(folder: Path, replicas: int) -> None:
    """The same for so many replicas in this process: what they train, and that they are equal."""
    placement = MultiWorker(replicas)
    came: dict[str, object] = {"said": placement.choice}
    with TemporaryDirectory() as own:
        losses, loop = trained(Path(own), placement, spread_feed(epochs=STEPS, **placement.ranks))
        variables = [*loop._model.variables, *loop._model.optimizer.variables]
        came |= {"losses": losses, "variables": [each.numpy().tolist() for each in variables]}
        loop.check_replicas()
        rank = placement.judging["rank"]
        for variable in variables[:2] if rank else ():
            last = placement._strategy.experimental_local_results(variable.value)[-1]
            last.assign(last + 1)
        came["unequal"] = _refusal(loop.check_replicas)
        came["copied"] = loop.broadcast_variables()
        came["variables again"] = [each.numpy().tolist() for each in variables]
        loop.check_replicas()
    rank = placement.judging["rank"]
    came["uneven"] = _refusal(partial(refuse_uneven, replicas + rank, placement.judging["world"]))
    (folder / f"came-{rank}.json").write_text(json.dumps(came))


if __name__ == "__main__":
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as in the tests' own process
    if sys.argv[1:]:
        _run_several(Path.cwd(), int(sys.argv[1]))
    else:
        _run(Path.cwd())
