"""The variables of metrics as one vector: what batches add to them, and whether they may be added up at all.

Rules: everything is float64, so that sums of many batches are exact enough. Metrics whose variables are no sums over
batches are found by what they declare, and by trying: a batch that is counted twice has to add the same twice. This
module must not know models or data.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from shared.errors import SettingsError
from shared.logs import Log
from shared.wire.message_parts import MOST_STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["MetricVector", "describe", "refuse_unsummed"]

#: How much the second adding of a batch may differ from the first, relatively: float32 rounds.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6


class MetricVector:
    """The variables of these metrics, which are built and as `reset_state` leaves them."""

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = list(metrics)
        self._variables = [metric.variables for metric in metrics]
        sizes = [sum(int(np.prod(variable.shape)) for variable in variables) for variables in self._variables]
        ends = np.cumsum([0, *sizes])
        self._places = [slice(int(start), int(stop)) for start, stop in pairwise(ends)]
        self.size = int(ends[-1])
        #: What the variables hold before anything was counted.
        self.base: NDArray[np.float64] = self.read().numpy()

    @property
    def nbytes(self) -> int:
        """Size of the vector in bytes."""
        return 8 * self.size

    def layout(self) -> str:
        """Return a description of the metrics, with the shapes of their variables."""
        shapes = [[variable.shape for variable in variables] for variables in self._variables]
        return " ".join(f"{describe(metric)}{shape}" for metric, shape in zip(self._metrics, shapes, strict=True))

    def read(self) -> Any:
        """Return what all variables hold now."""
        flat = [
            tf.reshape(tf.cast(variable.value, tf.float64), [-1])
            for variables in self._variables
            for variable in variables
        ]
        return tf.concat(flat, 0)

    def place(self, metric: Any) -> slice:
        """Return where a metric's variables lie in the vector."""
        return self._places[self._metrics.index(metric)]

    def load(self, metric: Any, vector: NDArray[np.float64]) -> None:
        """Give a metric's variables their part of the vector."""
        at = self.place(metric).start
        for variable in self._variables[self._metrics.index(metric)]:
            count = int(np.prod(variable.shape))
            variable.assign(tf.cast(vector[at : at + count].reshape(variable.shape), variable.dtype))
            at += count

    # --- what may be added up ---

    def not_declared(self, summed: str) -> list[Any]:
        """Return the metrics with a variable that is not declared as `summed`, as those of sums are."""
        return [
            metric
            for metric, variables in zip(self._metrics, self._variables, strict=True)
            if any(getattr(variable, "aggregation", summed) != summed for variable in variables)
        ]

    def not_additive(self, once: NDArray[np.float64], twice: NDArray[np.float64]) -> list[Any]:
        """Return the metrics to which a batch added something else when it was counted a second time."""
        with np.errstate(invalid="ignore"):  # infinite losses
            first, second = once - self.base, twice - once
        # Sums that are not finite cannot be compared, so nothing is held against them.
        alike = np.isclose(second, first, _RELATIVE, _ABSOLUTE, equal_nan=True) | ~np.isfinite(once)
        return [metric for metric, place in zip(self._metrics, self._places, strict=True) if not np.all(alike[place])]

    def refuse_too_large(self) -> None:
        """Raise SettingsError if the vector takes more than an evaluation by several processes may."""
        if self.nbytes > MOST_STATE_BYTES:
            largest = max(self._metrics, key=lambda metric: self.place(metric).stop - self.place(metric).start)
            place = self.place(largest)
            raise SettingsError(
                expected=f"metrics whose variables take at most {MOST_STATE_BYTES} bytes as float64",
                got=f"{self.nbytes}, of which {8 * (place.stop - place.start)} are of {largest.name}",
                where="an evaluation by several processes", remedy="Leave it out, or let one process evaluate.",
            )  # fmt: skip


def refuse_unsummed(metrics: Sequence[Any], *, where: str) -> None:
    """Raise SettingsError that names these metrics, if there are any."""
    if metrics:
        names = ", ".join(f"{metric.name} ({type(metric).__name__})" for metric in metrics)
        raise SettingsError(
            expected="metrics whose variables are sums over batches, as those of several processes are added up",
            got=f"others: {names}", where=where,
            remedy="Let their variables be sums, counts for example, from which result() computes the metric; leave "
            'them out; or let one process evaluate (mode = "lockstep").',
        )  # fmt: skip


def describe(thing: Any) -> str:
    """Return a name for a metric or loss that is the same in each process, with its settings."""
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__
    config: Any = None
    if isinstance(thing, keras.metrics.Metric | keras.losses.Loss):
        try:
            config = thing.get_config()
        except Exception as error:  # a class of the user's may raise anything, or have none: its name has to do
            Log("trainer").info("a metric or loss has no configuration: its name stands for it", name=name, error=error)
    settings = json.dumps(config, sort_keys=True, default=lambda other: type(other).__name__)
    return f"{type(thing).__name__}:{name}{settings}"
