"""The training loop: from the newest checkpoint to the target, one step a batch, whatever the strategy.

Rules:
- A batch counts as trained on when its step was applied; then, and only then, the cursor moves. A checkpoint is never
  written in between, so model and cursor always agree.
- Ctrl-C and SIGTERM wait for the step in hand, and what was trained on is saved.
- Steps are taken and reported by `base_loop`; gradients that are not finite never reach a variable.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shared.errors import EndedError, RefusedError
from trainer_client.tf import ctrl_c
from trainer_client.training.loop.base_loop import BaseLoop, TrainingData
from trainer_client.training.runs.run_loop import JOB_ENDED, LOOP, STEPS_DONE
from trainer_client.training.runs.until import LoopSettings, NotedMeans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.training.loop.placement import Placement

__all__ = ["LoopSettings", "TrainingData", "TrainingLoop"]


class TrainingLoop(BaseLoop):
    """A loop that trains a compiled model: `TrainingLoop(model, data, placement, settings).run()`.

    Raise SettingsError for a feed whose ranks or mode do not fit the placement, for a model with a `train_step` of its
    own, for several `EarlyStop`s, or for an optimizer that the strategy cannot train.
    """

    def __init__(
        self,
        model: Any,
        data: TrainingData,
        placement: Placement,
        settings: LoopSettings,
        callbacks: Sequence[Any] = (),
    ) -> None:
        placement.refuse_other_world(data.feed)
        super().__init__(model, data, placement, settings, callbacks, writes=placement.writes)
        #: Whether a step is in hand, and whether the epoch is over but not evaluated yet.
        self._is_in_step = self._is_ending_epoch = False
        #: For callbacks, whose `params` these are.
        self._params[LOOP] = self

    def run(self) -> str:
        """Train until the target is reached, or training ends early; return why it ended.

        Raise KeyboardInterrupt, after saving what can be, if the process is interrupted. Raise DataError if all
        checkpoints are damaged or the newest does not fit the model, if replicas differ, or if gradients stay not
        finite; SettingsError for a model, loss or checkpoint that does not fit; RefusedError if another run took the
        queue; LostError if the loaders or another process are lost; and MachineError or OSError if nothing can be
        written. Errors of callbacks, of `_warm_up` and of the feed are passed on, an EndedError only before training
        begins.
        """
        with ctrl_c.deferred(reads_on=self._placement.agrees_to_stop) as interruption:
            self._begin_or_tell()
            try:
                while not self.reason:
                    self._train_epoch(interruption)
                if self._progress.steps > self._saved_steps:  # training ended within an epoch
                    self._save_if_whole()
            except EndedError:
                self._progress.stop(JOB_ENDED)
                with suppress(EndedError):  # in queue mode the cursor is asked of the coordinator, which may be gone
                    self._save_if_whole()
            except KeyboardInterrupt as error:
                self._save_if_whole()
                raise self._interrupted(error) from None
            finally:
                self._teller.close()
        self._finish()
        return self.reason

    def check_replicas(self) -> None:
        """Raise DataError if variables, the optimizer's too, are not the same on all replicas.

        All processes have to call it at the same step. Raise LostError if a process is lost. Where variables have one
        copy, do nothing.
        """
        self._placement.refuse_unequal(self._model)

    def broadcast_variables(self) -> list[str]:
        """Copy variables, the optimizer's too, from the first replica to all others, of all processes.

        Return the paths of all that differed in this process. A run that is new begins with it. All processes
        have to call it at the same step; callbacks find this loop in their `params`, under `"loop"`. Raise LostError if
        a process is lost. Where variables have one copy, do nothing, and return none.
        """
        return self._placement.broadcast(self._model)

    # --- steps ---

    def _train_epoch(self, interruption: ctrl_c.Interruption) -> None:
        """Train to the epoch's end or until a stop; raise KeyboardInterrupt if that was asked for.

        An epoch that is over is evaluated and saved first. Errors of callbacks, `_take_steps` and `_end_epoch` pass.
        """
        epoch = self._session.cursor.at.epoch
        self._callbacks.on_epoch_begin(epoch)
        self._take_steps(interruption)
        self._is_ending_epoch = self._session.cursor.at.epoch > epoch
        # Before the interruption is heeded: an epoch that is over is evaluated and saved as such, or a run that is
        # resumed would lack its values.
        if self._is_ending_epoch:
            self._end_epoch(epoch)
        if self._is_stopping(interruption):
            raise KeyboardInterrupt

    def _take_steps(self, interruption: ctrl_c.Interruption) -> None:
        """Take steps to the epoch's end and no further, or until a stop.

        If only asking for more shows that the epoch is over, that is done, even after a stop. Raise RefusedError if
        another run has taken the queue, and DataError if gradients are not finite after the last retry; errors of the
        feed, of callbacks and of saving are passed on.
        """
        iterator = iter(self._data.elements)
        batch = 0
        while not (self.reason or self._is_ending_epoch or self._is_stopping(interruption)):
            element = self._wait_next(iterator)
            if element is None:
                return
            self._refuse_another_run()
            if self._callbacks.callbacks:  # Keras converts logs even if there are none
                self._callbacks.on_train_batch_begin(batch)
            self._tell_callbacks(batch, self._train_on(element))
            batch += 1
            self._look_up()
        if self._session.cursor.ends_unseen():
            next(iterator, None)

    def _refuse_another_run(self) -> None:
        """Raise RefusedError if another run has restored or begun on this queue.

        It has taken its batches back: the queue's done-set no longer matches our model, so nothing more is trained or
        saved.
        """
        # Asked before each step and before each save, as the queue may have been taken back at any time since.
        if self._session.cursor.is_taken_back:
            stream = self._session.spec.stream
            raise RefusedError(
                code="superseded", expected=f"to be the only run that trains a model on {stream}",
                got="another trainer restored a checkpoint there, or began", where=f"stream {stream}, in queue mode",
                remedy="Give each run a job or a stream of its own; start this one again once the other has ended: its "
                "newest checkpoint is whole. Several processes train one model with --strategy parameter-server.",
            )  # fmt: skip

    def _tell_callbacks(self, batch: int, loss: float) -> None:
        """Report a finished step to the callbacks, which may add to the logs for those after them.

        What they add is written to the summaries. Errors of callbacks, and of `tell_judged`, are passed on.
        """
        logs, steps = {"loss": loss}, self._progress.totals.steps
        self._params[STEPS_DONE] = steps
        for callback in self._callbacks.callbacks:  # one by one, as the list would give them copies of the logs
            callback.on_train_batch_end(batch, logs)
        if len(logs) > 1:
            self._teller.tell_judged(steps, logs)

    def _is_stopping(self, interruption: ctrl_c.Interruption) -> bool:
        # Several processes agree on it in their steps: one that stopped alone would leave the others waiting in a sum.
        return self._placement.heeds(asked=interruption.is_asked)

    def _train_on(self, element: Any) -> float:
        """Take one step, count it once it is applied, and return its loss.

        Raise DataError if gradients are not finite after the last retry, and pass on errors of the strategy, of the
        feed, and of ranks that agree on the time. A batch without valid rows counts too.
        """
        cursor = self._session.cursor
        with self._timed("step"):
            # Model and cursor disagree until the cursor has moved: if anything ends the step in between, nothing is
            # saved, as a checkpoint would have a batch twice, or never.
            self._is_in_step = True
            epoch = cursor.at.epoch
            loss, rows, _ = self._finite_step(element)
            cursor.count(1)
            self._is_ending_epoch = cursor.at.epoch > epoch
            self._is_in_step = False
        self._note_step(loss, rows)
        return loss

    # --- the end of an epoch ---

    def _end_epoch(self, epoch: int) -> None:
        """Share the epoch's results, let callbacks evaluate it, and save; not saved if the job is ended meanwhile.

        Raise SettingsError if the logs lack the value that early stopping goes by, or for a number that is out of the
        protocol's bounds, and RefusedError if another run has taken the queue; errors of agreeing on the time, of
        callbacks, of summaries and of saving are passed on.
        """
        if self._progress.totals.epochs <= epoch:  # in lockstep its last step has counted it
            self._progress.count(epochs=epoch + 1)
        totals, noted, self._noted = self._progress.totals, self._noted, NotedMeans()
        logs: dict[str, Any] = noted.means()
        if noted.rows:
            rows = noted.rows if self._placement.writes else 0  # the same on all replicas, so one reports them
            self._session.results.share(logs, rows=rows, epoch=epoch + 1, step=totals.steps)
        self._end_epoch_of_callbacks(epoch, logs)
        if JOB_ENDED in self._params:  # the epoch is not evaluated
            self._heed_callbacks()
            return
        self._teller.tell_epoch(totals, logs)
        if self._early_stop is not None:
            self._early_stop.note(epoch, logs)
        self._heed_callbacks()
        self._is_ending_epoch = False
        self._save()

    # --- beginning and ending ---

    def _begin_or_tell(self) -> None:
        try:
            self._begin()
        except KeyboardInterrupt as error:
            raise self._interrupted(error) from None

    def _begin(self) -> None:
        """Mark the folder as unfinished, warm up, restore the newest checkpoint and begin the run from there.

        Raise DataError if all checkpoints are damaged or the newest does not fit the model, or if replicas differ, and
        SettingsError for a model, loss or cursor that does not fit; errors of `_warm_up`, of the strategy, of
        attaching, of initial values, of reading and writing, and of callbacks are passed on.
        """
        # Warming up may take minutes, in which followers of the folder would take our run for the finished one before.
        self._saved.mark(finished=False)
        with self._timed("warm_up"):
            self._warm_up()
        compare = self._placement.refuse_other_beginning
        there, self._noted = self._saved.restore(self._model, self._session, self._early_stop, compare)
        self._make_replicas_equal(is_new=there.steps == 0)
        self._saved_steps = there.steps
        self._model.stop_training = False
        self._start(there)
        self._callbacks.on_train_begin()

    def _make_replicas_equal(self, *, is_new: bool) -> None:
        """Give all replicas of a run that is new the first one's values; raise DataError if those of another differ.

        Raise LostError if a process is lost.
        """
        # A process that read another checkpoint goes by another run's early stopping and counts as well, so the others'
        # values alone would leave it on a way of its own.
        if not is_new:
            self.check_replicas()
            return
        changed = self.broadcast_variables()
        if changed:
            self._log.warning("variables differed from the first replica's, and have its values now", variables=changed)

    def _build(self, element: Any) -> None:
        super()._build(element)
        model = self._model
        with self._placement.scope():
            self._placement.prepare_optimizer(model)
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)

    def _finish(self) -> None:
        self._callbacks.on_train_end()
        self._saved.mark(finished=True)
        self._progress.finish()
        totals = self._progress.totals
        self._session.end_run(self.reason, epoch=totals.epochs, step=totals.steps)

    # --- saving ---

    def _is_save_due(self) -> bool:
        """Return whether to save now: the last checkpoint is long ago, and an epoch is begun and not over.

        An epoch that is over is saved only once it is evaluated; nothing is saved while early stopping waits for
        values. In queue mode raise LostError if the coordinator does not answer, and the error of a feed that fails.
        """
        is_due = self._is_long_ago(self._progress.steps) and self._session.cursor.is_within_epoch()
        return is_due and not self._is_unjudged()

    def _is_unjudged(self) -> bool:
        """Return whether early stopping needs values of the model that it does not have yet.

        That is so at an epoch's end, and if the job was ended during an evaluation; never without early stopping.
        """
        # A checkpoint from before would lack them, and a run that is resumed there would decide otherwise.
        return self._early_stop is not None and (self._is_ending_epoch or JOB_ENDED in self._params)

    def _save_if_whole(self) -> None:
        """Save, unless a step is in hand or early stopping waits for an evaluation.

        Raise RefusedError if another run has taken the queue; errors of asking for the cursor and of saving pass.
        """
        if not self._is_in_step and not self._is_unjudged():
            self._noted = NotedMeans() if self._is_ending_epoch else self._noted
            self._save()

    def _save(self) -> None:
        totals = self._progress.totals
        with self._timed("checkpoint"):
            state = self._session.cursor.state()
            self._refuse_another_run()  # whose state this would be
            written = self._saved.commit(self._model, state, totals, self._noted, self._early_stop)
        self._note_saved(written, totals.steps)
