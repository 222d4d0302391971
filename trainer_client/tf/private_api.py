"""What we use of TensorFlow that is not public, because nothing public does the same: a Python op, and no tuning.

Two defects of TensorFlow are worked around here, as 2.18 to 2.21 have them:

- It examines each array that a function of `tf.numpy_function` returns: with NumPy 2 it parses NumPy's version each
  time (14 µs an array, of 50 µs for an element of two arrays in all), and enters AutoGraph's context first. It does not
  examine what a function of its eager kind returns, so ours poses as one.
- For each iterator it runs a thread that looks for better settings, less and less often, down to once a minute.
  Destroying an iterator wakes that thread and waits for it. But the thread is woken before the flag that it checks is
  set, so a quick thread misses the flag and sleeps for the rest of its period. Measured with 2.21 on a busy machine: 4
  of 100 iterators took up to 32 s to go, and most of a strategy's iterators, one for each device and epoch, up to 60 s
  (`python -m tests.benchmarks.iterator_ends`). Our pipelines leave nothing to tune.

Rules: a function of `call_python` returns a list of C-contiguous arrays of the right types, and stays alive as long as
TensorFlow's own would: with the graph that calls it, which can keep other things in the same way. It must not know
feeds.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.ops import script_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["call_python", "keep_with_graph", "untune_devices", "untuned"]

_patching = threading.Lock()


class _AsItIs(script_ops.EagerFunc):  # type: ignore[misc] # TensorFlow has no types
    """Calls the function, and returns its result unexamined."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, _device: object, _token: object, args: Sequence[Any]) -> Any:
        return self._function(*args)


def call_python(function: Callable[..., Any], args: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """Return tensors of the arrays that the function returns each time that the graph runs.

    What it raises stops the graph, with an error of TensorFlow's own.
    """
    called = _AsItIs(function)
    keep_with_graph(called)
    # The token is the function's name in TensorFlow's own registry, which refers to it only weakly.
    registry = script_ops._py_funcs  # noqa: SLF001 - as above
    return list(tf.raw_ops.PyFunc(input=args, token=registry.insert(called), Tout=dtypes))


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


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same data set without tuning; options that are set later take precedence."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextlib.contextmanager
def untune_devices() -> Iterator[None]:
    """Make strategies' iterators, which options do not reach, untuned in the block; other threads wait to enter it."""
    with _patching:  # two threads that patch at once would restore each other's patch, for ever
        make = multi_device_iterator_ops._create_device_dataset  # noqa: SLF001

        def make_untuned(*args: Any, **named: Any) -> tf.data.Dataset:
            return untuned(make(*args, **named))

        multi_device_iterator_ops._create_device_dataset = make_untuned  # noqa: SLF001
        try:
            yield
        finally:
            multi_device_iterator_ops._create_device_dataset = make  # noqa: SLF001
