"""The common part of our training loops, wherever the variables are.

It warms up, takes one step after another, reports and heeds callbacks between two of them, and decides when to save.

Rules:
- All planned shapes go through the step before training begins, the largest first. It is traced once for all of them,
  or for each if the model has to know sizes; a later trace is counted and reported.
- A step whose gradients are not finite is retried, and then ends training, with the batch named.
- It must not know what a checkpoint holds, nor when an epoch is over: the loops do.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from shared.errors import DataError, SettingsError
from trainer_client.training.checkpoints.saved_model import SavedRun, assign_values, plain_value
from trainer_client.training.loop.step import NOT_FINITE, TrainStep, refuse_own_train_step
from trainer_client.training.loop.teller import Teller
from trainer_client.training.runs.early_stop import EarlyStop
from trainer_client.training.runs.run_loop import JOB_ENDED, STEPS_DONE, progress_of
from trainer_client.training.runs.until import NotedMeans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from trainer_client.feed import Feed
    from trainer_client.training.loop.placement import Placement
    from trainer_client.training.runs.until import LoopSettings, RunTotals

__all__ = ["BaseLoop", "TrainingData"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """A feed's elements: each iteration goes from the cursor to the end of its epoch."""

    feed: Feed
    elements: Iterable[Any]
    #: Calls a function with an element of each planned shape, without samples, the largest first; None: not planned.
    for_each_shape: Callable[[Callable[[Any], Any]], None] | None


class BaseLoop:
    """A loop over a compiled model and its data; `writes` says whether this process saves and reports.

    Raise SettingsError for a model with a `train_step` of its own, for several `EarlyStop`s, or for an optimizer that
    the strategy cannot train.
    """

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        model: Any,
        data: TrainingData,
        placement: Placement,
        settings: LoopSettings,
        callbacks: Sequence[Any],
        *,
        writes: bool,
    ) -> None:
        refuse_own_train_step(model)
        self._session = session = data.feed._session
        self._model, self._data, self._placement, self._settings = model, data, placement, settings
        self._step = TrainStep(model, model.loss, model.optimizer)
        # A pipeline plans no shapes, so its graph has to take any.
        self._take_step = placement.compiled(self._step, xla=settings.xla, any_shape=data.for_each_shape is None)
        self._callbacks = keras.callbacks.CallbackList(list(callbacks), model=model)
        #: What `fit` gives to callbacks as `params`; one that finds that the job was ended notes it there.
        self._params: dict[str, Any] = {"verbose": 0, "epochs": None, "steps": None}
        self._callbacks.set_params(self._params)
        self._early_stop = _only_early_stop(callbacks)
        self._saved = SavedRun(settings.checkpoints, settings.keep, writes=writes, initial=settings.initial)
        self._progress = progress_of(settings.until, session)
        self._teller = Teller(session, settings.summaries, settings.tell_every, is_quiet=not writes)
        self._writes = writes
        #: Means over the epoch in training.
        self._noted = NotedMeans()
        self._log = session.log
        #: Rows when steps were last counted, and steps at the last checkpoint.
        self._rows = self._saved_steps = 0
        #: When the last checkpoint was written, or the loop was made.
        self._saved_at_s = time.monotonic()

    @property
    def reason(self) -> str:
        """Why training is over; empty while it goes on."""
        return self._progress.reason

    # --- before the first step ---

    def _warm_up(self) -> None:
        """Build the model, trace its step and try each planned shape; the model's values stay as they were.

        Of a pipeline no shapes are planned: the model is built on its first element, and none is tried. Raise
        SettingsError for a loss, model or keys that the step cannot take, and StopIteration for a pipeline without
        elements; errors of the model, of the strategy and of the feed are passed on.
        """
        for_each_shape = self._data.for_each_shape
        if for_each_shape is None:
            self._build(self._placement.one_of(next(iter(self._data.elements))))  # reading does not move the cursor
        else:
            for_each_shape(self._build)
        self._when_built()
        self._trace_for_any_shape()
        if for_each_shape is None:
            return
        # Elements without samples have no gradients applied, but a forward pass may change what is not trained.
        state = self._model.non_trainable_variables
        before = [plain_value(variable) for variable in state]
        # The largest goes first: one that does not fit into memory fails now, not in the middle of an epoch.
        for_each_shape(lambda element: self._take_step(self._placement.for_all(element)))
        assign_values(state, before)

    def _build(self, element: Any) -> None:
        with self._placement.scope():
            if not self._model.built:
                self._model(self._step.inputs(element))

    def _when_built(self) -> None:
        """Do what a loop needs once the model has its variables, before its step is traced; here nothing."""

    def _trace_for_any_shape(self) -> None:
        """Trace one graph for all shapes, as `fit` has; if the model needs sizes, each shape gets its own.

        A graph for each shape takes a second or more to trace, each time that a run begins. A SettingsError of tracing
        is passed on, any other error of it is logged. Without a spec of all shapes, do nothing.
        """
        # Measured: it saves 0.6 to 0.9 s of CPU for each of 15 shapes, and steps of a small model take 5 to 6 % more.
        spec = self._placement.any_element(self._data.elements)
        if spec is None:
            return
        try:
            self._take_step.get_concrete_function(spec)  # type: ignore[attr-defined] # of a tf.function
        except SettingsError:
            raise
        except Exception as error:  # a model may raise anything if it needs a size
            self._log.info("the step is traced for each shape: it fails where sizes are open", error=str(error))

    def _start(self, there: RunTotals, over: str = "") -> None:
        """Begin the run from these totals, and print so in rank 0; it may be over at once.

        `over` is why it is over already, empty if it is not; a limit or early stopping may be a reason as well.
        Errors of `begin` pass through.
        """
        self._rows = self._session.trained_rows
        self._params[STEPS_DONE] = there.steps
        self._progress.begin(f"training {self._session.spec.stream}", there)
        self._progress.stop(over)
        self._heed_early_stop()
        self._teller.begin(self._progress, self._step.traces)

    # --- a step ---

    def _wait_next(self, iterator: Iterator[Any]) -> Any:
        self._teller.note_ahead()
        began_s = time.perf_counter()
        element = next(iterator, None)
        if element is not None:
            self._session.count_step_wait(time.perf_counter() - began_s)
        return element

    def _finite_step(self, element: Any) -> tuple[float, int, float]:
        """Return loss, valid rows and outcome of a step, retried while its gradients are not finite.

        Raise DataError after the last retry. Errors of the step are passed on, such as SettingsError for a model that
        the strategy cannot train, and LostError if another process is lost.
        """
        # The same batch may do better: dropout draws anew, and a loss that is scaled is scaled less after each try.
        for attempt in range(1 + self._settings.retries):
            loss, rows, became = self._outcome_of(element)
            if became != NOT_FINITE:
                return loss, int(rows), became
            epoch, batch = self._in_hand()
            self._log.warning(
                "gradients are not finite", tries=attempt + 1, loss=loss, epoch=epoch, batch=batch,
                step=self._progress.steps,
            )  # fmt: skip
        raise self._not_finite()

    def _outcome_of(self, element: Any) -> tuple[float, float, float]:
        """Take a step; return loss, valid rows and outcome. Errors of the step, or of the strategy, are passed on."""
        loss, rows, became = self._take_step(element).numpy().tolist()
        return loss, rows, became

    def _in_hand(self) -> tuple[int, int]:
        """Return epoch and number of the batch in training, the first one's if each replica has one.

        In queue mode raise IndexError if none is in hand.
        """
        at = self._session.cursor.in_hand()
        return at.epoch, at.number

    def _not_finite(self) -> DataError:
        stream, (epoch, batch) = self._session.spec.stream, self._in_hand()
        return DataError(
            expected="finite loss and gradients", got=f"others in each of {1 + self._settings.retries} tries",
            where=f"batch {batch} of epoch {epoch} of {stream}, step {self._progress.steps}",
            remedy="They were never applied. Lower the learning rate, clip gradients (clipnorm=1.0), or "
            f"look at it: loader-server show JOB --stream {stream} --epoch {epoch} --batch {batch}",
        )  # fmt: skip

    def _note_step(self, loss: float, rows: int) -> None:
        """Note a step that was applied and that the cursor has counted.

        Ranks in lockstep may wait here to agree on the time: raise EndedError if the job is ended meanwhile, LostError
        if a rank or the coordinator is lost, and the error of a feed that fails.
        """
        session = self._session
        trained, self._rows = session.trained_rows - self._rows, session.trained_rows
        self._noted.add({"loss": loss}, rows)
        self._teller.note_step(loss, rows)
        self._progress.count(
            epochs=session.cursor.at.epoch, steps=self._steps_done() - self._progress.steps, samples=trained
        )

    def _steps_done(self) -> int:
        """Return how many steps are in the model, with the one that was just applied."""
        return self._progress.steps + 1

    # --- between two steps ---

    def _look_up(self) -> None:
        """Report, save and heed callbacks, as far as each is due between two steps; errors of these are passed on."""
        if self._step.traces > self._teller.traces:
            self._teller.count_traces(self._step.traces)
        self._teller.tell_progress(self._progress)
        if self._is_save_due():
            self._save()
        self._heed_callbacks()

    def _heed_callbacks(self) -> None:
        if JOB_ENDED in self._params:
            self._progress.stop(JOB_ENDED)
        self._heed_early_stop()
        if self._model.stop_training:
            self._progress.stop("a callback stopped it")

    def _heed_early_stop(self) -> None:
        if self._early_stop is not None and self._early_stop.reason:
            self._progress.stop(f"stopped early, {self._early_stop.reason}")

    def _end_epoch_of_callbacks(self, epoch: int, logs: dict[str, Any]) -> None:
        """Call each callback with the same logs, so that later ones see what earlier ones add.

        Keras's list of callbacks would give each a copy. Errors of callbacks are passed on.
        """
        for callback in self._callbacks.callbacks:
            callback.on_epoch_end(epoch, logs)

    # --- saving ---

    def _is_save_due(self) -> bool:
        """Return whether to save now, between two steps.

        Each loop has its own; here it raises NotImplementedError.
        """
        raise NotImplementedError

    def _save(self) -> Any:
        raise NotImplementedError

    def _is_long_ago(self, steps: int) -> bool:
        """Return whether the last checkpoint is old enough to save again, by steps or by time, if these are set."""
        every_s, every = self._settings.save_every_s, self._settings.save_every_steps
        by_time = every_s is not None and time.monotonic() - self._saved_at_s >= every_s
        return by_time or (every is not None and steps - self._saved_steps >= every)

    def _note_saved(self, checkpoint: Path | None, steps: int) -> None:
        self._session.note_saved(checkpoint, steps)
        self._saved_steps, self._saved_at_s = steps, time.monotonic()

    def _interrupted(self, error: KeyboardInterrupt) -> KeyboardInterrupt:
        """Return the same interruption, with words on what of this run is saved."""
        return type(error)(self._what_is_saved())

    def _what_is_saved(self) -> str:
        saved, steps = self._session.saved, self._progress.steps
        if not self._writes:
            return f"at step {steps}, another process of this run writes its checkpoints"
        if not saved:
            return f"at step {steps}, nothing was saved"
        return f"saved {saved}" if steps == self._saved_steps else f"at step {steps}, the last checkpoint is {saved}"

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self._session.accounts.count_phase(phase, time.perf_counter() - began_s)


def _only_early_stop(callbacks: Sequence[Any]) -> EarlyStop | None:
    """Return the `EarlyStop` among the callbacks, or None; its state is kept in checkpoints from now on.

    Raise SettingsError if there are several.
    """
    early_stops = [callback for callback in callbacks if isinstance(callback, EarlyStop)]
    if len(early_stops) > 1:
        raise SettingsError(
            expected="one EarlyStop at most", got=f"{len(early_stops)}", where="--model, callbacks",
            remedy="Give all rules to one: EarlyStop(NoProgress(3), LevelledOff(4)).",
        )  # fmt: skip
    for early_stop in early_stops:
        early_stop.be_kept_by_checkpoint()
    return early_stops[0] if early_stops else None
