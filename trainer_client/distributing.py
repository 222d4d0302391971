"""`trainer_client.distribute`: lets the job's workers make a data set of this process, and reads it from there.

It is for scripts that have a data set already, such as those written for `tf.data service`: only one line changes.

Rules: only the graph crosses, and no Python object; elements have the structure and the values that they would have
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shared.keys import ClientKeys
from shared.pipelines.element_values import values_of_element
from trainer_client.connecting import connect
from trainer_client.network.graph_sender import Sending, send_graph
from trainer_client.tf import dataset as feed_dataset
from trainer_client.tf.element_structure import ElementStructure
from trainer_client.tf.pipelines.graph import packed_element, sent_graph
from trainer_client.tf.pipelines.pipeline import element_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_client.session.feed_session import FeedSession

__all__ = ["distribute"]


def distribute(  # noqa: PLR0913 - a door for users: each is a keyword with a default
    dataset: tf.data.Dataset,
    endpoint: str,
    *,
    stream: str = "train",
    job: str | None = None,
    keys: str | None = None,
    connect_timeout_s: float = 60.0,
    **connection: Any,
) -> tf.data.Dataset:
    """Have the workers of a job make a data set, and return it as it comes from there.

    ValueError comes for a job's or stream's name that is longer than 200 characters, zmq.ZMQError if libzmq cannot
    connect.

    Args:
        dataset: The data set, whose graph is sent to the workers.
        endpoint: As for `connect`.
        stream: A stream with `source = "graph"`.
        job: As for `connect`.
        keys: As for `connect`.
        connect_timeout_s: As for `connect`.
        **connection: Other arguments of `connect`.

    Returns:
        The same data set, made elsewhere. Its attribute `feed` is the feed behind it, for `FeedCheckpoint` and for
        closing it.

    Raises:
        SettingsError: The data set's graph cannot be sent, an argument makes no sense, or the stream is in queue mode.
        RefusedError: The job accepts no graphs, the stream has another one already, or the data set cannot be run
            there; or as for `connect`.
        LostError: The coordinator did not answer in time.
        StokerError: This process may open too few files, or has too little address space left.

    Example:
        >>> import tensorflow as tf
        >>> squares = tf.data.Dataset.range(5).map(lambda number: number * number)
        >>> sent = trainer_client.distribute(squares, pipelines, stream="sent")
        >>> sorted(int(square) for square in sent)
        [0, 1, 4, 9, 16]
        >>> sent.feed.close()
    """
    sending = Sending(job or "", stream, sent_graph(dataset).encode())
    sender_keys = ClientKeys.of_trainer(keys, to="coordinator")
    # Before attaching: the coordinator lets nobody in to a stream that has no graph yet.
    send_graph(endpoint, sender_keys, sending, connect_timeout_s)
    feed = connect(endpoint, stream=stream, job=job, keys=keys, connect_timeout_s=connect_timeout_s, **connection)
    data: Any = _restored(feed._session, dataset.element_spec)
    data.feed = feed
    return data


def _restored(session: FeedSession, spec: Any) -> tf.data.Dataset:
    """Return the data set of a feed, with the structure that the user's data set has.

    Raise SettingsError if the stream is in queue mode.
    """
    values = values_of_element(session.spec.fields)
    # With several producers, a shard that ended before others gives elements without rows, so the data set's own static
    # shape need not hold.
    has_shapes = session.spec.producers == 1

    def fit(leaf_spec: Any, leaf: Any) -> Any:
        is_dense = isinstance(leaf_spec, tf.TensorSpec)
        return tf.ensure_shape(leaf, leaf_spec.shape) if has_shapes and is_dense else leaf

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator] # TensorFlow has no types
    def whole(batch: Mapping[str, tf.Tensor]) -> Any:
        return tf.nest.map_structure(fit, spec, packed_element(spec, element_tensors(values, batch)))

    return feed_dataset.make(session, ElementStructure(map=whole))
