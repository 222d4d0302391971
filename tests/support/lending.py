"""A placement that lends one model, and the graph of its step, to one run of the training loop after another.

TensorFlow takes longer to trace a step than a short run takes for all else. Each run finds the model, its optimizer
too, as it was before the first step; but it is built, and its step is traced, which are not so in a new one. For
Keras's own `fit`, `tiny_models` lends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_client.training.checkpoints.saved_model import assign_values, plain_value

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lending"]


class Lending:
    """This placement, as loops see it. What has another model, optimizer or setting of XLA needs one of its own."""

    def __init__(self, placement: Any) -> None:
        self._placement = placement
        self._model: Any = None
        self._step: Any = None
        #: What was traced: other runs' loops have a step of their own, which never is.
        self.first_step: Any = None
        self._begun: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._placement, name)

    def model(self, make: Callable[[], Any]) -> Any:
        """The compiled model: made for the first run, and made as it was for later ones."""
        if self._model is None:
            self._model = make()
        if self._begun is not None:
            assign_values(self._variables(), self._begun)
        return self._model

    def compiled(self, step: Any, *, xla: bool, any_shape: bool) -> Any:
        """The first run's step, which its loop counts the traces of."""
        if self._step is None:
            self.first_step, self._step = step, self._placement.compiled(step, xla=xla, any_shape=any_shape)
        return self._step

    def any_element(self, elements: Any) -> Any:
        """The loop has built its model, and has not used it."""
        if self._begun is None:
            self._begun = [plain_value(variable) for variable in self._variables()]
        return self._placement.any_element(elements)

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._model.optimizer.variables]
