"""TensorFlow's strategy of one process of a cluster, on devices of this process that are chosen here.

Rules: TensorFlow itself takes all GPUs, or one CPU. Nothing public gives a process several parts of its CPU, which is
how a run on machines with several GPUs is tried without any.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import tensorflow as tf

# Not public, but nothing public lets devices be chosen (TensorFlow 2.18 to 2.21).
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from shared.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ClusterStrategy", "refuse_uneven"]

#: Group key of our own exchange, out of the way of those of strategies, which count from 1.
_GROUP = 1 << 30


class ClusterStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc] # TensorFlow has no types
    """A `MultiWorkerMirroredStrategy` on these devices, such as CPU:0 and CPU:1, of each process.

    `how` are TensorFlow's own arguments.
    """

    def __init__(self, devices: Sequence[str], **how: Any) -> None:
        tf.distribute.Strategy.__init__(self, _OnDevices(self, devices, **how))


class _OnDevices(CollectiveAllReduceExtended):  # type: ignore[misc] # as above
    def __init__(self, strategy: ClusterStrategy, devices: Sequence[str], **how: Any) -> None:
        self._chosen = devices
        super().__init__(strategy, **how)

    def _initialize_local_devices(self, _resolver: Any, worker: str) -> tuple[tuple[str, ...], str]:
        """Return the names of the chosen devices in the cluster, and their kind, as TensorFlow asks for."""
        return tuple(f"{worker}/device:{device}" for device in self._chosen), self._chosen[0].partition(":")[0]


def refuse_uneven(replicas: int, processes: int) -> None:
    """Raise SettingsError unless all processes of a run have equally many replicas.

    All of them call it, once each has a strategy.
    """
    counts = _counts_of_all(replicas, processes, 1)
    if len(set(counts)) == 1:
        return
    # Exchange once more, as a barrier: if a process ended before the others have the counts, they would get no answer.
    with suppress(tf.errors.OpError):
        _counts_of_all(replicas, processes, 2)
    raise SettingsError(
        expected="equally many replicas in each process of the run",
        got=", ".join(f"{many} in process {at}" for at, many in enumerate(counts)), where="--replicas",
        remedy="Start all processes with the same --replicas, which cannot be more than the GPUs of any of them.",
    )  # fmt: skip


def _counts_of_all(own: int, processes: int, nth: int) -> list[int]:
    counts: list[int] = tf.raw_ops.CollectiveGatherV2(
        input=tf.constant([own]), group_size=processes, group_key=_GROUP, instance_key=nth, ordering_token=[]
    ).numpy().tolist()  # fmt: skip
    return counts
