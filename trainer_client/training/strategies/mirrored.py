"""Replicas in one process, each on a device of its own, with a copy of all variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer_client.training.strategies.options import within_process
from trainer_client.training.strategies.replicated import Replicated
from trainer_client.training.strategies.towers.alike import times_phrase
from trainer_client.training.strategies.towers.feeding import kinds_of, refuse_cluster

if TYPE_CHECKING:
    from trainer_client.training.strategies.options import AllReduce

__all__ = ["Mirrored"]


class Mirrored(Replicated):
    """Replicas on these devices, such as CPU:0 and CPU:1.

    Gradients are those of the mean over all rows; with `sums`, that mean times the number of replicas. Raise
    SettingsError if the environment names several processes or a malformed role, or for an all-reduce that these
    devices cannot do.
    """

    def __init__(self, devices: tuple[str, ...], all_reduce: AllReduce = "auto", *, sums: bool = False) -> None:
        refuse_cluster("mirrored")
        taken = within_process(all_reduce, kinds_of(devices))
        strategy = tf.distribute.MirroredStrategy(list(devices), _operations(taken.name))
        super().__init__("mirrored", strategy, sums=sums)
        where = f"{len(devices)} replicas on {', '.join(devices)}"
        self.choice = f"mirrored: {where}; gradients by {taken}{times_phrase(self._times)}"


def _operations(name: AllReduce) -> Any:
    if name == "nccl":
        return tf.distribute.NcclAllReduce()
    if name == "hierarchical":
        return tf.distribute.HierarchicalCopyAllReduce()
    return tf.distribute.ReductionToOneDevice(reduce_to_device=f"/{name}:0")
