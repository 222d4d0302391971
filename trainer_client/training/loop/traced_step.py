"""A step as a graph that is called directly.

Rules: a call with anything that was not traced for is traced then, as by a `tf.function`. It must not know what the
graph computes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["TracedStep"]


class TracedStep:
    """A `tf.function` whose graph, once it is traced for all shapes, is called directly.

    Looking for a graph that fits takes TensorFlow 0.1 ms of each call, and twice that with several replicas.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._graph: Any = None

    def get_concrete_function(self, *specs: Any) -> Any:
        """Trace the function for these specs and return the graph, which later calls use."""
        graph = self._function.get_concrete_function(*specs)
        # A graph that is kept would be called even though the user has functions run eagerly.
        if not tf.config.functions_run_eagerly():
            self._graph = graph
        return graph

    def __call__(self, *elements: Any) -> Any:
        """Take the step, by the graph if the elements fit it."""
        if self._graph is not None:
            try:
                return self._graph(*elements)
            except TypeError:  # the elements do not fit the specs, so nothing has run
                pass
        return self._function(*elements)
