"""The devices of this process for its towers.

Rules: TensorFlow's devices are set up once a process, so ask before anything has used one.
"""

from __future__ import annotations

import tensorflow as tf

from shared.errors import SettingsError

__all__ = ["devices_of_process", "kinds_of", "tower_devices"]


def tower_devices(replicas: int | None) -> tuple[str, ...]:
    """Return the devices of this many towers: GPUs if there are any, by default all of them; else parts of the CPU.

    Raise SettingsError for more towers than GPUs, or without a number if there is no GPU.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if (replicas or 1) > len(gpus):
            raise _refused(f"{len(gpus)} at most, one for each GPU here", str(replicas))
        return tuple(f"GPU:{number}" for number in range(replicas or len(gpus)))
    if replicas is None:
        raise _refused("--replicas, because there is no GPU to count", "none")
    _divide_cpu(replicas)
    return tuple(f"CPU:{number}" for number in range(replicas))


def devices_of_process(replicas: int | None) -> tuple[str, ...]:
    """Return the devices of one process of several: as `tower_devices`, but by default one CPU without a GPU."""
    no_gpu = not tf.config.list_physical_devices("GPU")
    return tower_devices(1 if replicas is None and no_gpu else replicas)


def kinds_of(devices: tuple[str, ...]) -> list[str]:
    """Return the kind of each device, CPU or GPU."""
    return [device.partition(":")[0] for device in devices]


def _divide_cpu(parts: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu) or [None]
    # Left alone if there are enough parts: devices cannot be set up again once anything has used them.
    if len(configured) < parts:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * parts)


def _refused(expected: str, got: str) -> SettingsError:
    return SettingsError(
        expected=expected, got=got, where="--replicas", remedy="--replicas 2 trains two replicas, be it on one CPU."
    )
