"""Pipelines that TensorFlow does not tune: there is nothing to tune in ours, and its tuning stalls whoever ends them.

For each iterator TensorFlow runs a thread that looks for better settings, more and more seldom, at last once a minute.
Who destroys an iterator wakes that thread and waits for it; but it is woken before the flag that it looks at is set,
and if it is quicker it sleeps on for the rest of its period. Measured with 2.21 on a busy machine: 4 of 100 iterators
took up to 32 s to go, and most of those of a strategy, one for each device and epoch, up to 60 s
(`python -m tests.benchmarks.iterator_ends`). It must not know feeds.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

# Not public; the same in 2.18 and 2.21.
from tensorflow.python.data.ops import multi_device_iterator_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["untune_devices", "untuned"]

_patching = threading.Lock()


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same elements; options that are given later prevail."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextlib.contextmanager
def untune_devices() -> Iterator[None]:
    """Meanwhile iterators over the devices of a strategy are made: it gives theirs no options of the dataset."""
    with _patching:
        made = multi_device_iterator_ops._create_device_dataset  # noqa: SLF001

        def made_untuned(*args: Any, **named: Any) -> tf.data.Dataset:  # noqa: ANN401 - TensorFlow's
            return untuned(made(*args, **named))

        multi_device_iterator_ops._create_device_dataset = made_untuned  # noqa: SLF001
        try:
            yield
        finally:
            multi_device_iterator_ops._create_device_dataset = made  # noqa: SLF001
