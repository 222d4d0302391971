"""Asynchronous towers in one process: they share one copy of the variables and apply gradients as they come.

Rules:
- Towers compute at the same time, each in a thread, and none waits for the gradients of another. Only one changes the
  variables at a time, so no update is torn; but a tower may compute with variables that others change meanwhile.
- A round is over when each of its batches was applied once: in between nothing is counted or saved. A tower whose
  gradients are not finite is retried alone.
- Only applied gradients may change variables: a forward pass that changed some would race with another tower's.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.training.loop.step import APPLIED, NOT_FINITE, NOTHING_TO_APPLY, TracedStep, statistics_of
from trainer_client.training.strategies.central import SharedCopy
from trainer_client.training.strategies.options import VariablesOn, places_of_variables
from trainer_client.training.strategies.towers.alike import times
from trainer_client.training.strategies.towers.compiled import contribution_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_client.training.loop.step import Contribution, TrainStep

__all__ = ["Asynchronous"]


class Asynchronous(SharedCopy):
    """Asynchronous towers on these devices, such as GPU:0 and GPU:1.

    Gradients are divided by the number of towers, so that a round moves the variables about as far as one step of all
    towers would; with `sums`, they are not. Raise SettingsError if the environment names several processes, or a
    malformed role.
    """

    def __init__(self, devices: tuple[str, ...], variables: VariablesOn = "auto", *, sums: bool = False) -> None:
        super().__init__("async", devices, *places_of_variables(variables, devices, asynchronous=True))
        self._times = 1.0 if sums else 1 / len(devices)
        self.choice += "" if sums else f"; gradients times 1/{len(devices)}"

    def prepare_optimizer(self, model: Any) -> None:
        """Prepare for the optimizer; raise SettingsError for a model whose forward pass changes variables.

        Seeds are no such variables.
        """
        super().prepare_optimizer(model)
        _refuse_statistics(model)

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """Return a function that trains all towers on a round; raise SettingsError if the loss is scaled.

        It retries only towers whose gradients were not finite if it is called with the same round again. With `xla`,
        what each tower computes is compiled. A call raises the error of the first tower that fails, such as
        SettingsError for a loss that has one value for the whole batch.
        """
        _refuse_scaled_loss(step.optimizer)
        settlement = _Settlement(step)
        return _AllTowers(
            [_Tower(step, on, self._times, settlement, xla=xla, any_shape=any_shape) for on in self._devices]
        )


class _Settlement:
    """The graph that changes the variables by what a tower computed, one for all towers."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        #: Held while one of our graphs is traced: towers may find at the same time that they need a new one,
        #: and tracing runs the model's Python.
        self.tracing = threading.Lock()
        self.settle = TracedStep(tf.function(self._settled, reduce_retracing=True, autograph=False))

    def _settled(self, part: Contribution) -> Any:
        with self.tracing:
            return tf.concat([self._step.settle(part), [part.weight]], 0)


class _Tower:
    """One tower's step in two graphs: one computes while other towers do so too, the other applies the result."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self, step: TrainStep, device: str, times: float, settlement: _Settlement, *, xla: bool, any_shape: bool
    ) -> None:
        self._device, self._times = device, times
        self._tracing, self._settle = settlement.tracing, settlement.settle
        self._compute = contribution_of(step, xla=xla)
        self._contribute = TracedStep(tf.function(self._computed, reduce_retracing=any_shape, autograph=False))

    def trace(self, spec: Any) -> None:
        """Trace both graphs for elements of this spec; errors of tracing are passed on."""
        part = self._contribute.get_concrete_function(spec).structured_outputs
        self._settle.get_concrete_function(tf.nest.map_structure(_spec_of, part))

    def train(self, element: Any, applying: threading.Lock) -> list[float]:
        """Compute the gradients, then apply them while holding the lock.

        Return the loss, the valid rows, the outcome and the weight of the rows; errors of the step are passed on.
        """
        part = self._contribute(element)
        with applying:
            outcome: list[float] = self._settle(part).numpy().tolist()
        return outcome

    def _computed(self, element: Any) -> Contribution:
        with self._tracing, tf.device(self._device):  # Python runs while TensorFlow traces, and only then
            part = self._compute(element)
            return part._replace(gradients=[times(gradient, self._times) for gradient in part.gradients])


class _AllTowers:
    """A step of all towers at once, each in a thread.

    Called again with the same round, it trains only the towers whose gradients were not finite. The error of the first
    tower that failed is raised.
    """

    def __init__(self, towers: Sequence[_Tower]) -> None:
        self._towers = towers
        self._threads = ThreadPoolExecutor(len(towers), thread_name_prefix="tower")
        self._applying = threading.Lock()
        self._elements: Any = None
        self._outcomes: list[list[float] | None] = []

    def get_concrete_function(self, specs: Any) -> None:
        """Trace each tower for its spec, as a `tf.function` would; errors of tracing are passed on."""
        for tower, spec in zip(self._towers, specs, strict=True):
            tower.trace(spec)

    def __call__(self, elements: Any) -> Any:
        # The loop retries a round by passing the same object again.
        if elements is not self._elements:
            self._elements, self._outcomes = elements, [None] * len(self._towers)
        self._train_those_left()
        outcome = _together([outcome for outcome in self._outcomes if outcome is not None])
        if outcome[2] != NOT_FINITE:
            self._elements = None  # let go of it, as it lies in the feed's slots
        return tf.constant(outcome, tf.float32)

    def _train_those_left(self) -> None:
        """Train the towers whose batch is not settled yet; all threads have ended when this returns or raises.

        The error of the first tower that failed is raised.
        """
        left = [at for at, outcome in enumerate(self._outcomes) if outcome is None or outcome[2] == NOT_FINITE]
        running = {at: self._threads.submit(self._towers[at].train, self._elements[at], self._applying) for at in left}
        # Wait for all before the first error is raised: no thread may change variables once this has ended.
        wait(running.values())
        for at, future in running.items():
            self._outcomes[at] = future.result()


def _spec_of(value: Any) -> Any:
    return None if value is None else tf.type_spec_from_value(value)


def _together(outcomes: Sequence[Sequence[float]]) -> list[float]:
    """Return the round's mean loss by weight, its valid rows and its outcome.

    The outcome is NOT_FINITE if it is a tower's, else APPLIED if it is a tower's; else nothing is to be applied, and
    the rows are 0.
    """
    losses, rows, became, weights = np.array(outcomes).T
    total = weights.sum()
    loss = float(losses @ weights / total) if total else 0.0
    # One tower without finite gradients has the round retried; otherwise one that was applied makes the round count.
    for worst in (NOT_FINITE, APPLIED):
        if worst in became:
            return [loss, float(rows.sum()), worst]
    return [loss, 0.0, NOTHING_TO_APPLY]


def _refuse_statistics(model: Any) -> None:
    names = [variable.path for variable in statistics_of(model)]
    if names:
        raise SettingsError(
            expected="a model of which only gradients change variables",
            got=f"batch statistics or the like: {', '.join(names[:4])}", where="--strategy async",
            remedy="Take layer or group normalisation, or another strategy: --strategy central has one copy, too.",
        )  # fmt: skip


def _refuse_scaled_loss(optimizer: Any) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise SettingsError(
            expected="an optimizer that does not scale the loss", got=type(optimizer).__name__,
            where="--strategy async",
            remedy="Another tower may change the scale while one computes: take --precision mixed_bfloat16, or another "
            "strategy.",
        )  # fmt: skip
