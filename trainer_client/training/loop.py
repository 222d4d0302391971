"""The training loop: from the newest checkpoint to the target, one step a batch, whatever the strategy.

Rules:
- A batch counts as trained on when its step was applied; then, and only then, the cursor moves. A checkpoint is never
  written in between, so model and cursor always agree.
- Ctrl-C and SIGTERM wait for the step in hand, and what was trained on is saved.
- All planned shapes go through the step before training begins, the largest first. It is traced once for all of them,
  or for each if the model has to know sizes; one traced later is counted and told.
- Gradients that are not finite are tried again, and then end training; they never reach a variable.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from shared.errors import DataError, EndedError, SettingsError
from shared.logs import Log
from trainer_client.early_stop import EarlyStop
from trainer_client.runs.noted import NotedMeans
from trainer_client.runs.run import JOB_ENDED, progress_of
from trainer_client.tf import ctrl_c
from trainer_client.tf.models.variables import assign_values, plain_value
from trainer_client.training.saved_run import SavedRun
from trainer_client.training.step import NOT_FINITE, TrainStep, refuse_own_train_step
from trainer_client.training.teller import Teller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from trainer_client.feed import Feed
    from trainer_client.runs.until import Until
    from trainer_client.strategies.placement import Placement

__all__ = ["LoopSettings", "TrainingData", "TrainingLoop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How far to train, what to save when, and what to tell."""

    until: Until
    checkpoints: Path
    keep: int = 3
    #: Between epochs' ends; None: not by steps, or not by time.
    save_every_steps: int | None = None
    save_every_s: float | None = 600.0
    tell_every: int = 100
    #: How often a batch is tried again whose gradients are not finite.
    retries: int = 10
    xla: bool = False
    #: None: write none.
    summaries: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """A feed's elements: each iteration goes from the cursor to the end of its epoch."""

    feed: Feed
    elements: Iterable[Any]
    #: Calls a function with an element of each planned shape, without samples, the largest first; None: not planned.
    for_each_shape: Callable[[Callable[[Any], Any]], None] | None


class TrainingLoop:
    """Trains a compiled model: `TrainingLoop(model, data, placement, settings).run()`."""

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - Keras has no types
        data: TrainingData,
        placement: Placement,
        settings: LoopSettings,
        callbacks: Sequence[Any] = (),
    ) -> None:
        refuse_own_train_step(model)
        placement.refuse_other_world(data.feed)
        self._session = session = data.feed._session  # noqa: SLF001 - both are halves of one face
        self._model, self._data, self._placement, self._settings = model, data, placement, settings
        self._step = TrainStep(model, model.loss, model.optimizer)
        any_shape = data.for_each_shape is None
        self._take_step = placement.compiled(self._step, xla=settings.xla, any_shape=any_shape)
        self._callbacks = keras.callbacks.CallbackList(list(callbacks), model=model)
        #: As `fit` gives them to callbacks; one that finds that the job was ended says so there.
        self._params: dict[str, Any] = {"verbose": 0, "epochs": None, "steps": None}
        self._callbacks.set_params(self._params)
        self._early_stop = _only_early_stop(callbacks)
        self._saved = SavedRun(settings.checkpoints, settings.keep, writes=placement.writes)
        self._progress = progress_of(settings.until, session)
        self._teller = Teller(session, settings.summaries, is_quiet=not placement.writes)
        self._noted = NotedMeans()
        self._log = Log("trainer", stream=session.stream)
        self._is_in_step = self._is_ending_epoch = False
        self._rows = self._saved_steps = 0
        self._saved_at_s = time.monotonic()

    @property
    def reason(self) -> str:
        """Why training is over; nothing while it goes on."""
        return self._progress.reason

    def run(self) -> str:
        """Train until the target is reached, or training ends early; why."""
        with ctrl_c.deferred(reads_on=self._placement.agrees_to_stop) as interruption:
            self._begin()
            try:
                while not self.reason:
                    self._train_epoch(interruption)
                if self._progress.totals.steps > self._saved_steps:  # it ended within an epoch
                    self._save_if_whole()
            except EndedError:
                self._progress.stop(JOB_ENDED)
                with suppress(EndedError):  # in queue mode a coordinator that is gone says no more what is done
                    self._save_if_whole()
            except KeyboardInterrupt:
                self._save_if_whole()
                raise
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
            if self._callbacks.callbacks:  # Keras converts logs for nobody, too
                self._callbacks.on_train_batch_begin(batch)
            loss = self._train_on(element)
            if self._callbacks.callbacks:
                self._callbacks.on_train_batch_end(batch, {"loss": loss})
            batch += 1
            self._look_up(loss)
        if self._session.in_queue and not self._is_within_epoch():
            next(iterator, None)  # the end of the epoch, which is seen only by asking

    def _is_stopping(self, interruption: ctrl_c.Interruption) -> bool:
        return self._placement.heeds(asked=interruption.is_asked)

    def _wait_next(self, iterator: Iterator[Any]) -> Any:  # noqa: ANN401 - an element; None at the end
        began_s = time.perf_counter()
        element = next(iterator, None)
        if element is not None:
            self._session.count_step_wait(time.perf_counter() - began_s)
        return element

    def _train_on(self, element: Any) -> float:  # noqa: ANN401 - tensors
        """One step, counted once it is applied; its loss."""
        session = self._session
        with self._timed("step"):
            self._is_in_step = True
            epoch = session.cursor.at.epoch
            loss, rows = self._applied(element)
            session.cursor.count(1)
            self._is_ending_epoch = session.cursor.at.epoch > epoch
            self._is_in_step = False
        trained, self._rows = session.trained_rows - self._rows, session.trained_rows
        self._noted.add({"loss": loss}, rows)
        self._progress.count(epochs=session.cursor.at.epoch, steps=1, samples=trained)
        return loss

    def _applied(self, element: Any) -> tuple[float, int]:  # noqa: ANN401 - tensors
        """Loss and valid rows of a step whose gradients were applied, in however many tries."""
        for attempt in range(1 + self._settings.retries):
            loss, rows, became = self._take_step(element).numpy().tolist()
            if became != NOT_FINITE:
                return loss, int(rows)
            self._log.warning("gradients are not finite", tries=attempt + 1, loss=loss, **self._place())
        raise self._not_finite()

    def _look_up(self, loss: float) -> None:
        """Between two steps: what is to be told, saved or heeded now and then."""
        steps = self._progress.totals.steps
        if self._step.traces > self._teller.traces:
            self._teller.count_traces(self._step.traces)
        if steps % self._settings.tell_every == 0:
            self._teller.tell_step(self._progress, loss)
        if self._is_save_due(steps) and self._is_within_epoch():  # an epoch that is over is saved once judged
            self._save()
        self._heed_callbacks()

    def _is_within_epoch(self) -> bool:
        cursor = self._session.cursor
        if self._session.in_queue:
            return cursor.epoch_of(cursor.state()) == cursor.at.epoch
        return bool(cursor.at.number)

    def _heed_callbacks(self) -> None:
        if JOB_ENDED in self._params:
            self._progress.stop(JOB_ENDED)
        if self._model.stop_training:
            self._progress.stop("a callback stopped it")

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
        if self._early_stop is not None and self._early_stop.note(epoch, logs):
            self._progress.stop(f"stopped early, {self._early_stop.reason}")
        self._heed_callbacks()
        self._is_ending_epoch = False
        self._save()

    # --- beginning and ending ---

    def _begin(self) -> None:
        with self._timed("warm_up"):
            self._warm_up()
        self._saved.begin()
        there, self._noted = self._saved.restore(self._model, self._session, self._early_stop)
        self.check_replicas()
        self._rows, self._saved_steps = self._session.trained_rows, there.steps
        self._model.stop_training = False
        self._progress.begin(f"training {self._session.stream}", there)
        if self._early_stop is not None and self._early_stop.reason:
            self._progress.stop(f"stopped early, {self._early_stop.reason}")
        self._teller.begin(self._progress, self._step.traces)
        self._callbacks.on_train_begin()

    def _warm_up(self) -> None:
        """Build the model, trace its step and try each shape; nothing of it changes what the model was before."""
        for_each_shape = self._data.for_each_shape
        if for_each_shape is None:
            self._build(next(iter(self._data.elements)))  # reading moves nothing
            self._trace_for_any_shape()
            return
        for_each_shape(self._build)
        self._trace_for_any_shape()
        state = self._model.non_trainable_variables
        before = [plain_value(variable) for variable in state]
        for_each_shape(lambda element: self._take_step(self._placement.for_all(element)))
        assign_values(state, before)

    def _trace_for_any_shape(self) -> None:
        """One graph for all shapes, as `fit` has: one for each takes a second or more, each time that a run begins."""
        spec = self._placement.any_element(self._data.elements)
        if spec is None:
            return
        try:
            self._take_step.get_concrete_function(spec)  # type: ignore[attr-defined] # of a tf.function
        except Exception as error:  # whatever the model raises where it needs a size
            self._log.info("the step is traced for each shape: it fails where sizes are open", error=str(error))

    def _build(self, element: Any) -> None:  # noqa: ANN401 - tensors
        model = self._model
        with self._placement.scope():
            if not model.built:
                model(self._step.inputs(element))
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

    def _is_save_due(self, steps: int) -> bool:
        every_s, every = self._settings.save_every_s, self._settings.save_every_steps
        by_time = every_s is not None and time.monotonic() - self._saved_at_s >= every_s
        return by_time or (every is not None and steps - self._saved_steps >= every)

    def _save_if_whole(self) -> None:
        """Not within a step, nor where an epoch is over that early stopping goes by and that is not judged yet."""
        is_judging = self._is_ending_epoch and self._early_stop is not None
        if not self._is_in_step and not is_judging:
            self._noted = NotedMeans() if self._is_ending_epoch else self._noted
            self._save()

    def _save(self) -> None:
        totals = self._progress.totals
        with self._timed("checkpoint"):
            self._saved.save(self._model, self._session, totals, self._noted, self._early_stop)
        self._saved_steps, self._saved_at_s = totals.steps, time.monotonic()

    # --- figures and faults ---

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self._session.count_phase(phase, time.perf_counter() - began_s)

    def _place(self) -> dict[str, int]:
        at = self._session.cursor.at
        return {"epoch": at.epoch, "batch": at.number, "step": self._progress.totals.steps}

    def _not_finite(self) -> DataError:
        at, stream = self._session.cursor.at, self._session.stream
        return DataError(
            expected="finite loss and gradients", got=f"others in each of {1 + self._settings.retries} tries",
            where=f"batch {at.number} of epoch {at.epoch} of {stream}, step {self._progress.totals.steps}",
            remedy="They were never applied. Lower the learning rate, clip gradients (clipnorm=1.0), or "
            f"look at it: loader-server show JOB {stream} --epoch {at.epoch} --batch {at.number}",
        )  # fmt: skip


def _only_early_stop(callbacks: Sequence[Any]) -> EarlyStop | None:
    """The one among the callbacks; what it saw is kept with the checkpoint from now on."""
    found = [one for one in callbacks if isinstance(one, EarlyStop)]
    if len(found) > 1:
        raise SettingsError(
            expected="one EarlyStop at most", got=f"{len(found)}", where="--model, callbacks",
            remedy="Give all rules to one: EarlyStop(NoProgress(3), LevelledOff(4)).",
        )  # fmt: skip
    for one in found:
        one.be_kept_by_checkpoint()
    return found[0] if found else None
