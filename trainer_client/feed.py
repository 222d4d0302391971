"""What users call: `connect(...)` gives a `Feed`; iterating it gives numpy minibatches, `dataset()` gives them to
TensorFlow.

Rules: the cursor moves by what was trained on, never by what was read. An iterator starts at the cursor; `trained(n)`
moves it, and so does reading an iterator to its end if `trained` was not called meanwhile. This module is only the face
of a feed, and the room `session` holds what is behind it. It imports TensorFlow only when asked for a dataset.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from typing_extensions import Self

from shared.errors import SettingsError
from shared.keys import ClientKeys
from shared.memory import boot_id
from shared.wire.codec import refuse_unsendable
from trainer_client.core.attachment import attach_request
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Ranks
from trainer_client.network.receiver import ReceiverSettings, trainer_name
from trainer_client.roles import ranks_said
from trainer_client.session.call_checks import refused, seconds, whole
from trainer_client.session.connect_checks import (
    refuse_fixed_places,
    refuse_nonsense,
    refuse_numbers,
    refuse_texts,
    refuse_work,
)
from trainer_client.session.elastic_member import ElasticMember
from trainer_client.session.feed_session import FeedSession
from trainer_client.session.lease_account import only_in_queue
from trainer_client.session.metrics_settings import MetricsSettings
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
    work: Literal["", "train", "evaluate", "predict", "measure"] = "",
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
    metrics_listen: str = "",
    metrics_token: str | Path | None = None,
    metrics_insecure: bool = False,
) -> Feed:
    """Attach to a stream of a running job.

    `rank` of `world` is this trainer's place in a data-parallel job, and `replicas` how many consecutive ranks it
    occupies; a `strategy` fills in all three. Without either, the place is that of the `role()` which the environment
    says, if it says one. With `elastic`, how many trainers there are at least and at most, the coordinator gives them
    their places, and the feed ends with a `WorldChangedError` when trainers come or go (see `run_elastic`). A stream in
    queue mode has no ranks: there `work` says what is done with its batches (to train, or to evaluate where the stream
    is for that), and `epochs` how many the training has in all: so the last one is waited for. To `measure` is to read
    as a trainer does, as load tests do; it is refused while anybody trains on the stream. `prefetch` batches a replica
    are asked for ahead (8; up to 32 if they are small), within `prefetch_bytes` of buffers. The feed talks to
    all workers on its own host, and to `workers` on other hosts. `connect_timeout_s` is how long to wait for the job (a
    minute), or for enough trainers (ten). With a `metrics_port` (0: any free one) it serves its metrics to Prometheus
    on loopback, and announces the port in a file in the folder `metrics_targets`. `metrics_listen` (HOST or HOST:PORT)
    serves them elsewhere: beyond loopback to those who show the token in the file `metrics_token`, or to all if they
    may be `metrics_insecure`.
    """
    refuse_texts(endpoint=endpoint, stream=stream, job=job, keys=keys, metrics_listen=metrics_listen)
    patience_s = _USUAL_PATIENCE_S if elastic is None else _ELASTIC_PATIENCE_S
    if connect_timeout_s is not None:
        patience_s = seconds(connect_timeout_s, "connect_timeout_s", "connect")
    lost_timeout_s = seconds(lost_timeout_s, "lost_timeout_s", "connect")
    refuse_numbers(rank=rank, replicas=replicas, world=world, epochs=epochs, prefetch=prefetch, workers=workers)
    prefetch_bytes = whole(prefetch_bytes, "prefetch_bytes", "connect", least=1)
    metrics = MetricsSettings.of(
        port=metrics_port,
        listen=metrics_listen,
        token=metrics_token,
        insecure=metrics_insecure,
        targets=metrics_targets,
    )
    refuse_work(work)
    if strategy is not None:
        from trainer_client.tf.dataset import ranks_of

        ranks = ranks_of(strategy)
    elif elastic is not None:
        ranks = Ranks(rank=rank or 0, replicas=replicas, world=world or replicas)
    else:
        ranks = ranks_said(rank, replicas, world)
    refuse_nonsense(ranks, prefetch, workers)
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
        connect_timeout_s=patience_s,
    )
    refuse_unsendable(attach_request(settings.core, None, None), "connect")
    if elastic is None:
        return Feed(FeedSession(settings, metrics))
    refuse_fixed_places(ranks, rank, elastic)
    least, most = elastic
    return Feed(ElasticMember(least, most).join(settings, metrics))


#: How long to wait for a job, and for enough trainers of an elastic world.
_USUAL_PATIENCE_S, _ELASTIC_PATIENCE_S = 60.0, 600.0


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
        return self._session.receiver.ask_names([whole(number, "number", "tag")])[0]

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
        if not isinstance(error, BaseException):
            raise refused("an exception", error, "feed.interrupt")
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
        """Report that this many more rounds (steps of the whole world) were trained on: the cursor moves past them. It
        refuses more than were read.
        """
        rounds = whole(rounds, "rounds", "feed.trained")
        self._session.cursor.refuse_unread(rounds)
        self._session.cursor.count(rounds)

    def waited(self, wait_s: float) -> None:
        """Report how long the training loop waited for a step's data, for the metrics and each epoch's log line."""
        self._session.count_step_wait(seconds(wait_s, "wait_s", "feed.waited", may_be_zero=True))

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
        if not callable(work):
            raise refused("a function without arguments", work, "feed.finish")
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
        at = self.epoch if epoch is None else whole(epoch, "epoch", "aggregate", most=2**31)
        rows, step = whole(rows, "rows", "aggregate"), whole(step, "step", "aggregate")
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
        from trainer_client.tf import dataset

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
        from trainer_client.tf.pipelines import pipeline

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
        from trainer_client.tf import dataset

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
        from trainer_client.tf import dataset

        structure = ElementStructure(inputs=inputs, targets=targets, weights=weights, map=map)
        dataset.warm_up(self._session, step, structure)

    # --- the end ---

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave the job; batches that are still referenced stay valid."""
        self._session.close(seconds(timeout_s, "timeout_s", "feed.close", may_be_zero=True))

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise _only_here("a feed")

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

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise _only_here("a reading")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _only_here(what: str) -> SettingsError:
    return SettingsError(
        expected=f"{what} that stays in the process that connected it",
        got="one to be pickled: its connections and its memory cannot be sent",
        where="pickle",
        remedy="Call connect in the process that reads, with its own rank and world. What can be sent is feed.state().",
    )
