"""`Validation`: evaluates the model on evaluation streams during training, every so many epochs or steps.

Rules: the epoch's or step's number since the model began from nothing decides when, so a resumed run is evaluated at
the same places. Values are those of all samples, though ranks or other processes evaluate some; rows without a sample
do not count, and the sums of the training epoch are left alone. If the job is ended meanwhile, training stops,
unjudged; other callbacks find `JOB_ENDED` in their `params`, which all callbacks of one `fit` share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from shared.errors import EndedError, SettingsError
from trainer_client.training.checkpoints.saved_model import plain_value
from trainer_client.training.evaluating.evaluation_sums import Judged, digest_of_arrays, sums_of
from trainer_client.training.evaluating.evaluator import Evaluator
from trainer_client.training.runs.printed_lines import judged_line
from trainer_client.training.runs.run_loop import JOB_ENDED, STEPS_DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import tensorflow as tf

    from trainer_client.feed import Feed
    from trainer_client.session.feed_session import FeedSession
    from trainer_client.tf.element_structure import Keys

__all__ = ["Validation"]


class Validation(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """A Keras callback that evaluates the model on evaluation streams, and prints a line for each.

    The loss is the model's own. The values are in the logs of the epoch, or of the step, for callbacks that come later:
    `val_dev_loss` for the stream `dev`.

    Args:
        *feeds: Feeds of evaluation streams.
        epochs: Evaluate after every so many epochs.
        steps: Evaluate after every so many steps instead; one of both has to be given.
        metrics: Keras metrics beside the loss.
        inputs: As for `Feed.dataset`.
        targets: As for `Feed.dataset`.
        weights: As for `Feed.dataset`.
        map: As for `Feed.dataset`.

    Attributes:
        results: The last values by stream: loss, metrics and `rows`.

    Raises:
        SettingsError: There is no feed, or one of a stream for training; not exactly one of `epochs` and `steps` is
            given, or it is below 1; or as for `Feed.dataset`.

    Example:
        >>> form = {"inputs": "audio", "targets": "audio_length", "weights": "weight"}
        >>> judge = trainer_client.Validation(dev, epochs=1, **form)
        >>> history = model.fit(feed.dataset(**form), epochs=1, callbacks=[judge], verbose=0)
        dev at step ..., after 1 epochs: loss ... (... samples)
        >>> sorted(judge.results["dev"])
        ['loss', 'rows']
    """

    def __init__(  # noqa: PLR0913 - users write those that they need, by name
        self,
        *feeds: Feed,
        epochs: int | None = None,
        steps: int | None = None,
        metrics: Sequence[Any] = (),
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as `tf.data` calls it
    ) -> None:
        super().__init__()
        _check(feeds, epochs, steps)
        #: Loss, metrics and `rows` by stream.
        self.results: dict[str, dict[str, float]] = {}
        self._epochs, self._steps = epochs, steps
        self._metrics = metrics
        form: dict[str, Any] = {"inputs": inputs, "targets": targets, "weights": weights, "map": map}
        self._data = [(feed, feed.dataset(**form)) for feed in feeds]
        self._evaluator: Evaluator | None = None
        #: How many epochs are done, and the first of the steps that run at a time (`steps_per_execution`).
        self._epoch = self._first = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Make the evaluator of the compiled model; raise ValueError for a loss or metric that Keras does not know."""
        self._evaluator = Evaluator(self.model, self.model.loss, self._metrics)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note how many epochs are through, which is reported with each step."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the number of the first of the steps that Keras runs at a time."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate into the logs if one of the steps that have just run was due; do nothing if it goes by epochs.

        Their beginning is counted back from their end, because before the first of them a checkpoint may not be
        restored yet. If the job is ended meanwhile, training stops; other errors of evaluating are passed on, such as
        SettingsError for metrics that cannot be summed.
        """
        # Counted from the model's beginning, so a run that was resumed is judged at the same places.
        if self._steps is not None:
            done = self._step()
            if (done - (batch - self._first + 1)) // self._steps != done // self._steps:
                self._judge_all(self._epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate into the logs, if it is due after this epoch; do nothing if evaluation goes by steps.

        If the job is ended meanwhile, training stops; other errors of evaluating are passed on, such as SettingsError
        for metrics that cannot be summed.
        """
        if self._epochs is not None and (epoch + 1) % self._epochs == 0:
            self._judge_all(epoch + 1, logs)

    def _judge_all(self, epochs: int, logs: dict[str, Any] | None) -> None:
        """Evaluate on all feeds and put the values into the logs; if the job is ended meanwhile, stop training.

        Then nothing is put into the logs, and `JOB_ENDED` into `params`. Other errors of evaluating are passed on.
        """
        try:
            for feed, data in self._data:
                self._judge(feed._session, data, epochs)
        except EndedError:
            # Callbacks that come later must not take the epoch for evaluated, nor a missing value for an error.
            self.model.stop_training = self.params[JOB_ENDED] = True
            return
        logs = {} if logs is None else logs
        for stream, values in self.results.items():
            logs |= {f"val_{stream}_{name}": value for name, value in values.items() if name != "rows"}

    def _judge(self, session: FeedSession, data: tf.data.Dataset, epochs: int) -> None:
        assert self._evaluator is not None
        step = self._step()
        sums = sums_of(session, self._judged(session, epochs, step))
        values = self._evaluator.evaluate(data, sums=sums)
        means = {name: value for name, value in values.items() if name != "rows"}
        rows = int(values["rows"]) if session.ranks.rank == 0 else 0  # all have the same, so one reports them
        session.results.share(means, rows=rows, epoch=epochs, step=step, evaluation=sums.name)
        self.results[session.spec.stream] = values
        if session.ranks.rank == 0:
            print(judged_line(session.spec.stream, step, epochs, values, given_up=sums.given_up), flush=True)

    def _judged(self, session: FeedSession, epochs: int, step: int) -> Judged:
        """Return the description of the model as it is now.

        Its variables are hashed in queue mode only, where others could share its evaluation.
        """
        is_shared = session.cursor.names_evaluations
        values = [plain_value(variable) for variable in self.model.variables] if is_shared else []
        return Judged(label=self.model.name, version=digest_of_arrays(values), epoch=epochs, step=step)

    def _step(self) -> int:
        """Return the step since the model began from nothing, as our loops count it; in `fit`, the updates."""
        done: int | None = self.params.get(STEPS_DONE)
        return int(plain_value(self.model.optimizer.iterations)) if done is None else done


def _check(feeds: Sequence[Feed], epochs: int | None, steps: int | None) -> None:
    for feed in feeds:
        if not feed._session.spec.evaluation:
            raise _nonsense("feeds of streams with evaluation = true", f"one of {feed._session.spec.stream}")
    every = [number for number in (epochs, steps) if number is not None]
    if not feeds or len(every) != 1 or every[0] < 1:
        raise _nonsense("feeds, and either epochs= or steps= of at least 1", f"{len(feeds)} feeds, {epochs=}, {steps=}")


def _nonsense(expected: str, got: str) -> SettingsError:
    return SettingsError(
        expected=expected, got=got, where="Validation",
        remedy='Write Validation(connect(endpoint, stream="dev"), epochs=2, inputs=…), for example.',
    )  # fmt: skip
