"""Whether a mean is over the rows of all replicas of a step, or over those of its own replica."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["means_of_own_rows", "replica_of_several", "share_of_all"]

_ARE_OWN: ContextVar[bool] = ContextVar("means_of_own_rows", default=False)


@contextmanager
def means_of_own_rows() -> Iterator[None]:
    """Within it means are those of each replica's own rows, and whoever asked for that weighs them."""
    before = _ARE_OWN.set(True)
    try:
        yield
    finally:
        _ARE_OWN.reset(before)


def replica_of_several() -> Any:
    """The replica's context if means are over the rows of several; else None."""
    replica = tf.distribute.get_replica_context()
    return None if _ARE_OWN.get() or replica is None or replica.num_replicas_in_sync == 1 else replica


def share_of_all(weight: Any) -> Any:
    """How much of the weight of all replicas' rows this is, which one replica's rows have; all of it, if means are not
    over the rows of several.
    """
    replica = replica_of_several()
    if replica is None:
        return 1.0
    return tf.math.divide_no_nan(weight, replica.all_reduce(tf.distribute.ReduceOp.SUM, weight))
