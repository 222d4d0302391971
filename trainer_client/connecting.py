"""`connect(...)`, the one way to join a job: it checks its arguments, attaches to the coordinator, returns a `Feed`.

Rules: impossible arguments are refused before anything is opened. TensorFlow is imported only for a strategy.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

from shared.keys import ClientKeys
from shared.memory import boot_id
from shared.wire.codec import refuse_unsendable
from trainer_client.core.attachment import attach_request
from trainer_client.core.settings import CoreSettings
from trainer_client.core.upcoming import Ranks
from trainer_client.feed import Feed
from trainer_client.network.receiver import ReceiverSettings
from trainer_client.network.trainer_log import trainer_name
from trainer_client.roles import ranks_in_world
from trainer_client.session.call_checks import (
    refuse_fixed_places,
    refuse_nonsense,
    refuse_numbers,
    refuse_texts,
    refuse_work,
    seconds,
    whole,
)
from trainer_client.session.feed_session import ElasticMember, FeedSession, MetricsSettings

if TYPE_CHECKING:
    from pathlib import Path

    import tensorflow as tf

__all__ = ["connect"]

#: Default waits for a job, and for enough trainers of an elastic world.
_USUAL_PATIENCE_S, _ELASTIC_PATIENCE_S = 60.0, 600.0


def connect(  # noqa: PLR0913 - the one door for users: each is a keyword with a default
    endpoint: str,
    *,
    stream: str = "train",
    job: str | None = None,
    rank: int | None = None,
    replicas: int = 1,
    world: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
    work: Literal["train", "evaluate", "predict", "measure"] | None = None,
    epochs: int | None = None,
    elastic: tuple[int, int] | None = None,
    prefetch: int | None = None,
    prefetch_bytes: int = 2**30,
    shared_memory: bool = True,
    verify: bool = False,
    workers: int = 16,
    keys: str | None = None,
    connect_timeout_s: float | None = None,
    lost_timeout_s: float = 60.0,
    metrics_port: int | None = None,
    metrics_targets: str | Path | None = None,
    metrics_listen: str | None = None,
    metrics_token: str | Path | None = None,
    metrics_insecure: bool = False,
) -> Feed:
    """Attach to a stream of a running job and return its feed.

    The trainer's place among the ranks comes from the first of these that is given: `strategy`, `elastic`, `rank`, the
    `role()` that the environment says. Otherwise the trainer is alone. A stream in queue mode has no ranks.
    With `elastic`, a ZMQError comes if libzmq cannot connect.

    Args:
        endpoint: Where the coordinator is: `tcp://HOST:PORT`, or `file:///PATH` of the file that holds its endpoint.
        stream: The stream of the job file to read.
        job: The job's name. The coordinator refuses another one; None accepts any.
        rank: The first rank that this trainer occupies, counted from 0.
        replicas: How many consecutive ranks it occupies: one batch of each round for each of them.
        world: How many ranks there are in all. None: as many as `replicas`.
        strategy: A `tf.distribute` strategy that says rank, replicas and world.
        work: What the batches are for, in queue mode: `"train"`, `"evaluate"` or `"predict"`. None: what the stream is
            for. `"measure"` reads any stream as a trainer does, as load tests do, and is refused while somebody trains
            on it.
        epochs: How many epochs the training has in all, in queue mode; `Feed.finish` needs it, and all trainers give
            the same number. None: no end.
        elastic: The least and the most trainers of an elastic run, whose places the coordinator gives out. The feed
            ends with a `WorldChangedError` when trainers come or go; see `run_elastic`.
        prefetch: How many batches to ask for ahead at first, for each replica. None: 8, and up to 32 if they are small.
            It grows to eight times as many, within `prefetch_bytes`, while that brings more, and shrinks again.
        prefetch_bytes: The most memory for the buffers of these batches, which is taken as they are used.
        shared_memory: Whether workers on this host write batches into shared memory. False: they send them by TCP.
        verify: Whether to check the digest of every batch that comes through shared memory, too.
        workers: How many workers on other hosts to talk to, besides all on this host.
        keys: The folder with this trainer's keys. None: the job is served without keys.
        connect_timeout_s: How long to wait for the coordinator. None: a minute, or ten with `elastic`, where it is the
            wait for enough trainers.
        lost_timeout_s: How long there may be no worker that can build, or no answer from the coordinator where one is
            needed, before the feed ends with a `LostError`.
        metrics_port: The port on loopback at which to serve Prometheus metrics; 0 is any free one. None: serve none,
            unless `metrics_listen` is given.
        metrics_targets: A folder in which to announce the metrics' address to Prometheus.
        metrics_listen: The address at which to serve metrics instead, `HOST` or `HOST:PORT`.
        metrics_token: The file with the token that readers of metrics have to send; needed beyond loopback.
        metrics_insecure: Whether anybody may read metrics beyond loopback, without a token.

    Returns:
        The feed, attached at the position that the coordinator has for this trainer. Close it, or use it in `with`.

    Raises:
        SettingsError: An argument makes no sense or does not fit the others, a key is missing, metrics cannot be
            served, or the role that the environment says is malformed.
        StokerError: This process may open too few files or has too little address space, or the answer is wrong.
        LostError: The coordinator did not answer in time.
        RefusedError: The coordinator said no: it has no such stream, or another job, or the ranks do not fit.

    Example:
        >>> import trainer_client
        >>> with trainer_client.connect(endpoint, stream="train") as feed:
        ...     for batch in feed:
        ...         assert batch["audio"].shape[0] == len(batch["weight"])
        ...     print(feed.epoch)
        1
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
        ranks = Ranks(rank=rank or 0, replicas=replicas, world=replicas if world is None else world)
    else:
        ranks = ranks_in_world(rank, replicas, world)
    refuse_nonsense(ranks, prefetch, workers)
    settings = ReceiverSettings(
        core=CoreSettings(
            job=job or "",
            stream=stream,
            ranks=ranks,
            incarnation=secrets.randbits(63),
            name=trainer_name(),
            boot_id=boot_id(),
            work=work or "",
            epochs=epochs,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            shared_memory=shared_memory,
            verify=verify,
            workers=workers,
            lost_timeout_s=lost_timeout_s,
        ),
        endpoint=endpoint,
        coordinator_keys=ClientKeys.of_trainer(keys, to="coordinator"),
        worker_keys=ClientKeys.of_trainer(keys, to="worker"),
        connect_timeout_s=patience_s,
    )
    refuse_unsendable(attach_request(settings.core, None, None), "connect")
    if elastic is None:
        return Feed(FeedSession(settings, metrics))
    refuse_fixed_places(ranks, rank, elastic)
    least, most = elastic
    return Feed(ElasticMember(least, most).join(settings, metrics))
