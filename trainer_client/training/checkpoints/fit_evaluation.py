"""The evaluation that `fit` makes by itself, of `validation_data=`, if the job is ended meanwhile.

Rules: the epoch then has no values of it, rather than those of a part. TensorFlow passes on an error's words and not
the error, so it is recognised by its name in them. An `evaluate` that a user calls raises the error as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import EndedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FitEvaluation"]

_NAME = f"{EndedError.__module__}.{EndedError.__qualname__}:"
#: The argument with which Keras's `fit` evaluates an epoch.
_OF_FIT = "_use_cached_eval_dataset"


class FitEvaluation:
    """A stand-in for a model's `evaluate` from `install` to `remove`; calls `on_ended` if the job is ended."""

    def __init__(self, model: Any, on_ended: Callable[[], None]) -> None:
        self._model = model
        self._on_ended = on_ended
        self._evaluate: Callable[..., Any] = model.evaluate

    def install(self) -> None:
        """Put this in place of the model's `evaluate`, or of a stand-in that a failed `fit` left there."""
        if isinstance(self._evaluate, FitEvaluation):
            self._evaluate = self._evaluate._evaluate  # noqa: SLF001 - another of this class
        self._model.evaluate = self

    def remove(self) -> None:
        """Give the model its own `evaluate` back."""
        if self._model.evaluate is self:
            self._model.evaluate = self._evaluate

    def __call__(self, *data: Any, **how: Any) -> Any:
        """Evaluate; if the job is ended while `fit` evaluates, call `on_ended` and return no values."""
        try:
            return self._evaluate(*data, **how)
        except (EndedError, tf.errors.OpError) as error:
            if not how.get(_OF_FIT) or not (isinstance(error, EndedError) or _NAME in str(error)):
                raise
        self._on_ended()
        return {}
