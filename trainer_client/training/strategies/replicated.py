"""The common part of the `tf.distribute` strategies: each replica has all variables, and all apply one gradient.

Rules:
- Losses are weighted by valid rows over all replicas, so gradients are summed once, here. The optimizer clips, scales
  and applies that sum, and does no all-reduce of its own.
- The outcome of a step follows from sums that all replicas have, so all decide alike.
- A round is one batch for each replica, all of one shape. Replicas take consecutive ranks.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import keras
import tensorflow as tf

# Not public, but nothing public makes the spec of an element whose sizes are open.
from tensorflow.python.distribute.values import PerReplicaSpec

from trainer_client.training.loop.step import Contribution, TracedStep
from trainer_client.training.strategies.towers.alike import (
    Towers,
    broadcast_from_first,
    of_values,
    refuse_other_beginning,
    refuse_unequal,
    refuse_unsynchronised,
    times,
)
from trainer_client.training.strategies.towers.compiled import contribution_of
from trainer_client.training.strategies.towers.feeding import InRounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from trainer_client.training.loop.step import TrainStep

__all__ = ["Replicated", "ToStop"]


@dataclass
class ToStop:
    """Requests to stop: this process's own, and whether any process had one when the last step was taken."""

    #: Read when a step is taken, which passes it on to the other processes.
    asked: bool = False
    #: The same in all processes after a step, so that all stop after it.
    by_any: bool = False


class Replicated(InRounds):
    """Training under a `tf.distribute` strategy; with `sums`, gradients are multiplied by the number of replicas."""

    def __init__(self, name: str, strategy: tf.distribute.Strategy, *, sums: bool) -> None:
        super().__init__(name, strategy.extended.worker_devices)
        self._strategy = strategy
        self._times = self._world() if sums else 1
        self.to_stop = ToStop()

    def scope(self) -> AbstractContextManager[Any]:
        """Return the strategy's scope, in which the model's and the optimizer's variables are made."""
        return cast("AbstractContextManager[Any]", self._strategy.scope())

    def one_of(self, element: Any) -> Any:
        """Return the first replica's part of a step's element."""
        return self._first(element)

    def any_element(self, elements: Iterable[Any]) -> Any:
        """Return the spec of a step's element with open sizes, for one graph for all shapes."""
        spec = elements.element_spec  # type: ignore[attr-defined] # of rounds
        return tf.nest.map_structure(lambda tensor_spec: PerReplicaSpec(*[tensor_spec] * len(self._devices)), spec)

    def prepare_optimizer(self, model: Any) -> None:
        """Raise SettingsError for variables, trained or of the optimizer, of which replicas have no copies."""
        refuse_unsynchronised(model)

    def refuse_unequal(self, model: Any) -> None:
        """Raise DataError for variables, the optimizer's too, that differ between replicas.

        All processes call it at the same step. Raise LostError if a process is lost.
        """
        replicas, world = self.ranks["replicas"], self.ranks["world"]
        with self.exchanging():
            refuse_unequal(self._strategy, model, world // replicas, self.ranks["rank"] // replicas)

    def refuse_other_beginning(self, parts: Mapping[str, str]) -> None:
        """Raise DataError if a part of what the run begins with, by name, is not the same in all processes.

        All processes call it as they begin, with the same names. Raise LostError if a process is lost.
        """
        replicas, world = self.ranks["replicas"], self.ranks["world"]
        with self.exchanging():
            refuse_other_beginning(self._strategy, parts, world // replicas, self.ranks["rank"] // replicas)

    def broadcast(self, model: Any) -> list[str]:
        """Copy variables, the optimizer's too, from the first replica to all; return the paths of all that differed.

        Only those count that differed in this process. All processes call it at the same step. Raise LostError if a
        process is lost.
        """
        replicas, world = self.ranks["replicas"], self.ranks["world"]
        with self.exchanging():
            return broadcast_from_first(self._strategy, model, world // replicas, self.ranks["rank"] // replicas)

    def _together(self, elements: Sequence[Any]) -> Any:
        """Return a distributed element, made of one element for each replica here."""
        left = iter(elements)
        return self._strategy.experimental_distribute_values_from_function(lambda _context: next(left))

    def compiled(self, step: TrainStep, *, xla: bool, any_shape: bool) -> Callable[[Any], Any]:
        """Return a step of all replicas, in which they also pass on requests to stop to each other.

        A call raises SettingsError if only some replicas have a gradient of a variable, or for a model or loss that a
        replica cannot compute, and LostError if a process is lost. With `any_shape`, one graph takes all shapes; with
        `xla`, each replica's contribution is compiled.
        """
        _sum_nothing(step.optimizer)
        towers = Towers(step.model)
        train = partial(self._train, step, contribution_of(step, xla=xla), towers)
        function = TracedStep(tf.function(train, reduce_retracing=any_shape, autograph=False))
        return _WatchedStep(function, step, partial(towers.refuse_different, self._world()), self)

    def exchanging(self) -> AbstractContextManager[Any]:
        """Return a context for exchanges between replicas; here it does nothing."""
        return nullcontext()

    def _train(
        self,
        step: TrainStep,
        contribute: Callable[[Any], Contribution],
        towers: Towers,
        element: Any,
        asked: Any,
    ) -> Any:
        """Take one step of all replicas, within a graph.

        Return the outcome, and for each variable how many replicas have a gradient, followed by how many are asked to
        stop. Nothing is applied if only some replicas have a gradient of a variable. Raise SettingsError if replicas of
        this process differ in that; errors of `contribute` are passed on.
        """
        towers.begin()

        def compute(element: Any, asked: Any) -> tuple[Contribution, Any, Any, Any]:
            part, counts = self._summed(contribute(element), towers, asked)
            became = step.became(part)
            # If only some replicas have a gradient, nothing is applied, and the caller refuses the model by name.
            alike = tf.reduce_all((counts[:-1] == 0) | (counts[:-1] == self._world()))
            return part, became, step.may_apply(part, became) & alike, counts

        part, became, may_apply, counts = self._strategy.run(compute, (element, asked))
        towers.refuse_different_here()
        # All replicas derived this from the same sums, so the first one's is that of all.
        tf.cond(self._first(may_apply), lambda: self._strategy.run(step.apply, (part, became)), lambda: None)
        return tf.stack([self._first(value) for value in (part.loss, part.rows, became)]), self._first(counts)

    def _world(self) -> int:
        return int(self._strategy.num_replicas_in_sync)

    def _first(self, value: Any) -> Any:
        """Return the first replica's value here, for values that are the same on all."""
        return self._strategy.experimental_local_results(value)[0]

    def _summed(self, part: Contribution, towers: Towers, asked: Any) -> tuple[Contribution, Any]:
        """Return the contribution summed over all replicas, and the summed counts.

        Counts are how many replicas have each gradient, then how many are asked to stop. Statistics are means over
        rows. Gradients are multiplied by the number of replicas if the strategy takes sums; one that is missing here
        stays None.
        """
        # A replica without rows may have statistics that are not finite. They count for nothing, but NaN * 0 is NaN.
        of_rows = [tf.math.multiply_no_nan(tf.cast(value, tf.float32), part.rows) for value in part.statistics]
        # All replicas have to sum the same tensors, so a missing gradient goes in as zeros, and out as None.
        having, gradients = towers.note(part.gradients)
        counts = tf.concat([having, [asked]], 0)
        loss, rows, weight, counts, *sums = _sum_of_all([*part[:3], counts, *gradients, *of_rows])
        gradients, of_rows = sums[: len(gradients)], sums[len(gradients) :]
        statistics = [
            tf.cast(tf.math.divide_no_nan(total, rows), value.dtype)
            for total, value in zip(of_rows, part.statistics, strict=True)
        ]
        own = [
            None if was is None else times(gradient, self._times)
            for gradient, was in zip(gradients, part.gradients, strict=True)
        ]
        return Contribution(loss, rows, weight, own, statistics), counts


class _WatchedStep:
    """A step as a graph, in which replicas tell each other whether they are asked to stop.

    After each new trace it checks that all replicas have the same gradients. A call raises SettingsError if they have
    not, and LostError if a process is lost.
    """

    def __init__(
        self, function: TracedStep, step: TrainStep, look: Callable[[Any], None], placement: Replicated
    ) -> None:
        self._function, self._step, self._look, self._placement = function, step, look, placement
        self._looked_at = 0

    def get_concrete_function(self, element: Any) -> None:
        """Trace the step for this spec, as a `tf.function` would; errors of tracing are passed on."""
        self._function.get_concrete_function(element, tf.TensorSpec((), tf.float32))

    def __call__(self, element: Any) -> Any:
        to_stop = self._placement.to_stop
        with self._placement.exchanging():
            outcome, counts = self._function(element, tf.constant(to_stop.asked, tf.float32))
            *having, asked = counts.numpy()
        to_stop.by_any = bool(asked)
        # Which gradients there are is fixed when a graph is traced, so each trace is checked once.
        if self._step.traces > self._looked_at:
            self._look(having)
            self._looked_at = self._step.traces
        return outcome


def _sum_of_all(values: list[Any]) -> list[Any]:
    """Return the sums of these values over all replicas, by one all-reduce for each dtype.

    Only tensors of one dtype can be packed together. Values of fewer than 32 bits are summed as float32, because 16
    bits are too few to sum in, and returned in their own dtype.
    """
    replica = tf.distribute.get_replica_context()
    wide = [_cast(value, tf.float32) if value.dtype.size < tf.float32.size else value for value in values]
    places: dict[Any, list[int]] = defaultdict(list)
    for place, value in enumerate(wide):
        places[value.dtype].append(place)
    sums: list[Any] = [None] * len(values)
    for places_of_dtype in places.values():
        totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, [wide[place] for place in places_of_dtype])
        for place, total in zip(places_of_dtype, totals, strict=True):
            sums[place] = _cast(total, values[place].dtype)
    return sums


def _cast(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else of_values(value, lambda part: tf.cast(part, dtype))


def _sum_nothing(optimizer: Any) -> None:
    """Keep the optimizer from summing gradients over replicas, as they are summed already.

    Keras's optimizers do so after clipping them and checking that they are finite; nothing public lets one be given the
    sum.
    """
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    optimizer._all_reduce_sum_gradients = list  # noqa: SLF001 - nothing public does it
