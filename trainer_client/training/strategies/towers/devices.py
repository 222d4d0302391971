"""The devices of this process that towers are on.

Rules: TensorFlow's devices are set up once a process, so ask before anything has used one.
"""

from __future__ import annotations

import tensorflow as tf

from shared.errors import SettingsError

__all__ = ["devices_of_process", "kinds_of", "tower_devices"]


def tower_devices(replicas: int | None) -> tuple[str, ...]:
    """The devices of so many towers: GPUs where there are any, by default all of them; else parts of the CPU."""
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
    """The same for one process of several: by default the CPU where there is no GPU."""
    no_gpu = not tf.config.list_physical_devices("GPU")
    return tower_devices(1 if replicas is None and no_gpu else replicas)


def kinds_of(devices: tuple[str, ...]) -> list[str]:
    """CPU or GPU, for each."""
    return [one.partition(":")[0] for one in devices]


def _divide_cpu(parts: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpu) or [None]
    if len(configured) < parts:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * parts)


def _refused(expected: str, got: str) -> SettingsError:
    return SettingsError(
        expected=expected, got=got, where="--replicas", remedy="--replicas 2 trains two replicas, be it on one CPU."
    )
