"""An optimizer's variables by what they belong to: those of each variable that it trains, and those of none.

Rules: every optimizer makes a variable's state by `add_variable_from_reference`, so watching that call tells which
belongs to which. The order does not depend on which other variables are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OptimizerVariables"]


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
