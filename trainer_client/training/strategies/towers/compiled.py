"""One tower's part of a step, compiled by XLA.

Rules: XLA compiles what one device computes, and nothing that crosses to others. So variables, which may lie elsewhere,
go in as values; what the forward pass changes comes out, and is assigned here. Seeds are an exception: they are
advanced here by the number of draws, so that no tower waits for another that draws from the same ones. A loss is the
mean over the tower's own rows, and is weighted by them here if replicas sum. Shapes are compiled one by one as they
come, whatever the graph around them was traced for.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from shared.errors import SettingsError
from trainer_client.training.loop.step import statistics_of
from trainer_client.training.losses.replica_means import means_of_own_rows, replica_of_several, share_of_all
from trainer_client.training.strategies.towers.alike import times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainer_client.training.loop.step import Contribution, TrainStep

__all__ = ["contribution_of"]


def contribution_of(step: TrainStep, *, xla: bool) -> Callable[[Any], Contribution]:
    """Return `step.contribute`, compiled if `xla`; call it on the tower's device while a graph is traced.

    The compiled one raises SettingsError for a model that sums over replicas, has variables that Keras does not know,
    or changes trained variables as it computes. Errors of `contribute` are raised by both.
    """
    return _Compiled(step) if xla else step.contribute


#: Keras's name for the variable in which a seed generator counts its draws. The generator for all who name no seed has
#: another, which is no variable of any model.
_SEED = "seed_generator_state"


class _Compiled:
    """A step's `contribute`, compiled by XLA, with the variables passed in as values."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        #: Keras variables that the model reads but does not list as its own, such as those of metrics.
        self._strangers: list[Any] = []

    def __call__(self, element: Any) -> Contribution:
        """Return one replica's contribution to a step, and assign what its forward pass changed.

        Raise SettingsError for a model that sums over replicas, has variables that Keras does not know, or changes
        trained variables as it computes. Errors of `contribute` pass through.
        """
        _refuse_synchronized(self._step.model)
        # A trace finds the variables that the model reads without listing them. They have to go in as values, too, so
        # trace again with them until there are no more.
        while True:
            known = [*self._step.variables_read(), *self._strangers]
            values = [tf.identity(variable.value) for variable in known]
            scope = _Noting(known, [variable for variable in self._step.variables_read() if variable.name == _SEED])
            function = tf.function(self._computation(scope), jit_compile=True, autograph=False)
            with _refusing_exchanges():
                graph = function.get_concrete_function(element, values).graph
            if not scope.strangers:
                break
            self._strangers += scope.strangers.values()
        _refuse_bare(graph.variables)
        _refuse_changed(self._step.model, scope)
        part, after = function(element, values)
        _go_on(scope, after)
        return _share_of(part)

    def _computation(self, scope: _Noting) -> Callable[[Any, Any], Any]:
        """Return the function to compile, which returns a contribution and what the forward pass changed.

        Tracing it raises the errors of `contribute`.
        """
        put_back = {id(variable) for variable in statistics_of(self._step.model)}

        def compute(element: Any, values: Any) -> Any:
            scope.begin(values)
            with scope, means_of_own_rows():
                part = self._step.contribute(element)
            return part, scope.changed_values(put_back)

        return compute


class _Noting(keras.StatelessScope):  # type: ignore[misc] # Keras has no types
    """A Keras scope with values for known variables, which notes what else is read, and what is changed."""

    def __init__(self, known: Sequence[Any], seeds: Sequence[Any]) -> None:
        super().__init__(collect_losses=True)
        self._known, self._seeds = {id(variable): variable for variable in known}, {id(variable) for variable in seeds}
        self.begin([])

    def begin(self, values: Sequence[Any]) -> None:
        """Begin a trace with these values of the known variables, in their order; nothing is changed or unknown yet."""
        self.state_mapping.update(zip(self._known, values, strict=False))
        #: Variables that were used and have no value here, by id.
        self.strangers = dict[int, Any]()
        #: How often each known variable was changed, by id.
        self.changes = Counter[int]()
        #: The variables whose new values are returned by the compiled function.
        self.changed: list[Any] = []

    def changed_values(self, put_back: set[int]) -> list[Any]:
        """Return the new values of the changed variables, except seeds and those in `put_back`."""
        changed = [number for number in self.changes if number not in put_back and number not in self._seeds]
        self.changed = [self._known[number] for number in changed]
        return [self.state_mapping[number] for number in changed]

    def seeds(self) -> Iterator[tuple[Any, int]]:
        """Yield the seeds that were drawn from, with the number of draws; nothing if none was."""
        return ((self._known[number], many) for number, many in self.changes.items() if number in self._seeds)

    def get_current_value(self, variable: Any) -> Any:
        """Return the variable's value in this scope, None if it has none; note a variable that is not known."""
        if id(variable) not in self._known:
            self.strangers[id(variable)] = variable
        return super().get_current_value(variable)

    def add_update(self, update: Any) -> None:
        """Set the variable's value in this scope, and count the change or note an unknown variable."""
        variable = update[0]
        if id(variable) in self._known:
            self.changes[id(variable)] += 1
        else:
            self.strangers[id(variable)] = variable
        super().add_update(update)


def _go_on(scope: _Noting, after: Sequence[Any]) -> None:
    """Assign what the forward pass changed, and advance the seeds by their draws."""
    for variable, value in zip(scope.changed, after, strict=True):
        variable.assign(value)
    # A seed's state is the seed itself and a counter, of which only the counter moves.
    for seed, many in scope.seeds():
        seed.assign(seed.value + tf.constant([0, many], seed.value.dtype))


def _refuse_synchronized(model: Any) -> None:
    """Raise SettingsError for layers that sum over replicas, if there are several replicas.

    TensorFlow refuses them by itself only if some device is a CPU.
    """
    layers = model._flatten_layers()  # noqa: SLF001 - no public list has those of layers of layers
    named = [layer.path for layer in layers if getattr(layer, "synchronized", False)]
    if named and replica_of_several() is not None:
        raise _exchanging(f"a layer that sums over replicas: {', '.join(named)}")


@contextmanager
def _refusing_exchanges() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise _exchanging(f"a model that sums over replicas: {str(error).splitlines()[0]}") from error


def _exchanging(got: str) -> SettingsError:
    return SettingsError(
        expected="replicas that exchange nothing while they compute, under --xla", got=got, where="--xla",
        remedy="Leave --xla out, or what is synchronized: BatchNormalization(synchronized=True), for example.",
    )  # fmt: skip


def _refuse_bare(variables: Sequence[Any]) -> None:
    """Raise SettingsError for variables that Keras does not know, which cannot be passed in as values.

    The copies that each replica has are exempt.
    """
    named = [variable.name for variable in variables if not getattr(variable, "is_distributed_variable", False)]
    if named:
        raise SettingsError(
            expected="variables of Keras only", got=f"others: {', '.join(named)}", where="--xla",
            remedy="Make them by add_weight of a layer or by keras.Variable, which are saved, too; or leave --xla out.",
        )  # fmt: skip


def _refuse_changed(model: Any, scope: _Noting) -> None:
    """Raise SettingsError for trained variables that the forward pass changes."""
    changed = [variable.path for variable in model.trainable_variables if id(variable) in scope.changes]
    if changed:
        raise SettingsError(
            expected="a model of which only gradients change trained variables", got=f"others: {', '.join(changed)}",
            where="--xla",
            remedy="Leave --xla out, or SpectralNormalization and what else assigns them while it computes.",
        )  # fmt: skip


def _share_of(part: Contribution) -> Contribution:
    """Return this replica's contribution to the all-reduced mean (its own mean if there is no all-reduce)."""
    share = share_of_all(part.weight)
    return part._replace(loss=part.loss * share, gradients=[times(gradient, share) for gradient in part.gradients])
