"""Op that calls a Python function, like `tf.numpy_function`, for functions that return arrays and are called often.

TensorFlow examines each array that such a function returns: with NumPy 2 it parses NumPy's version each time (14 µs an
array, of 50 µs for an element of two arrays in all), and enters AutoGraph's context first. It does not examine what a
function of its eager kind returns, so ours poses as one.

Rules: the function returns a list of C-contiguous arrays of the right types, and stays alive as long as TensorFlow's
own would: with the graph that calls it, which can keep other things in the same way. It must not know feeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

# Not public; as 2.21 has it.
from tensorflow.python.ops import script_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["call_python", "keep_with_graph"]


class _AsItIs(script_ops.EagerFunc):  # type: ignore[misc] # TensorFlow has no types
    """Calls the function, and returns its result unexamined."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, _device: object, _token: object, args: Sequence[Any]) -> Any:
        return self._function(*args)


def call_python(function: Callable[..., Any], args: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Return tensors of the arrays that the function returns each time that the graph runs."""
    called = _AsItIs(function)
    keep_with_graph(called)
    token = script_ops._py_funcs.insert(called)  # noqa: SLF001 - as above
    return list(tf.raw_ops.PyFunc(input=args, token=token, Tout=dtypes))


def keep_with_graph(used: object) -> None:
    """Keep an object alive with the outermost graph that is being made; do nothing in eager mode.

    TensorFlow holds only weak references to what a graph uses, and code that runs the graph may hold nothing else of
    it.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) not in {None, graph}:
        graph = graph.outer_graph
    kept = getattr(graph, "_py_funcs_used_in_graph", None)
    if kept is None:
        kept = graph._py_funcs_used_in_graph = []  # noqa: SLF001 - as TensorFlow does
    kept.append(used)
