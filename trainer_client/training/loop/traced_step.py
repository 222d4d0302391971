"""A step as a graph that is called directly.

Rules: what is called with whatever was not traced for is traced then, as a `tf.function` is. It must not know what the
graph computes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["TracedStep"]


class TracedStep:
    """Once it is traced for all shapes, that graph is called without looking for one that fits, which takes TensorFlow
    0.1 ms of each call, and twice that with several replicas.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._graph: Any = None

    def get_concrete_function(self, *specs: Any) -> Any:
        """Trace it, as a `tf.function` would; the graph."""
        graph = self._function.get_concrete_function(*specs)
        if not tf.config.functions_run_eagerly():
            self._graph = graph
        return graph

    def __call__(self, *elements: Any) -> Any:
        """Take it."""
        if self._graph is not None:
            try:
                return self._graph(*elements)
            except TypeError:  # what was asked for does not fit the specs, so nothing has run
                pass
        return self._function(*elements)
