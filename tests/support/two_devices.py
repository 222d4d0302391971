"""TensorFlow with two logical CPU devices, which is how several replicas are tested without accelerators.

Import this before anything that starts TensorFlow's runtime.
"""

from __future__ import annotations

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from shared.quick_import import quick_import

with quick_import():
    import tensorflow as tf

__all__ = ["mirrored"]

tf.get_logger().setLevel("ERROR")
_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


@functools.cache
def mirrored() -> tf.distribute.MirroredStrategy:
    """A strategy of two replicas: one a process, because collectives of several are mixed up."""
    return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
