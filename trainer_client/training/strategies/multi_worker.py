"""Replicas in several processes, which exchange gradients by collective operations.

Rules: a process's place is its role in the environment. A request to stop reaches all processes, which stop after the
same step: one that stepped on alone would wait for the others for ever.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import tensorflow as tf

# Not public, but nothing public lets devices be chosen (TensorFlow 2.18 to 2.21).
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

# Not public, but nothing public asks whether another process is there.
from tensorflow.python.eager import context

from shared.errors import LostError, SettingsError
from trainer_client.roles import role
from trainer_client.tf.dataset import ranks_of
from trainer_client.training.strategies.cluster import cluster_resolver
from trainer_client.training.strategies.options import between_processes
from trainer_client.training.strategies.replicated import Replicated
from trainer_client.training.strategies.towers.alike import times_phrase
from trainer_client.training.strategies.towers.feeding import devices_of_process, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from shared.cluster_role import Role
    from trainer_client.feed import Feed
    from trainer_client.training.strategies.options import AllReduce

__all__ = ["ClusterStrategy", "MultiWorker", "refuse_uneven"]


#: How often a wait for other processes checks that they are there, and how long one may take to answer. A busy process
#: answers too, as that takes none of its Python.
_LOOK_EVERY_S = 5.0
_SILENT_MS = 30_000

#: Errors of an exchange whose partner is gone.
_GONE = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

#: Group key of our own exchange, out of the way of those of strategies, which count from 1.
_GROUP = 1 << 30


class MultiWorker(Replicated):
    """One process of a cluster, with `replicas` replicas here: by default one for each GPU, or one.

    All processes have equally many. Gradients are those of the mean over all rows; with `sums`, that mean times the
    number of replicas. Raise SettingsError unless this process is a worker of several with equally many replicas, and
    for devices or an all-reduce that do not fit; RuntimeError if the CPU is in use already and has fewer parts; and
    LostError if another process is lost meanwhile.
    """

    agrees_to_stop = True

    def __init__(self, replicas: int | None = None, all_reduce: AllReduce = "auto", *, sums: bool = False) -> None:
        place = role()
        _refuse_alone(place)
        devices = devices_of_process(replicas)
        taken = between_processes(all_reduce, kinds_of(devices))
        how = tf.distribute.experimental.CommunicationImplementation(taken.name.upper())
        strategy = ClusterStrategy(
            devices,
            cluster_resolver=cluster_resolver(place),
            communication_options=tf.distribute.experimental.CommunicationOptions(implementation=how),
        )
        super().__init__("multi-worker", strategy, sums=sums)
        # Only now: TensorFlow's server, which replaces the handler, was started with the strategy.
        _take_sigterm_back()
        #: When the other processes were last seen to be there.
        self._looked_s = time.monotonic()
        #: All processes of the run, ours too, by the names that TensorFlow's health check takes.
        self._peers = [
            f"/job:{job}/replica:0/task:{at}"
            for job, hosts in place.cluster.items() if job in {"chief", "worker"}
            for at in range(len(hosts))
        ]  # fmt: skip
        # Before anything else is exchanged: a process with fewer replicas would leave the others waiting in a sum.
        with self.exchanging():
            refuse_uneven(len(devices), place.world)
        ranks = ranks_of(self._strategy)
        self.writes = place.is_master
        self.ranks = {"rank": ranks.rank, "replicas": ranks.replicas, "world": ranks.world}
        self.judging = {"rank": place.rank, "world": place.world}
        where = f"process {place.rank} of {place.world}, {ranks.replicas} of {ranks.world} replicas"
        self.choice = f"multi-worker: {where}; gradients by {taken}{times_phrase(self._times)}"

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Hold the scope in which variables are made; new ones have the chief's values in all processes.

        Raise LostError if a process of the run is lost meanwhile.
        """
        with self.exchanging(), super().scope():
            yield

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """Return the feed's batches in rounds; a lost process is noticed while the feed waits for others.

        That wait then raises LostError. Raise SettingsError for keys that batches lack or that do not fit together, or
        in queue mode if batches are made whole; errors of a `map` among the keys are passed on.
        """
        feed._session.watch_others(self.refuse_lost)
        return super().data(feed, keys)

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """Return the pipeline's elements in rounds; a lost process is noticed while the feed waits.

        That wait then raises LostError. Raise SettingsError if the stream is no pipeline or is in queue mode, or if the
        function makes no data set of it or, while that is iterated, too few elements or too many. Other errors of the
        function are passed on.
        """
        feed._session.watch_others(self.refuse_lost)
        return super().pipeline(feed, function)

    def refuse_lost(self) -> None:
        """Raise LostError if a process of the run is gone, or another has taken its place.

        It may be called as often as you like: it looks only every few seconds, and otherwise does nothing.
        """
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            # A failed precondition means here that a process answers, but is not the one that we began with.
            with _naming_the_lost(len(self._peers), (*_GONE, tf.errors.FailedPreconditionError)):
                for peer in self._peers:
                    context.context().check_collective_ops_peer_health(peer, timeout_in_ms=_SILENT_MS)
            self._looked_s = time.monotonic()

    def exchanging(self) -> AbstractContextManager[Any]:
        """Return a context in which TensorFlow's error of a lost process becomes a LostError; others pass."""
        return _naming_the_lost(len(self._peers))

    def heeds(self, *, asked: bool) -> bool:
        """Return whether any process was asked to stop before the last step, which all processes know.

        `asked` is passed on to the others in the next step.
        """
        self.to_stop.asked = asked
        return self.to_stop.by_any


@contextmanager
def _naming_the_lost(processes: int, gone: tuple[type[Exception], ...] = _GONE) -> Iterator[None]:
    """Turn TensorFlow's errors of a lost process into a LostError that quotes them; others pass unchanged."""
    try:
        yield
    except tf.errors.OpError as error:
        # An exchange that was aborted may have another class, and is known by its text.
        if not isinstance(error, gone) and "Collective ops is aborted" not in error.message:
            raise
        reasons = [
            line for line in error.message.splitlines() if line.startswith(("Collective ops", "Additional GRPC"))
        ]
        raise LostError(
            expected=f"all {processes} processes of the run",
            got=" ".join(reasons) or error.message.splitlines()[-1], where="--strategy multi-worker",
            remedy="Start all of them again: they go on from the newest checkpoint.",
        ) from error  # fmt: skip


def _take_sigterm_back() -> None:
    """Install Python's SIGTERM handler again, which TensorFlow's server has replaced by its own.

    Python would otherwise never hear a SIGTERM. Outside the main thread, or if the handler is not Python's, do nothing.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _refuse_alone(place: Role) -> None:
    if place.is_ps or place.is_evaluator or place.world < 2:
        raise SettingsError(
            expected="a worker of a cluster with two or more", got=f"{place.kind} {place.index} of {place.world}",
            where="--strategy multi-worker",
            remedy="Say in TF_CONFIG, or in JOB_NAME, TASK_INDEX and WORKER_HOSTS, who the workers are and which of "
            "them this one is. Parameter servers and evaluators take no part.",
        )  # fmt: skip


class ClusterStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc] # TensorFlow has no types
    """A `MultiWorkerMirroredStrategy` on these devices, such as CPU:0 and CPU:1, of each process.

    TensorFlow itself takes all GPUs, or one CPU. Nothing public gives a process several parts of its CPU, which is how
    a run on machines with several GPUs is tried without any. `how` are TensorFlow's own arguments.
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

    All of them call it, once each has a strategy. TensorFlow's error of a lost process is passed on.
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
