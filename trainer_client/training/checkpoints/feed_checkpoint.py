"""`FeedCheckpoint`: a model and the cursor of what it was trained on, committed together and restored together.

Rules it keeps:
- What a train step took is counted, never what was read ahead. Keras does not tell its callbacks the difference, so the
  model's train function is wrapped and given a Python iterator that counts and times.
- In an elastic world rank 0 writes, and once more when the world ends, between two steps. All ranks of the first world
  begin with rank 0's weights.
- A checkpoint holds weights, the seeds of random layers and the optimizer's state, as plain arrays; nothing is pickled.

It must not know how a feed gets its batches.
"""

from __future__ import annotations

import itertools
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from shared.errors import EndedError, SettingsError, WorldChangedError
from trainer_client.tf.dataset import ranks_of
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.checkpoints.fit_stand_ins import (
    CountedBatches,
    EpochTimes,
    FitEvaluation,
    StopWatch,
    check_keras,
)
from trainer_client.training.checkpoints.saved_model import assign_arrays, model_record, plain_arrays, plain_value
from trainer_client.training.runs.run_loop import JOB_ENDED, progress_of
from trainer_client.training.runs.until import RunTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from trainer_client.feed import Feed
    from trainer_client.training.checkpoints.initial_values import InitialValues
    from trainer_client.training.runs.early_stop import EarlyStop
    from trainer_client.training.runs.until import Until

__all__ = ["EpochTimes", "FeedCheckpoint"]

#: More epochs than anybody trains: something else ends the run.
_UNLIMITED = 2**31 - 1


class FeedCheckpoint(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """A Keras callback that commits the model together with the feed's cursor, and restores both when `fit` begins.

    It saves after each epoch. With it, `epochs` of `fit` is absolute: a stopped run continues, and a finished one
    trains no further. Without a checkpoint in the folder the feed starts at its beginning. The epoch's logs have
    `data_wait_s`.

    Args:
        feed: The feed that `fit` reads.
        folder: Where the checkpoints are.
        every: Save whenever this many batches were trained on, too. None: only after epochs.
        keep: How many checkpoints to keep.
        early_stop: Rules that end training. What they go by is kept in the checkpoint, so a resumed run stops where an
            unbroken one would.
        until: The target at which to end `fit`, which may count from the checkpoint. With it, the callback prints when
            training starts and how it ended; pass its `epochs` to `fit`.
        initial: `InitialValues` to begin with if there is no checkpoint in the folder.

    Attributes:
        times: How long the last epoch waited for data and computed; None before the first has ended.

    Raises:
        SettingsError: `every` or `keep` is below 1, or Keras is too old.

    Example:
        >>> checkpoint = trainer_client.FeedCheckpoint(feed, folder, until=trainer_client.Until(epochs="+1"))
        >>> data = feed.dataset(inputs="audio", targets="audio_length", weights="weight")
        >>> history = model.fit(data, epochs=checkpoint.epochs, callbacks=[checkpoint], verbose=0)
        STARTING: training train from epoch 0, step 0, until 1 epochs
        FINISHED: 1 epochs, ...
        >>> feed.epoch
        1
    """

    def __init__(  # noqa: PLR0913 - users write those that they need, by name
        self,
        feed: Feed,
        folder: str | Path,
        *,
        every: int | None = None,
        keep: int = 3,
        early_stop: EarlyStop | None = None,
        until: Until | None = None,
        initial: InitialValues | None = None,
    ) -> None:
        super().__init__()
        check_keras(keras.__version__)
        if keep < 1 or (every is not None and every < 1):
            raise SettingsError(
                expected="every and keep of at least 1", got=f"every={every}, keep={keep}", where="FeedCheckpoint",
                remedy="Pass 1 or more.",
            )  # fmt: skip
        self.times: EpochTimes | None = None
        self._session = feed._session
        self._log = self._session.log
        self._folder = CheckpointFolder(folder, keep, chained=self._session.is_elastic)
        self._every = every
        self._early_stop = early_stop
        if early_stop is not None:
            early_stop.be_kept_by_checkpoint()
        self._until, self._initial = until, initial
        self._progress = None if until is None else progress_of(until, self._session)
        #: Rows trained on when steps were last counted, and when results were last shared.
        self._rows = self._rows_before = 0
        #: Assigns values once the model has its variables; None: nothing is to be assigned.
        self._pending: Callable[[], None] | None = None
        #: The epoch of `fit`, and that of the feed's cursor as it began.
        self._epoch = self._feed_epoch = 0
        #: Whether a step was taken; and how many since the last save.
        self._trained = False
        self._unsaved = 0
        self._job_ended = False
        self._watch = StopWatch()
        self._train_function: Callable[..., Any] | None = None
        self._evaluation: FitEvaluation | None = None

    @property
    def epochs(self) -> int:
        """Number of `epochs` to pass to `fit` so that it trains until the target, given the newest checkpoint.

        Returns:
            The number of epochs in all; a very large one if the target is no number of epochs.

        Raises:
            SettingsError: There is no target.
            DataError: There are checkpoints, but all are damaged.

        Example:
            >>> trainer_client.FeedCheckpoint(feed, folder, until=trainer_client.Until(epochs=75)).epochs
            75
        """
        if self._until is None:
            raise SettingsError(
                expected="a target", got="none", where="FeedCheckpoint.epochs",
                remedy='Pass until=Until(epochs="+10"), for example, or give fit a number.',
            )  # fmt: skip
        _, record = self._folder.read_last() or ({}, {})
        limit = self._until.from_there(RunTotals.of_checkpoint(record)).epochs
        return _UNLIMITED if limit is None else limit

    @property
    def reason(self) -> str:
        """Why training ended, if it has a target; empty while it goes on, and without a target.

        Returns:
            A phrase for people.

        Example:
            >>> trainer_client.FeedCheckpoint(feed, folder).reason
            ''
        """
        return self._progress.reason if self._progress is not None else ""

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore the newest checkpoint, and install the counting iterator; warn if replicas are not the feed's ranks.

        Before, the process that writes marks the folder as unfinished. Raise SettingsError for a folder that is closed
        to us, or a checkpoint of another job, stream or plan, and DataError if all are damaged or the newest is of
        another model; errors of attaching, of initial values, of reading and of writing are passed on.
        """
        self._warn_of_replicas()
        if self._writes():
            self._folder.refuse_closed()
            self._folder.mark(finished=False)
        self._restore()
        self._wrap()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the epoch and the feed's, start the clock, and clear where `fit` begins, which it has read by now."""
        self.model._initial_epoch = None  # noqa: SLF001 - see _restore
        self._epoch, self._feed_epoch = epoch, self._session.cursor.at.epoch
        self._watch = StopWatch()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the value for early stopping if the model was just evaluated, which may end it; then save if it is due.

        Without early stopping, `_train` has saved already, and nothing is done, nor if the job was ended. With it a
        save waits until here, as it holds the values that it goes by. Errors of `_save_inside` are passed on.
        """
        if self._early_stop is not None and JOB_ENDED not in self.params:
            self.model.stop_training |= self._early_stop.note_step(logs or {})
            self._save_if_due()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Share the epoch's results, decide on early stopping, and commit; the wait goes into the logs.

        An epoch that was left in its middle is not counted. If the job is ended as results are shared, or, with early
        stopping, before the epoch was evaluated, nothing is saved. Raise SettingsError if the logs lack the value that
        early stopping goes by; errors of agreeing on the time, of sharing and of saving are passed on.
        """
        self.times = self._watch.times()
        if logs is not None:
            logs["data_wait_s"] = self.times.wait_s
        # Keras ends the epoch even if training was stopped within it. The epoch is not over then, and not counted.
        is_whole = not self.model.stop_training or self._session.cursor.at.epoch != self._feed_epoch
        epochs = epoch + is_whole
        self._count(0, epochs=epochs)
        try:
            results = self._share(epochs, logs or {}, is_whole=is_whole)
        except EndedError:  # no results of other ranks come, and without them the epoch is not evaluated
            self.model.stop_training = self._job_ended = True
            return
        if self._early_stop is not None and JOB_ENDED in self.params:
            return  # the epoch is not evaluated
        if self._early_stop is not None and is_whole:
            self.model.stop_training |= self._early_stop.note(epoch, results)
        self._save(epochs, self._session.cursor.state())

    def _share(self, epochs: int, logs: Mapping[str, Any], *, is_whole: bool) -> Mapping[str, Any]:
        """Share the epoch's results; return the logs, with the means over all ranks where these are known.

        If early stopping has to decide on a whole epoch, ranks in step wait for all, even without rows; errors of
        `share` are passed on. Without values, or without rows if nobody has to wait, return the logs as they are.
        """
        session = self._session
        rows, self._rows_before = session.trained_rows - self._rows_before, session.trained_rows
        means = {name: value for name, value in logs.items() if name != "data_wait_s"}
        # Ranks in step have to decide on stopping alike, so each waits for what the epoch came to over all of them,
        # even if it has no rows itself. Without early stopping nobody has to wait.
        waits = self._early_stop is not None and is_whole and session.ranks.world > session.ranks.replicas
        if not means or not (rows or waits):
            return logs
        shared = session.results.share(means, rows=rows, epoch=epochs, step=self._step(), wait=waits)
        return logs if shared is None else {**logs, **shared}

    def _step(self) -> int:
        return int(plain_value(self.model.optimizer.iterations)) if self.model.optimizer is not None else 0

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Remove the counting iterator, mark the checkpoints as finished, and print how training ended.

        Raise SettingsError if there are values to restore or begin with, but the model was never built. Without a
        target no end is printed or reported; an elastic run waits there for its other ranks. Errors of reporting and
        of writing pass through.
        """
        self.model._initial_epoch = None  # noqa: SLF001 - see _restore; there may have been no epoch
        self._unwrap()
        if self._writes():
            self._folder.mark(finished=True)
        # No batch came that would have built the model, so the checkpoint was never restored.
        if self._pending is not None:
            raise SettingsError(
                expected="a built model to restore into", got="one that was never called",
                where="FeedCheckpoint", remedy="Call or build the model before fit: nothing was left to train.",
            )  # fmt: skip
        if self._progress is not None:
            self._progress.stop(self._why_it_ended())
            self._progress.finish()
            self._session.end_run(self.reason, epoch=self._progress.totals.epochs, step=self._step())

    def _why_it_ended(self) -> str:
        """Return why training ended, other than at the target: the job, early stopping, a callback, or `fit`."""
        if self._job_ended or JOB_ENDED in self.params:
            return JOB_ENDED
        if self._early_stop is not None and self._early_stop.reason:
            return f"stopped early, {self._early_stop.reason}"
        return "another callback stopped it" if self.model.stop_training else "fit was given no more epochs"

    def _warn_of_replicas(self) -> None:
        replicas, ranks = ranks_of(self.model.distribute_strategy).replicas, self._session.ranks.replicas
        if replicas != ranks:
            warnings.warn(
                f"The model has {replicas} replicas here, and the feed occupies {ranks} ranks: batches "
                "are split or repeated. Use connect(..., strategy=strategy) and feed.distributed(strategy).",
                stacklevel=2,
            )

    # --- counting ---

    def _wrap(self) -> None:
        """Replace the train function by ours, which calls it, and `evaluate` by a stand-in.

        If a `fit` that ended in an error has left our wrapper there, the function inside it is taken.
        """
        function = self.model.train_function
        left = getattr(function, "__self__", None)
        self._train_function = left._train_function if isinstance(left, FeedCheckpoint) else function  # noqa: SLF001
        self.model.train_function = self._train
        self._evaluation = FitEvaluation(self.model, self._end_unjudged)
        self._evaluation.install()

    def _unwrap(self) -> None:
        self.model.train_function = self._train_function
        if self._evaluation is not None:
            self._evaluation.remove()

    def _end_unjudged(self) -> None:
        self.model.stop_training = self.params[JOB_ENDED] = True

    def _train(self, iterator: Iterator[Any]) -> Any:
        """Run the train function once, over batches that are counted as they are taken; return its logs.

        Without early stopping, save if it is due. Pass on StopIteration at the data's end; if that is the job's, stop
        training and save first. Errors of saving are passed on, any other after the model has its own functions back.
        """
        assert self._train_function is not None
        taken = CountedBatches(iterator, self._session, self._watch)
        try:
            first = self._take_first(taken)
            self._restore_pending(first)
            # The first batch is taken before the step, because a model without variables is built on it and restored.
            logs = self._train_function(itertools.chain((first,), taken))
            taken.finish()
            self._trained = True
            self._unsaved += taken.count
            self._count(taken.count, epochs=self._epoch)
        except StopIteration:
            if taken.ended:
                self._stop_with_the_job()
            raise
        except BaseException as error:  # whatever ends `fit`: it calls no `on_train_end` after an error
            self._unwrap()  # or the wrapper would stay on the model
            if isinstance(error, KeyboardInterrupt):
                self._log.warning(
                    "training is interrupted", step=self._step(), checkpoint=self._session.saved or "none"
                )
            raise
        if self._early_stop is None:
            self._save_if_due()
        return logs

    def _save_if_due(self) -> None:
        if self._every is not None and self._unsaved >= self._every:
            self._save_inside()

    def _stop_with_the_job(self) -> None:
        """Stop training, as the job was ended, and save if `_save_inside` does now; its errors are passed on."""
        self.model.stop_training = self._job_ended = True
        self._save_inside()

    def _take_first(self, taken: CountedBatches) -> Any:
        # A change of the world reaches the loop with the next batch, between two steps: what the chief commits here
        # costs a trainer that joins no training.
        try:
            self._session.check_world()
            return next(taken)
        except WorldChangedError:
            self._commit_the_last()
            raise

    def _count(self, steps: int, *, epochs: int) -> None:
        """Count steps that are done, and epochs in all, and stop at the target; ranks in lockstep may wait here.

        If the job is ended meanwhile, stop training and save as `_save_inside` does, whose errors are passed on. Raise
        WorldChangedError, after saving what is unsaved, if the world ends, and other errors of the feed as they are.
        """
        rows, self._rows = self._session.trained_rows - self._rows, self._session.trained_rows
        try:
            if self._progress is not None:
                self.model.stop_training |= self._progress.count(epochs=epochs, steps=steps, samples=rows)
        except EndedError:
            self._stop_with_the_job()
        except WorldChangedError:
            self._commit_the_last()
            raise

    def _commit_the_last(self) -> None:
        """Save as `_save_inside` does, if anything is unsaved, as the world ends; its errors are passed on."""
        if self._unsaved:
            self._save_inside()

    # --- saving ---

    def _save_inside(self) -> None:
        """Save inside an epoch, with early stopping not after its last step; errors of asking and saving go through."""
        # The value that early stopping goes by is only known at the epoch's end, so that save waits until then.
        feed = self._session.cursor.state()
        at_end = self._session.cursor.epoch_of(feed) > self._feed_epoch
        if not at_end or self._early_stop is None:
            self._save(self._epoch + at_end, feed)

    def _save(self, next_epoch: int, feed: Mapping[str, Any]) -> None:
        """Save the model with this epoch and cursor, unless it has no variables, or is not restored, yet.

        Every process reads its variables, as that may need all; one writes. Raise MachineError or OSError if the system
        refuses to write, and, in an elastic world, WorldChangedError if another trainer has written a checkpoint.
        """
        if self._pending is not None or not (self._trained or self.model.built):  # there may be no variables yet
            return
        began_s = time.perf_counter()
        arrays = plain_arrays(self._variables())
        record = {"epoch": next_epoch, "feed": feed, "step": self._step(), **model_record(self.model)}
        if self._early_stop is not None:
            record["early_stop"] = self._early_stop.state()
        if self._progress is not None:
            record["run"] = self._progress.totals.state()
        if self._writes():
            self._session.note_saved(self._folder.write(arrays, record), self._step())
        self._session.accounts.count_phase("checkpoint", time.perf_counter() - began_s)
        self._unsaved = 0

    def _writes(self) -> bool:
        """Return whether this process writes: in an elastic world rank 0 only, under a strategy its chief only."""
        if self._session.is_elastic and self._session.ranks.rank:
            return False
        # Under a strategy of several processes, TensorFlow knows which of them is the chief.
        return bool(self.model.distribute_strategy.extended.should_checkpoint)

    def _variables(self) -> list[Any]:
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            with self.model.distribute_strategy.scope():
                optimizer.build(self.model.trainable_variables)
        return [*self.model.variables, *(optimizer.variables if optimizer is not None else ())]

    # --- restoring ---

    def _restore(self) -> None:
        """Restore cursor and epoch now, and the variables as well if the model has them already.

        Without a checkpoint the feed goes to its beginning. Raise DataError if all are damaged or of another model, and
        SettingsError for another job, stream or plan; errors of attaching, initial values, reading and writing pass.
        """
        self._pending = None
        self._trained = False
        self._unsaved = 0
        self._job_ended = False
        checkpoint = self._folder.read_last()
        if checkpoint is None:
            self._session.cursor.rewind()
            self._restore_early_stop({})
            if self._initial is not None:
                self._assign_once_built(partial(self._initial, self.model, prints=self._writes()))
            self._begin(RunTotals())
            if self._session.is_elastic:
                self._share_first_weights()
            return
        arrays, record = checkpoint
        self._session.cursor.restore(record["feed"])
        self._session.note_saved(self._folder.newest_used, record.get("step", 0))
        self.model._initial_epoch = record["epoch"]  # noqa: SLF001 - Keras's own BackupAndRestore does it so
        is_over = self._begin(RunTotals.of_checkpoint(record))
        if self._restore_early_stop(record.get("early_stop", {})) or is_over:
            self.model._initial_epoch = max(record["epoch"], self.params["epochs"])  # noqa: SLF001 - no epoch is left
        self._assign_once_built(partial(self._assign_all, arrays))

    def _share_first_weights(self) -> None:
        """Have all ranks of the first elastic world begin with the chief's weights, which others wait for.

        The chief commits them, if its model is built, before it reports where it starts. Raise DataError if all
        checkpoints are damaged or of another model; errors of reading, writing and attaching are passed on.
        """
        if self._writes():
            if self.model.built:
                self._save(0, self._session.cursor.state())
            return
        # This waits until the chief has reported where it starts; what it commits first is there by then.
        self._session.cursor.restore(self._session.cursor.state())
        checkpoint = self._folder.read_last()
        if checkpoint is not None:
            self._assign_once_built(partial(self._assign_all, checkpoint[0]))

    def _begin(self, there: RunTotals) -> bool:
        """Begin with the checkpoint's totals, or raise as `begin` does; return whether a target is reached already."""
        self._rows = self._rows_before = self._session.trained_rows
        if self._progress is None:
            return False
        self._progress.begin(f"training {self._session.spec.stream}", there)
        return bool(self.reason)

    def _restore_early_stop(self, state: Mapping[str, Any]) -> bool:
        return self._early_stop is not None and self._early_stop.restore(state)

    def _restore_pending(self, batch: Any) -> None:
        """Build the model on a batch and assign what is left to assign, if any; errors of both are passed on."""
        if self._pending is not None:
            inputs, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            self.model(inputs)
            self._assign_pending()

    def _assign_once_built(self, assign: Callable[[], None]) -> None:
        """Assign values if the model is built, else with the first batch; errors of assigning are passed on."""
        self._pending = assign
        if self.model.built:
            self._assign_pending()

    def _assign_pending(self) -> None:
        assert self._pending is not None
        with self.model.distribute_strategy.scope():
            self._pending()
        self._pending = None

    def _assign_all(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        assign_arrays(self._variables(), arrays)
