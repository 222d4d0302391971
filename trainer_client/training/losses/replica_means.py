"""The rows that a mean is over: those of all replicas of a step, or of its own replica alone."""

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
    """Take means over each replica's own rows within this context; the caller weights them."""
    before = _ARE_OWN.set(True)
    try:
        yield
    finally:
        _ARE_OWN.reset(before)


def replica_of_several() -> Any:
    """Return the replica's context if means are over the rows of several replicas, else None.

    It is None for a single replica, outside a replica, and within `means_of_own_rows`.
    """
    replica = tf.distribute.get_replica_context()
    return None if _ARE_OWN.get() or replica is None or replica.num_replicas_in_sync == 1 else replica


def share_of_all(weight: Any) -> Any:
    """Return which fraction of the weight of all replicas' rows this weight is, by an all-reduce.

    It is 1 if means are not over the rows of several replicas, and 0 if no replica has any weight.
    """
    replica = replica_of_several()
    if replica is None:
        return 1.0
    return tf.math.divide_no_nan(weight, replica.all_reduce(tf.distribute.ReduceOp.SUM, weight))
