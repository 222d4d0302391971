"""Graphs of TensorFlow that do not record where in the code each operation was made.

Recording goes through all frames of Python for each operation. Below pytest there are a hundred, so it takes a tenth of
the time that tracing takes, and a quarter of the memory. An error of TensorFlow names the operation all the same.
"""

from __future__ import annotations

__all__ = ["forget_origins"]


def forget_origins() -> None:
    """Have each operation that is made from now on record this call as its origin; imports TensorFlow."""
    from tensorflow.python.util import tf_stack

    here = tf_stack.extract_stack()[-1:]  # not of no frames: XLA looks at the last one without asking
    tf_stack.extract_stack = lambda stacklevel=1: here
