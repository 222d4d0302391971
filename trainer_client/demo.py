"""Trainer of the demo: a small CTC model in Keras, trained by `fit` on a feed and judged on an evaluation stream.

`python -m trainer_client.demo tcp://127.0.0.1:7400` trains on the job that the demo left behind and prints a line an
epoch; with `--events` each line is a JSON object, for `loader-server demo`, which runs this as a separate process.

Rules: it reports what the train step itself saw, tags included; it ends as all commands do. It knows the job's keys
(`audio`, `text`), and nothing about how loaders work.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import trainer_client
from shared.commands import describe_exit_codes, run_command
from shared.quick_import import quick_import

with quick_import():
    import keras
    import tensorflow as tf

    from trainer_client.training.losses import CTC, blank_after

__all__ = [
    "DigitModel", "ReportingModel", "edit_distance", "feed_keys", "loss", "main", "model", "optimizer",
    "train",
]  # fmt: skip

#: Stride of the two strided convolutions together: a frame of the outputs is 40 ms.
_STRIDE = 4
_CHANNELS = 96
_LABELS = 11  # ten digits, from 1 on, and the blank

_INPUTS = {"audio": "audio", "audio_length": "audio_length", "tag": "tag"}

#: Keys of an evaluation batch that the judge needs.
_KEYS = ("audio", "audio_length", "text", "text_length", "weight")


class DigitModel(keras.Model):  # type: ignore[misc] # Keras has no types
    """Model from log-mel bands to logits of digits: strided, then dilated convolutions.

    It normalises row by row, never by batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._down = [keras.layers.Conv1D(_CHANNELS, 5, 2, "same", activation="relu") for _ in range(2)]
        self._wide = [keras.layers.Conv1D(_CHANNELS, 3, 1, "same", dilation_rate=rate) for rate in (1, 2, 4)]
        self._norms = [keras.layers.LayerNormalization() for _ in range(5)]
        self._out = keras.layers.Dense(_LABELS)

    def call(self, inputs: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Keras calls it
        """Return logits of 11 labels, `[rows, frames / 4 rounded up, labels]`, blank after each row's end."""
        frames = inputs["audio_length"]
        mask = tf.sequence_mask(frames, tf.shape(inputs["audio"])[1], tf.float32)[:, :, tf.newaxis]
        # Scale logarithms of energies between 1e-10 and some hundreds to about -2 to 2.
        outputs = mask * (inputs["audio"] + 8.0) / 6.0
        for down, norm in zip(self._down, self._norms, strict=False):
            outputs = norm(down(outputs))
        for wide, norm in zip(self._wide, self._norms[2:], strict=True):
            outputs = outputs + tf.nn.relu(wide(norm(outputs)))
        return blank_after(self._out(outputs), -(-frames // _STRIDE))


#: From here on: the names that `trainer-client train --model trainer_client.demo` looks up in a module.
loss = CTC()
feed_keys: dict[str, Any] = {"inputs": _INPUTS, "targets": "text", "weights": "weight"}


def model() -> DigitModel:
    """Return a new DigitModel, untrained and not compiled."""
    return DigitModel()


def optimizer(rate: float = 1e-3) -> keras.optimizers.Optimizer:
    """Return Adam with this learning rate, which clips each gradient to a norm of 5."""
    return keras.optimizers.Adam(rate, clipnorm=5.0)


class ReportingModel(DigitModel):
    """Model that reports the batches it is trained on, from within the step."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell
        self.steps = 0

    def train_step(self, data: Any) -> Any:
        """Run the usual step, report its batch from within, and return its logs."""
        inputs, _, weight = data
        logs = super().train_step(data)
        facts = [inputs["tag"], inputs["audio_length"], weight, tf.shape(inputs["audio"])[:2]]
        # From within, so that what is reported is what the step saw; stateful, or it would be left out as unused.
        tf.numpy_function(self._seen, facts, [], stateful=True)
        return logs

    def _seen(self, tags: Any, lengths: Any, weight: Any, shape: Any) -> None:
        """Report a step's number, samples, padded shape and sum of lengths; masked rows count in the shape only."""
        self.steps += 1
        valid = weight > 0
        self._tell(
            "step", step=self.steps, tags=tags[valid].tolist(), shape=shape.tolist(), filled=int(lengths[valid].sum())
        )


class _Epochs(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Callback that evaluates the model after each epoch, reports, and ends training in time."""

    def __init__(self, checkpoint: Any, judge: Any, tell: Any, until_s: float) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._judge = judge
        self._tell = tell
        self._until_s = until_s

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        times = self._checkpoint.times
        self._tell(
            "epoch",
            epoch=epoch,
            loss=float((logs or {})["loss"]),
            error=self._judge(),
            steps=times.steps,
            wait_s=times.wait_s,
            train_s=times.wait_s + times.compute_s,
        )
        if time.monotonic() > self._until_s:
            self.model.stop_training = True


class _Judge:
    """Digit error on a stream: the edit distance between recognised and spoken digits, over spoken digits."""

    def __init__(self, model: DigitModel, feed: trainer_client.Feed) -> None:
        self._data = feed.dataset(map=lambda batch: {key: batch[key] for key in _KEYS})
        self._guess = tf.function(lambda inputs: tf.argmax(model(inputs), axis=-1), reduce_retracing=True)

    def __call__(self) -> float:
        edits = digits = 0
        for batch in self._data:
            heard = self._guess({"audio": batch["audio"], "audio_length": batch["audio_length"]}).numpy()
            spoken = zip(batch["text"].numpy(), batch["text_length"].numpy(), strict=True)
            for row, (text, length) in enumerate(spoken):
                if batch["weight"][row] > 0:
                    edits += edit_distance(_collapsed(heard[row]), text[:length].tolist())
                    digits += int(length)
        return edits / max(digits, 1)


def _collapsed(path: np.ndarray[Any, Any]) -> list[int]:
    """Return the labels of a CTC path, with each run of equal labels as a single label, and without blanks (0)."""
    first = np.concatenate([[True], path[1:] != path[:-1]])
    return list(map(int, path[first & (path != 0)]))


def edit_distance(heard: list[int], spoken: list[int]) -> int:
    """Return the Levenshtein distance: the least number of insertions, deletions and substitutions."""
    # A row of the usual table at a time; `diagonal` is the value left of and above the cell, in the row before.
    row = list(range(len(spoken) + 1))
    for count, heard_label in enumerate(heard, 1):
        diagonal, row[0] = row[0], count
        for place, label in enumerate(spoken, 1):
            substituted = diagonal + (heard_label != label)
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, substituted)
    return row[-1]


def train(options: argparse.Namespace) -> None:
    """Train until all epochs are done, or the time is up, by the options of the command line.

    If the checkpoints have all epochs already, only report that. Raise SettingsError if the job has not the demo's keys
    or a checkpoint is of another job, LostError if no server answers, and RefusedError if the job refuses the trainer.
    Other errors of `connect`, the feeds and Keras pass through.
    """
    tell = _tell_json if options.events else _tell_people
    keras.utils.set_random_seed(7)
    with (
        trainer_client.connect(options.endpoint, stream="train", rank=0) as feed,
        trainer_client.connect(options.endpoint, stream="dev", rank=0) as dev,
    ):
        reporting = ReportingModel(tell)
        data = feed.dataset(**feed_keys)
        reporting.compile(optimizer(), loss, jit_compile=False)
        checkpoint = trainer_client.FeedCheckpoint(feed, options.checkpoints)
        # No epoch begins after that time, so that slower machines end in time, with a higher error.
        epochs = _Epochs(checkpoint, _Judge(reporting, dev), tell, time.monotonic() + options.seconds)
        tell("connected", group=feed.state()["group"])
        reporting.fit(data, epochs=options.epochs, callbacks=[checkpoint, epochs], verbose=0)
        if checkpoint.times is None:
            tell("nothing", epochs=options.epochs, folder=str(options.checkpoints))


def _tell_json(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def _tell_people(event: str, **facts: Any) -> None:
    if event == "epoch":
        rate, waiting = facts["steps"] / facts["train_s"], facts["wait_s"] / facts["train_s"]
        print(
            f"epoch {facts['epoch'] + 1}: loss {facts['loss']:.2f}, digit error {facts['error']:.1%}, "
            f"{rate:.1f} steps/s, waiting for data {waiting:.1%}",
            flush=True,
        )
    elif event == "nothing":
        print(f"Nothing to train: {facts['folder']} has {facts['epochs']} epochs or more; ask for more with --epochs.")


# --- the process ---


def main() -> None:
    """Run the command by the process's arguments, and end the process with its exit code.

    Errors that commands expect are printed and set the code; any other exception passes through.
    """
    run_command(_parser(), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_client.demo",
        description="Train a small model on the job of `loader-server demo`.",
        epilog="example: python -m trainer_client.demo tcp://127.0.0.1:7400 --checkpoints checkpoints",
    )
    parser.add_argument("endpoint", nargs="?", default="tcp://127.0.0.1:7400", help="the coordinator's endpoint")
    parser.add_argument("--epochs", type=int, default=12, help="how many epochs to train (12)")
    parser.add_argument("--seconds", type=float, default=1e6, help="begin no epoch after so many seconds")
    parser.add_argument(
        "--checkpoints", type=Path, default=Path("checkpoints"), help="folder to resume from and to save in"
    )
    parser.add_argument("--events", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run, log_level="error")
    describe_exit_codes(parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.events:
        _end_with_parent()
    train(options)
    return 0


def _end_with_parent() -> None:
    """Start a thread that ends this process with code 130 once standard input ends, as it does with the parent."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: at the end its lock would be held by this thread
            pass
        # `sys.exit` would end this thread alone.
        os._exit(130)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    main()
