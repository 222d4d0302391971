"""The training loop: from the newest checkpoint to the target, one step a batch, whatever the strategy.

Rules:
- A batch counts as trained on when its step was applied; then, and only then, the cursor moves. A checkpoint is never
  written in between, so model and cursor always agree.
- Ctrl-C and SIGTERM wait for the step in hand, and what was trained on is saved.
- Steps are taken and told as `base_loop` has it; gradients that are not finite never reach a variable.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shared.errors import EndedError, RefusedError
from trainer_client.tf import ctrl_c
from trainer_client.training.loop.base_loop import BaseLoop, LoopSettings, TrainingData
from trainer_client.training.runs.noted import NotedMeans
from trainer_client.training.runs.run import JOB_ENDED, STEPS_DONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.training.loop.placement import Placement

__all__ = ["LoopSettings", "TrainingData", "TrainingLoop"]


class TrainingLoop(BaseLoop):
    """Trains a compiled model: `TrainingLoop(model, data, placement, settings).run()`."""

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
        self._is_in_step = self._is_ending_epoch = False

    def run(self) -> str:
        """Train until the target is reached, or training ends early; why."""
        with ctrl_c.deferred(reads_on=self._placement.agrees_to_stop) as interruption:
            self._begin_or_tell()
            try:
                while not self.reason:
                    self._train_epoch(interruption)
                if self._progress.steps > self._saved_steps:  # it ended within an epoch
                    self._save_if_whole()
            except EndedError:
                self._progress.stop(JOB_ENDED)
                with suppress(EndedError):  # in queue mode a coordinator that is gone says no more what is done
                    self._save_if_whole()
            except KeyboardInterrupt as error:
                self._save_if_whole()
                raise self._interrupted(error) from None
            finally:
                self._teller.close()
        self._finish()
        return self.reason

    def check_replicas(self) -> None:
        """Raise an error if variables, the optimizer's too, are not the same on all replicas. It is checked before
        the first step as well; all processes have to call it at the same step.
        """
        self._placement.refuse_unequal(self._model)

    # --- steps ---

    def _train_epoch(self, interruption: ctrl_c.Interruption) -> None:
        epoch = self._session.cursor.at.epoch
        self._callbacks.on_epoch_begin(epoch)
        self._take_steps(interruption)
        self._is_ending_epoch = self._session.cursor.at.epoch > epoch
        if self._is_ending_epoch:
            self._end_epoch(epoch)
        if self._is_stopping(interruption):
            raise KeyboardInterrupt

    def _take_steps(self, interruption: ctrl_c.Interruption) -> None:
        """To the epoch's end and no further: an epoch that is over is judged, whatever interrupted its last step."""
        iterator = iter(self._data.elements)
        batch = 0
        while not (self.reason or self._is_ending_epoch or self._is_stopping(interruption)):
            element = self._wait_next(iterator)
            if element is None:
                return
            self._refuse_another_run()
            if self._callbacks.callbacks:  # Keras converts logs for nobody, too
                self._callbacks.on_train_batch_begin(batch)
            loss = self._train_on(element)
            self._tell_callbacks(batch, loss)
            batch += 1
            self._look_up()
        if self._session.in_queue and not self._is_within_epoch():
            next(iterator, None)  # the end of the epoch, which is seen only by asking

    def _refuse_another_run(self) -> None:
        """Another model that began on the same queue has taken its batches back: what is done there is no longer what
        this one was trained on, so nothing more is trained nor saved.
        """
        leases = self._session.leases
        if leases is not None and leases.is_taken_back:
            stream = self._session.stream
            raise RefusedError(
                code="superseded", expected=f"to be the only run that trains a model on {stream}",
                got="another trainer restored a checkpoint there, or began", where=f"stream {stream}, in queue mode",
                remedy="Give each run a job or a stream of its own; start this one again once the other has ended: its "
                "newest checkpoint is whole. Several processes train one model with --strategy parameter-server.",
            )  # fmt: skip

    def _tell_callbacks(self, batch: int, loss: float) -> None:
        """That a step is done; what one of them judges it by is in the logs for those that come later."""
        logs, steps = {"loss": loss}, self._progress.totals.steps
        self._params[STEPS_DONE] = steps
        for callback in self._callbacks.callbacks:  # the list itself would give them a copy of the logs
            callback.on_train_batch_end(batch, logs)
        if len(logs) > 1:
            self._teller.tell_judged(steps, logs)

    def _is_stopping(self, interruption: ctrl_c.Interruption) -> bool:
        return self._placement.heeds(asked=interruption.is_asked)

    def _train_on(self, element: Any) -> float:
        """One step, counted once it is applied; its loss."""
        cursor = self._session.cursor
        with self._timed("step"):
            self._is_in_step = True
            epoch = cursor.at.epoch
            loss, rows, _ = self._finite_step(element)
            cursor.count(1)
            self._is_ending_epoch = cursor.at.epoch > epoch
            self._is_in_step = False
        self._note_step(loss, rows)
        return loss

    def _is_within_epoch(self) -> bool:
        cursor = self._session.cursor
        if self._session.in_queue:
            return cursor.epoch_of(cursor.state()) == cursor.at.epoch
        return bool(cursor.at.number)

    # --- the end of an epoch ---

    def _end_epoch(self, epoch: int) -> None:
        if self._session.in_queue:  # in lockstep its last step has told
            self._progress.count(epochs=epoch + 1)
        totals, noted = self._progress.totals, self._noted
        self._noted = NotedMeans()
        logs: dict[str, Any] = noted.means()
        if noted.rows:
            rows = noted.rows if self._placement.writes else 0  # the same on all replicas, so that one tells them
            self._session.share_results(logs, rows=rows, epoch=epoch + 1, step=totals.steps)
        for callback in self._callbacks.callbacks:  # the list itself would give them a copy of the logs
            callback.on_epoch_end(epoch, logs)
        if JOB_ENDED in self._params:  # the epoch is not judged
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
        with self._timed("warm_up"):
            self._warm_up()
        self._saved.begin()
        there, self._noted = self._saved.restore(self._model, self._session, self._early_stop)
        self.check_replicas()
        self._rows, self._saved_steps = self._session.trained_rows, there.steps
        self._model.stop_training = False
        self._progress.begin(f"training {self._session.stream}", there)
        self._heed_early_stop()
        self._teller.begin(self._progress, self._step.traces)
        self._params[STEPS_DONE] = there.steps
        self._callbacks.on_train_begin()

    def _build(self, element: Any) -> None:
        super()._build(element)
        model = self._model
        with self._placement.scope():
            self._placement.prepare_optimizer(model)
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)

    def _finish(self) -> None:
        self._callbacks.on_train_end()
        self._saved.finish()
        self._progress.finish()
        totals = self._progress.totals
        self._session.end_run(self.reason, epoch=totals.epochs, step=totals.steps)

    # --- saving ---

    def _is_save_due(self) -> bool:
        """An epoch that is over is saved once it is judged."""
        is_due = self._is_long_ago(self._progress.steps) and self._is_within_epoch()
        return is_due and not self._is_unjudged()

    def _is_unjudged(self) -> bool:
        """Whether early stopping goes by what the model is not judged by yet, at an epoch's end or where the job was
        ended while it was judged.
        """
        return self._early_stop is not None and (self._is_ending_epoch or JOB_ENDED in self._params)

    def _save_if_whole(self) -> None:
        """Not within a step."""
        if not self._is_in_step and not self._is_unjudged():
            self._noted = NotedMeans() if self._is_ending_epoch else self._noted
            self._save()

    def _save(self) -> None:
        totals = self._progress.totals
        with self._timed("checkpoint"):
            state = self._session.cursor.state()
            self._refuse_another_run()  # which the state would be of
            written = self._saved.commit(self._model, state, totals, self._noted, self._early_stop)
        self._note_saved(written, totals.steps)
