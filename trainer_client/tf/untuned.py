"""Pipelines without TensorFlow's tuning: ours leave nothing to tune, and tuning can stall their end.

For each iterator TensorFlow runs a thread that looks for better settings, less and less often, down to once a minute.
Destroying an iterator wakes that thread and waits for it. But the thread is woken before the flag that it checks is
set, so a quick thread misses the flag and sleeps for the rest of its period. Measured with 2.21 on a busy machine: 4 of
100 iterators took up to 32 s to go, and most of a strategy's iterators, one for each device and epoch, up to 60 s
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
    """Return the same data set without tuning; options that are set later take precedence."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextlib.contextmanager
def untune_devices() -> Iterator[None]:
    """Make a strategy's iterators untuned inside the block: it does not pass them the dataset's options."""
    with _patching:
        made = multi_device_iterator_ops._create_device_dataset  # noqa: SLF001

        def made_untuned(*args: Any, **named: Any) -> tf.data.Dataset:
            return untuned(made(*args, **named))

        multi_device_iterator_ops._create_device_dataset = made_untuned  # noqa: SLF001
        try:
            yield
        finally:
            multi_device_iterator_ops._create_device_dataset = made  # noqa: SLF001
