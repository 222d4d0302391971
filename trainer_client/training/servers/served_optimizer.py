"""An optimizer whose steps servers take: its variables by what they belong to, and the changes that callbacks may make.

Rules: servers have optimizers of their own, of which only the learning rate follows the chief's. A change of anything
else would have no effect, so it is refused, by its name. Configurations are compared, so a setting that an optimizer
leaves out of its own is not noticed. The order of variables does not depend on which others are trained. It must not
know servers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OptimizerSettings", "OptimizerVariables"]

_RATE = "learning_rate"


class OptimizerVariables:
    """The variables of an optimizer, which is built here for these model variables.

    Raise SettingsError if it is built already.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if optimizer.built:
            raise SettingsError(
                expected="an optimizer that is not built", got="one that is", where="--model, optimizer",
                remedy="Return a new one, and leave build() to the training loop.",
            )  # fmt: skip
        #: The state of each variable, in the order in which the optimizer made it.
        self.of_each: list[list[Any]] = [[] for _ in variables]
        # Every optimizer makes a variable's state by this method, so watching its calls tells which belongs to which:
        # nothing public does.
        places = {id(variable): at for at, variable in enumerate(variables)}
        make = optimizer.add_variable_from_reference

        def watched(reference_variable: Any, *arguments: Any, **named: Any) -> Any:
            made = make(reference_variable, *arguments, **named)
            if id(reference_variable) in places:
                self.of_each[places[id(reference_variable)]].append(made)
            return made

        optimizer.add_variable_from_reference = watched
        optimizer.build(list(variables))
        optimizer.add_variable_from_reference = make
        theirs = {id(variable) for state in self.of_each for variable in state}
        #: State that belongs to no variable, such as the count of steps.
        self.common = [variable for variable in optimizer.variables if id(variable) not in theirs]

    def copies(self) -> int:
        """Return how many values there are at most for each number of a variable, its own included."""
        return 1 + max((len(state) for state in self.of_each), default=0)

    def can_be_cut(self, at: int, shape: tuple[int, ...]) -> bool:
        """Return whether all state of this variable has its shape, so that rows can be updated apart."""
        return all(tuple(variable.shape) == shape for variable in self.of_each[at])


class OptimizerSettings:
    """The settings of a model's optimizer as they are now, which `refuse_changes` compares with later ones."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._optimizer = model.optimizer
        #: Where the learning rate comes from: a variable, a schedule, or a function.
        self._source = self._optimizer._learning_rate  # noqa: SLF001 - `learning_rate` is its value
        #: Whether the rate is a plain number, which callbacks may set.
        self._is_settable = isinstance(self._source, keras.Variable)
        self._config = self._read_config()

    def rate(self) -> float | None:
        """Return the learning rate; None if it is a schedule's, which counts the servers' steps by itself."""
        return float(self._source.numpy()) if self._is_settable else None

    def steps(self) -> int:
        """Return how many steps the optimizer has counted."""
        return int(self._optimizer._iterations.numpy())  # noqa: SLF001 - `iterations` is a quotient while gradients accumulate

    def refuse_changes(self, steps: int) -> None:
        """Raise SettingsError if anything but the learning rate has changed; `steps` is the expected count."""
        if self._model.optimizer is not self._optimizer:
            raise _changed(
                "the optimizer", type(self._optimizer).__name__, f"another {type(self._model.optimizer).__name__}"
            )
        source = self._optimizer._learning_rate  # noqa: SLF001 - as above
        if source is not self._source:
            raise _changed(_RATE, _kind(self._source), _kind(source))
        if self.steps() != steps:
            raise _changed("iterations", steps, self.steps())
        config = self._read_config()
        for name in sorted(self._config.keys() | config.keys()):
            before, now = self._config.get(name), config.get(name)
            if repr(before) != repr(now):
                raise _changed(name, before, now)
        rate = self.rate()
        if rate is not None and not math.isfinite(rate):
            raise _changed(_RATE, "a finite number", rate)

    def _read_config(self) -> dict[str, Any]:
        try:
            config: dict[str, Any] = self._optimizer.get_config()
        except NotImplementedError:  # of a schedule that cannot be saved: what is plain is compared
            plain = int | float | str | bool | None
            config = {name: value for name, value in vars(self._optimizer).items() if isinstance(value, plain)}
        if self._is_settable:
            config.pop(_RATE, None)
        return config


def _kind(source: Any) -> str:
    return "a number" if isinstance(source, keras.Variable) else f"a {type(source).__name__}"


def _changed(name: str, before: object, now: object) -> SettingsError:
    was, got = (str(value)[:100] for value in (before, now))
    return SettingsError(
        expected="callbacks that change nothing of the optimizer but its learning rate, to another number",
        got=f"{name} changed from {was} to {got}", where="--strategy parameter-server",
        remedy="Servers have optimizers of their own: give it the module's `optimizer` from the beginning.",
    )  # fmt: skip
