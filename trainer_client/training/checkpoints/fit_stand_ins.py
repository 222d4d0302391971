"""What `FeedCheckpoint` puts into `fit` in the place of Keras's own: an iterator that counts, and an `evaluate`.

Rules: a step is done when the next batch is asked for, or when the train function has returned. An epoch has no values
of an evaluation that the end of the job broke off, rather than those of a part. TensorFlow wraps what a feed raises, or
passes on an error's words only: so the error is taken from the session, or recognised by its name in them. Keras is not
needed here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.errors import EndedError, SettingsError
from trainer_client.tf import ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.session.feed_session import FeedSession

__all__ = ["CountedBatches", "EpochTimes", "FitEvaluation", "StopWatch", "check_keras"]

_NAME = f"{EndedError.__module__}.{EndedError.__qualname__}:"
#: The argument with which Keras's `fit` evaluates an epoch.
_OF_FIT = "_use_cached_eval_dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTimes:
    """The time of an epoch, divided into waiting for data and computing."""

    steps: int
    wait_s: float
    compute_s: float


class StopWatch:
    """A clock that adds up waiting; the rest of the time counts as computing."""

    def __init__(self) -> None:
        self.steps = 0
        self.wait_s = 0.0
        self._began_s = time.perf_counter()

    def times(self) -> EpochTimes:
        """Return the steps so far, the seconds of waiting, and the other seconds, which count as computing."""
        return EpochTimes(
            steps=self.steps, wait_s=self.wait_s, compute_s=time.perf_counter() - self._began_s - self.wait_s
        )


class CountedBatches:
    """An iterator that times the wait for each batch, and counts the batch as trained on.

    It counts when the next batch is asked for, or at `finish`. It stops when the job is ended; other errors of the feed
    are passed on.
    """

    def __init__(self, iterator: Iterator[Any], session: FeedSession, watch: StopWatch) -> None:
        self.count = 0
        #: Whether it stopped because the job was ended.
        self.ended = False
        self._iterator = iterator
        self._session = session
        self._watch = watch
        #: Whether the last batch is in training: it counts only once its step is done.
        self._in_step = False
        self._step_began_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        # Keras asks for a batch only when the step before is done; what it read ahead lies below, in the dataset.
        self.finish()
        began_s = time.perf_counter()
        try:
            batch = self._wait_next()
        except EndedError:
            self.ended = True
            raise StopIteration from None
        wait_s = time.perf_counter() - began_s
        self._watch.wait_s += wait_s
        self._session.count_step_wait(wait_s)
        self._in_step, self._step_began_s = True, time.perf_counter()
        return batch

    def finish(self) -> None:
        """Count the last batch, if any, and its step's time as trained on, unless it is counted already.

        Raise LostError if no worker says how many batches the epoch has, and the error of a feed that fails or is
        closed.
        """
        if self._in_step:
            self._in_step = False
            self.count += 1
            self._watch.steps += 1
            self._session.cursor.count(1)
            self._session.accounts.count_phase("step", time.perf_counter() - self._step_began_s)

    def _wait_next(self) -> Any:
        try:
            return next(self._iterator)
        except (tf.errors.OpError, RuntimeError):
            # TensorFlow wraps whatever the feed raised; the session has the error itself.
            ctrl_c.raise_pending()
            error = self._session.error or self._session.ended
            if error is None:
                raise
            raise error from None


class FitEvaluation:
    """A stand-in for a model's `evaluate` from `install` to `remove`; calls `on_ended` if the job is ended.

    An `evaluate` that a user calls raises the error as it is.
    """

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
        """Give the model its own `evaluate` back, unless another object has taken our place."""
        if self._model.evaluate is self:
            self._model.evaluate = self._evaluate

    def __call__(self, *data: Any, **how: Any) -> Any:
        """Evaluate; if the job is ended while `fit` evaluates, call `on_ended` and return no values.

        Any other error, and the job's end in an `evaluate` that a user calls, is raised as it is.
        """
        # No values rather than those of a part: early stopping would go by them, and a checkpoint keep them.
        try:
            return self._evaluate(*data, **how)
        except (EndedError, tf.errors.OpError) as error:
            if not how.get(_OF_FIT) or not (isinstance(error, EndedError) or _NAME in str(error)):
                raise
        self._on_ended()
        return {}


def check_keras(version: str) -> None:
    """Raise SettingsError for a Keras before 3.7.

    There, a train function that is given a Python iterator would train on its first batch over and over.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < (3, 7):
        raise SettingsError(expected="Keras 3.7 or later", got=version, where="FeedCheckpoint", remedy="Upgrade keras.")
