"""Steps of rounds: one batch, or element of a user's pipeline, for each replica of this process, on its device.

Rules: the batches of a round are consecutive in the plan, so they have one shape; elements of a pipeline are
consecutive too, and of any shapes. Each batch that comes in makes one element: otherwise steps would not be rounds, and
processes of a run would wait for each other for ever. TensorFlow's devices are set up once a process, so ask for them
before anything has used one. It must not know what is done with a round.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.cluster_role import has_place
from shared.errors import SettingsError
from trainer_client.roles import role
from trainer_client.tf.dataset import make
from trainer_client.tf.element_structure import ElementStructure
from trainer_client.tf.pipelines.pipeline import PipelineElements
from trainer_client.training.loop.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainer_client.feed import Feed

__all__ = [
    "InRounds", "PipelineRounds", "Rounds", "devices_of_process", "kinds_of", "put", "refuse_cluster", "tower_devices",
]  # fmt: skip


class InRounds(Placement):
    """The common part of strategies with several replicas in this process, each on a device of its own.

    Replicas take consecutive ranks. What they share, and how their gradients come together, is up to each strategy.
    """

    def __init__(self, name: str, devices: Sequence[str]) -> None:
        self._name, self._devices = name, tuple(devices)
        self.ranks = {"rank": 0, "replicas": len(devices), "world": len(devices)}
        self.judging = {"rank": 0}

    def refuse_other_world(self, feed: Feed) -> None:
        """Raise SettingsError for a stream in queue mode, or a feed with other ranks than our replicas."""
        session, replicas, world = feed._session, self.ranks["replicas"], self.ranks["world"]
        session.cursor.refuse_queue(
            SettingsError(
                expected='mode = "lockstep"', got=f'{session.spec.stream}, of mode = "queue"',
                where=f"--strategy {self._name}",
                remedy="Train on another stream, or with --strategy single, which takes leases.",
            )
        )  # fmt: skip
        if (session.ranks.replicas, session.ranks.world) != (replicas, world):
            raise SettingsError(
                expected=f"a feed of {replicas} of {world} ranks, one for each replica",
                got=f"one of {session.ranks.replicas} of {session.ranks.world}", where=f"--strategy {self._name}",
                remedy="Connect with the placement's ranks: connect(..., **placement.ranks).",
            )  # fmt: skip

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """Return the feed's batches in rounds: one batch for each replica of this process.

        Raise SettingsError for keys that batches lack or that do not fit together, or in queue mode if batches are made
        whole. Errors of a `map` among the keys are passed on.
        """
        return Rounds(feed, keys, self._devices, self._together)

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """Return the elements of a user's pipeline in rounds: one for each replica of this process.

        Raise SettingsError if the stream is no pipeline or is in queue mode, or if the function makes no data set of
        it; iterating raises it if the pipeline yields fewer elements than batches, or more. Other errors of the
        function are passed on.
        """
        return PipelineRounds(feed, function, self._devices, self._together)

    def for_all(self, element: Any) -> Any:
        """Return a step's element in which each replica here has this element."""
        return self._together([element] * len(self._devices))

    def _together(self, elements: Sequence[Any]) -> Any:
        """Return a step's element, made of one element for each replica here.

        Each strategy has its own; here it raises NotImplementedError.
        """
        raise NotImplementedError


class Rounds:
    """Rounds from the cursor to the end of its epoch, each time they are iterated.

    `together` makes one element of those of all replicas here. The next rounds are put on their devices while a step
    computes. Raise SettingsError for keys that batches lack or that do not fit together, or in queue mode if batches
    are made whole; errors of a `map` among the keys are passed on.
    """

    def __init__(
        self, feed: Feed, keys: dict[str, Any], devices: Sequence[str], together: Callable[[list[Any]], Any]
    ) -> None:
        self._data = make(feed._session, ElementStructure(**keys), in_rounds=True)
        self._devices, self._together = devices, together
        self.element_spec = self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        # A thread of ours puts rounds on their devices: TensorFlow's own iterator for several devices took 0.4 to
        # 0.7 ms of the loop's CPU a round, where this takes 0.03 ms.
        return self._data.staged(self._make)

    def _make(self, take: Callable[[], Any]) -> Any:
        """Return the next round, of batches that `take` returns; its errors pass, StopIteration at the epoch's end."""
        # The epoch ends at the first `take` of a round. It stands outside the generator, in which its StopIteration
        # would become a RuntimeError.
        batches = (take(), *(take() for _ in self._devices[1:]))
        return self._together([put(batch, on) for batch, on in zip(batches, self._devices, strict=True)])


class PipelineRounds:
    """Rounds of a user's pipeline, from the cursor to the end of its epoch, each time they are iterated.

    Raise SettingsError if the stream is no pipeline or is in queue mode, if the function makes no data set of it, or,
    while they are iterated, unless it yields an element for each batch. Other errors of the function are passed on.
    """

    def __init__(
        self, feed: Feed, function: Callable[[Any], Any], devices: Sequence[str], together: Callable[[list[Any]], Any]
    ) -> None:
        # On the CPU: `put` moves each element to its device, which only its place in the round tells.
        self._elements = PipelineElements(feed._session, function, "CPU:0", in_rounds=True)
        self._devices, self._together = devices, together
        self.element_spec = self._elements.element_spec

    def __iter__(self) -> Iterator[Any]:
        elements = iter(self._elements)
        # The same iterator for each device, so that a round has consecutive elements; `strict` refuses one cut short.
        for round_elements in zip(*[elements for _ in self._devices], strict=True):
            yield self._together([put(element, on) for element, on in zip(round_elements, self._devices, strict=True)])


def put(element: Any, device: str) -> Any:
    """Return the element, a nest of tensors, with each tensor on this device, but for strings, which stay on the host.

    Errors of TensorFlow pass through.
    """
    with tf.device(device):
        return tf.nest.map_structure(lambda leaf: leaf if leaf.dtype == tf.string else tf.identity(leaf), element)


def refuse_cluster(strategy: str) -> None:
    """Raise SettingsError if the environment names several processes, as they would exchange no gradients.

    Raise it as well if the values there do not fit together.
    """
    if has_place(os.environ) and role().world > 1:
        raise SettingsError(
            expected="one process", got=f"one of {role().world}, as the environment says",
            where=f"--strategy {strategy}",
            remedy="Take --strategy multi-worker, or unset TF_CONFIG and JOB_NAME: each of these processes would train "
            "a model of its own.",
        )  # fmt: skip


# --- the devices of this process ---


def tower_devices(replicas: int | None) -> tuple[str, ...]:
    """Return the devices of this many towers: GPUs if there are any, by default all of them; else parts of the CPU.

    Names are such as GPU:0. Raise SettingsError for more towers than GPUs, or without a number if there is no GPU, and
    RuntimeError if the CPU is in use already and has fewer parts.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        count = replicas or len(gpus)
        if count > len(gpus):
            raise _refused(f"{len(gpus)} at most, one for each GPU here", str(replicas))
        return tuple(f"GPU:{number}" for number in range(count))
    if replicas is None:
        raise _refused("--replicas, because there is no GPU to count", "none")
    _divide_cpu(replicas)
    return tuple(f"CPU:{number}" for number in range(replicas))


def devices_of_process(replicas: int | None) -> tuple[str, ...]:
    """Return the devices of one process of several: as `tower_devices`, but by default one CPU without a GPU.

    Raise SettingsError for more towers than GPUs, if there are any, and RuntimeError if the CPU is in use already and
    has fewer parts.
    """
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
