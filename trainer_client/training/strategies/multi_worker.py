"""Replicas in several processes, which exchange gradients by collective operations.

Rules: a process's place is its role in the environment. What one process is told, to stop for example, all do after the
same step, because one that stepped on alone would wait for the others for ever.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

# Not public, but nothing public asks whether another process is there.
from tensorflow.python.eager import context

from shared.errors import LostError, SettingsError
from trainer_client.roles import role
from trainer_client.tf.dataset import ranks_of
from trainer_client.training.strategies.choosing.all_reduce import between_processes
from trainer_client.training.strategies.cluster import cluster_resolver
from trainer_client.training.strategies.replicated import Replicated
from trainer_client.training.strategies.towers.cluster_strategy import ClusterStrategy, refuse_uneven
from trainer_client.training.strategies.towers.devices import devices_of_process, kinds_of
from trainer_client.training.strategies.towers.gradients import times_phrase
from trainer_client.training.strategies.worlds import refuse_other_world, refuse_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from shared.roles import Role
    from trainer_client.feed import Feed
    from trainer_client.training.strategies.choosing.all_reduce import AllReduce

__all__ = ["MultiWorker"]


class MultiWorker(Replicated):
    """One process of a cluster, with `replicas` replicas here: by default one for each GPU, or one.

    All processes have equally many. Gradients are those of the mean over all rows; with `sums`, that mean times the
    number of replicas.
    """

    agrees_to_stop = True

    def __init__(self, replicas: int | None = None, all_reduce: AllReduce = "auto", *, sums: bool = False) -> None:
        place = role()
        _refuse_alone(place)
        devices = devices_of_process(replicas)
        taken = between_processes(all_reduce, kinds_of(devices))
        how = tf.distribute.experimental.CommunicationImplementation(taken.name.upper())
        super().__init__(
            ClusterStrategy(
                devices,
                cluster_resolver=cluster_resolver(place),
                communication_options=tf.distribute.experimental.CommunicationOptions(implementation=how),
            ),
            sums=sums,
        )
        # Only now: TensorFlow's server, which replaces the handler, was started with the strategy.
        _take_sigterm_back()
        self._looked_s = time.monotonic()
        self._peers = [
            f"/job:{job}/replica:0/task:{at}"
            for job, hosts in place.cluster.items() if job in {"chief", "worker"}
            for at in range(len(hosts))
        ]  # fmt: skip
        with self.exchanging():
            refuse_uneven(len(devices), place.world)
        ranks = ranks_of(self._strategy)
        self.writes = place.is_master
        self.ranks = {"rank": ranks.rank, "replicas": ranks.replicas, "world": ranks.world}
        self.judging = {"rank": place.rank, "world": place.world}
        where = f"process {place.rank} of {place.world}, {ranks.replicas} of {ranks.world} replicas"
        self.choice = f"multi-worker: {where}; gradients by {taken}{times_phrase(self._times)}"

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which variables are made; new ones have the chief's values in all processes."""
        stack = ExitStack()
        stack.enter_context(self.exchanging())
        stack.enter_context(super().scope())
        return stack

    def data(self, feed: Feed, keys: dict[str, Any]) -> Iterable[Any]:
        """Return the feed's batches in rounds; a lost process is noticed while the feed waits for others."""
        feed._session.watch_others(self.refuse_lost)
        return super().data(feed, keys)

    def pipeline(self, feed: Feed, function: Callable[[Any], Any]) -> Iterable[Any]:
        """Return the pipeline's elements in rounds; a lost process is noticed while the feed waits."""
        feed._session.watch_others(self.refuse_lost)
        return super().pipeline(feed, function)

    def refuse_lost(self) -> None:
        """Raise LostError if a process of the run is gone, or another has taken its place.

        It may be called as often as you like: it looks only every few seconds.
        """
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            # A failed precondition means here that a process answers, but is not the one that we began with.
            with _naming_the_lost(len(self._peers), (*_GONE, tf.errors.FailedPreconditionError)):
                for peer in self._peers:
                    context.context().check_collective_ops_peer_health(peer, timeout_in_ms=_SILENT_MS)
            self._looked_s = time.monotonic()

    def exchanging(self) -> AbstractContextManager[Any]:
        """Return a context in which the error of a partner's death becomes a LostError."""
        return _naming_the_lost(len(self._peers))

    def heeds(self, *, asked: bool) -> bool:
        """Return whether any process was asked to stop before the last step, which all processes know.

        `asked` is passed on to the others in the next step.
        """
        self.to_stop.asked = asked
        return self.to_stop.by_any

    def refuse_other_world(self, feed: Feed) -> None:
        """Raise SettingsError for a stream in queue mode, or a feed with other ranks than our replicas."""
        refuse_queue(feed, "multi-worker")
        refuse_other_world(feed, "multi-worker", replicas=self.ranks["replicas"], world=self.ranks["world"])


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

    Python would otherwise never hear a SIGTERM.
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
