"""What users call: `connect(...)` gives a `Feed`; iterating it gives numpy minibatches, `dataset()` gives them to
TensorFlow.

Rules: the cursor moves by what was trained on, never by what was read. An iterator starts at the cursor; `trained(n)`
moves it, and so does reading an iterator to its end if `trained` was not called meanwhile. This module is only the face
of a feed, and the room `session` holds what is behind it. It imports TensorFlow only when asked for a dataset.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Self

from shared.errors import SettingsError
from shared.keys import ClientKeys
from shared.memory import boot_id
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Ranks
from trainer_client.core.workers.connections import MOST_REMOTE
from trainer_client.network.receiver import ReceiverSettings, trainer_name
from trainer_client.roles import ranks_said
from trainer_client.session.elastic_member import ElasticMember
from trainer_client.session.feed_session import FeedSession, MetricsSettings
from trainer_client.session.lease_account import only_in_queue
from trainer_client.session.shared_results import refuse_what_cannot_be_told
from trainer_client.tf.element_structure import ElementStructure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    import tensorflow as tf

    from shared.wire.layout import BucketShape
    from trainer_client.batch import Batch
    from trainer_client.session.batch_iterator import BatchIterator
    from trainer_client.tf.element_structure import Keys

__all__ = ["Feed", "Reading", "connect"]


def connect(  # noqa: PLR0913 - the one door for users: each is a keyword with a default
    endpoint: str,
    *,
    stream: str = "train",
    job: str = "",
    rank: int | None = None,
    replicas: int = 1,
    world: int = 0,
    strategy: tf.distribute.Strategy | None = None,
    work: Literal["", "train", "evaluate", "predict"] = "",
    epochs: int | None = None,
    elastic: tuple[int, int] | None = None,
    prefetch: int | None = None,
    prefetch_bytes: int = 2**30,
    shared_memory: bool = True,
    verify: bool = False,
    workers: int = 16,
    keys: str = "",
    connect_timeout_s: float | None = None,
    lost_timeout_s: float = 60.0,
    metrics_port: int | None = None,
    metrics_targets: str | Path | None = None,
) -> Feed:
    """Attach to a stream of a running job.

    `rank` of `world` is this trainer's place in a data-parallel job, and `replicas` how many consecutive ranks it
    occupies; a `strategy` fills in all three. Without either, the place is that of the `role()` which the environment
    says, if it says one. With `elastic`, how many trainers there are at least and at most, the coordinator gives them
    their places, and the feed ends with a `WorldChangedError` when trainers come or go (see `run_elastic`). A stream in
    queue mode has no ranks: there `work` says what is done with its batches (to train, or to evaluate where the stream
    is for that), and `epochs` how many the training has in all: so the last one is waited for. `prefetch` batches a
    replica are asked for ahead (8; up to 32 if they are small), within `prefetch_bytes` of buffers. The feed talks to
    all workers on its own host, and to `workers` on other hosts. `connect_timeout_s` is how long to wait for the job (a
    minute), or for enough trainers (ten). With a `metrics_port` (0: any free one) it serves its metrics to Prometheus
    on loopback, and announces the port in a file in the folder `metrics_targets`.
    """
    if strategy is not None:
        from trainer_client.tf.dataset import ranks_of  # noqa: PLC0415 - TensorFlow only when it is used

        ranks = ranks_of(strategy)
    elif elastic is not None:
        ranks = Ranks(rank=rank or 0, replicas=replicas, world=world or replicas)
    else:
        ranks = ranks_said(rank, replicas, world)
    _refuse_nonsense(ranks, prefetch, workers)
    settings = ReceiverSettings(
        core=CoreSettings(
            job=job,
            stream=stream,
            ranks=ranks,
            incarnation=secrets.randbits(63),
            name=trainer_name(),
            boot_id=boot_id(),
            work=work,
            epochs=epochs,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            shared_memory=shared_memory,
            verify=verify,
            workers=workers,
            lost_timeout_s=lost_timeout_s,
        ),
        endpoint=endpoint,
        coordinator_keys=ClientKeys.read(keys, "trainer", to="coordinator") if keys else None,
        worker_keys=ClientKeys.read(keys, "trainer", to="worker") if keys else None,
        connect_timeout_s=connect_timeout_s or (_USUAL_PATIENCE_S if elastic is None else _ELASTIC_PATIENCE_S),
    )
    metrics = MetricsSettings(port=metrics_port, targets=metrics_targets)
    if elastic is None:
        return Feed(FeedSession(settings, metrics))
    _refuse_fixed_places(ranks, rank, elastic)
    return Feed(ElasticMember(*elastic).join(settings, metrics))


#: How long to wait for a job, and for enough trainers of an elastic world.
_USUAL_PATIENCE_S, _ELASTIC_PATIENCE_S = 60.0, 600.0


#: Prefetching more than this takes memory and gains nothing.
_MOST_PREFETCH = 1024

#: What a message can say.
_MOST_RANKS = 4096


def _refuse_nonsense(ranks: Ranks, prefetch: int | None, workers: int) -> None:
    if not 0 <= ranks.rank <= ranks.world - ranks.replicas or ranks.replicas < 1:
        got = f"rank {ranks.rank}, replicas {ranks.replicas}, world {ranks.world}"
        raise _nonsense("rank >= 0 and rank + replicas <= world", got, "Ranks count from 0; world counts all ranks.")
    if prefetch is not None and not 1 <= prefetch <= _MOST_PREFETCH:
        raise _nonsense(f"prefetch from 1 to {_MOST_PREFETCH}", str(prefetch), "Leave it out: 8 is usual.")
    if not 1 <= workers <= MOST_REMOTE:
        raise _nonsense(f"workers from 1 to {MOST_REMOTE}", str(workers), "Leave it out: 16 is usual.")


def _refuse_fixed_places(ranks: Ranks, rank: int | None, elastic: tuple[int, int]) -> None:
    least, most = elastic
    if not 1 <= least <= most <= _MOST_RANKS:
        expected = f"elastic=(least, most), from 1 to {_MOST_RANKS}"
        raise _nonsense(expected, f"elastic={elastic}", "Write (2, 4), for example.")
    if rank is not None or ranks.world > ranks.replicas:
        got = f"rank {ranks.rank} of {ranks.world}, and elastic={elastic}"
        remedy = (
            "Leave rank and world out: the coordinator gives them. A strategy over several processes cannot change its "
            "world: leave elastic out, and have all of them started anew."
        )
        raise _nonsense("either fixed ranks or elastic", got, remedy)


def _nonsense(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="connect", remedy=remedy)


class Feed:
    """A stream's batches for one trainer, and the cursor of what it has trained on."""

    def __init__(self, session: FeedSession) -> None:
        self._session = session

    # --- what the stream is ---

    @property
    def shapes(self) -> tuple[BucketShape, ...]:
        """The padded shapes that batches come in."""
        return self._session.shapes

    def tag(self, number: int) -> str:
        """The source's name for the sample with this number, as found in a batch's `tag`."""
        return self._session.receiver.ask_names([number])[0]

    @property
    def rank(self) -> int:
        """The first rank that this trainer occupies; rank 0 is the chief, who saves."""
        return self._session.rank

    @property
    def world(self) -> int:
        """How many ranks there are in all."""
        return self._session.world

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        with self._session.open() as batches:
            for batch in batches:
                yield batch
                if self._session.leases is not None:
                    self._session.leases.settle_read()
        self._session.count_to_end(batches)

    def open(self) -> Reading:
        """Start reading at the cursor, to the end of its epoch; the cursor stays where it is."""
        return Reading(self._session.open(), self._session.replicas)

    def interrupt(self, error: BaseException) -> None:
        """Raise this error in whoever is waiting for a batch, or will be; may be called from any thread."""
        self._session.interrupt(error)

    # --- the cursor ---

    @property
    def epoch(self) -> int:
        """The epoch of the cursor."""
        return self._session.cursor.at.epoch

    @property
    def cursor(self) -> int:
        """The first batch number of the epoch that was not yet trained on."""
        return self._session.cursor.at.number

    def rounds_left(self) -> int:
        """Rounds from the cursor to the end of its epoch."""
        return self._session.cursor.rounds_left()

    def trained(self, rounds: int = 1) -> None:
        """Report that this many more rounds (steps of the whole world) were trained on: the cursor moves past them."""
        self._session.cursor.count(rounds)

    def waited(self, wait_s: float) -> None:
        """Report how long the training loop waited for a step's data, for the metrics and each epoch's log line."""
        self._session.count_step_wait(wait_s)

    def state(self) -> dict[str, Any]:
        """The cursor, as plain values for a checkpoint of your own."""
        return self._session.cursor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a cursor that `state` returned; refused if the plan has changed, or other ranks are elsewhere."""
        self._session.cursor.restore(state)

    def finish(self, work: Callable[[], object]) -> bool:
        """In queue mode, once all epochs are over: do this in only one of the trainers, whichever comes first. If that
        one dies or fails, another does it. Returns when it is done: True in the trainer that did it.
        """
        if self._session.leases is None:
            raise only_in_queue("finish")
        return self._session.leases.finish(work)

    def aggregate(
        self, values: Mapping[str, float], *, rows: int, epoch: int | None = None, step: int = 0
    ) -> dict[str, float]:
        """Means over all ranks, weighted by each one's rows; waits until all ranks have reported.

        All get the same numbers, so decisions based on them are the same. Ranks report for the same `epoch` (how many
        are trained on; the cursor's by default) and `step`. In queue mode the means are over the reports so far.
        `loader-server status` shows the latest.
        """
        refuse_what_cannot_be_told(values)
        at = self.epoch if epoch is None else epoch
        shared = self._session.share_results(values, rows=rows, epoch=at, step=step, wait=True)
        assert shared is not None
        return shared

    # --- TensorFlow ---

    def dataset(
        self,
        *,
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as `tf.data` calls it
    ) -> tf.data.Dataset:
        """A `tf.data.Dataset`: `inputs`, `targets` and `weights` name keys for `fit`, or `map` is a function of all."""
        from trainer_client.tf import dataset  # noqa: PLC0415 - TensorFlow only when it is used

        return dataset.make(self._session, ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map))

    def pipeline(
        self,
        function: Callable[[Any], tf.data.Dataset] | Literal[True] = True,  # noqa: FBT002 - as a job says it
        *,
        device: str = "",
    ) -> tf.data.Dataset:
        """The data set that a `dataset_pipeline(context)` makes here from what it made in workers, for a stream with
        `source = "pipeline"`; True is the default pipeline. `device` is where it puts elements: by default the first
        accelerator, if any.
        """
        from trainer_client.tf.pipelines import pipeline  # noqa: PLC0415 - TensorFlow only when it is used

        return pipeline.make(self._session, function, device)

    def distributed(
        self,
        strategy: tf.distribute.Strategy,
        *,
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as above
    ) -> tf.distribute.DistributedDataset:
        """The per-replica dataset for the strategy that the feed was connected with."""
        from trainer_client.tf import dataset  # noqa: PLC0415 - TensorFlow only when it is used

        structure = ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map)
        return dataset.distributed(self._session, strategy, structure)

    def warm_up(
        self,
        step: Callable[[Any], Any],
        *,
        inputs: Keys | None = None,
        targets: Keys | None = None,
        weights: Keys | None = None,
        map: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - as above
    ) -> None:
        """Run `step` once on each of the shapes, largest first, with masked rows only."""
        from trainer_client.tf import dataset  # noqa: PLC0415 - TensorFlow only when it is used

        structure = ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map)
        dataset.warm_up(self._session, step, structure)

    # --- the end ---

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still referenced stay valid."""
        self._session.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reading:
    """One pass from where it was opened to the end of that epoch."""

    def __init__(self, batches: BatchIterator, replicas: int) -> None:
        self._batches = batches
        self._replicas = replicas

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    @property
    def rounds(self) -> int:
        """Rounds taken so far."""
        return self._batches.taken // self._replicas

    def close(self) -> None:
        """Stop early; the cursor stays where it is."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
