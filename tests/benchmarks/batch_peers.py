"""The real peers' batching on a list of lengths: tf.data, Lhotse and RETURNN, each as its users would call it.

Every function takes lengths in frames (100 a second) and a budget in frames, and gives batches as `Padded`. A peer that
is not installed raises ImportError, and the benchmark says so. Must not know how batches are scored.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Padded", "lhotse", "returnn_laplace", "tf_bucket"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Padded:
    """One batch: the lengths of its samples, and the shape that they are padded to."""

    lengths: Integers
    rows: int
    length: int


def tf_bucket(lengths: Integers, budget: int, boundaries: Sequence[int]) -> list[Padded]:
    """tf.data's bucket_by_sequence_length, padded to the bucket's boundary, the last of which is the longest sample."""
    import tensorflow as tf

    upper = np.asarray(boundaries)
    samples = tf.data.Dataset.from_tensor_slices(lengths).shuffle(len(lengths), seed=1)
    # Its buckets exclude their upper boundary; elements are the lengths themselves, so that nothing is really padded.
    batched = samples.bucket_by_sequence_length(
        lambda length: tf.cast(length, tf.int32),
        bucket_boundaries=[int(edge) + 1 for edge in upper[:-1]],
        bucket_batch_sizes=[max(1, budget // int(edge)) for edge in upper],
    )
    return [
        Padded(batch, len(batch), int(upper[np.searchsorted(upper, batch.max())]))
        for batch in batched.as_numpy_iterator()
    ]


def lhotse(lengths: Integers, budget: int, buckets: int, ranks: int, *, fixed: bool = False) -> list[Padded]:
    """Lhotse's DynamicBucketingSampler over dummy cuts, padded to the longest cut of a batch, ranks interleaved."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler
    from lhotse.testing.dummies import dummy_cut

    cuts = CutSet.from_cuts(
        dummy_cut(number, duration=float(length) / 100) for number, length in enumerate(lengths)
    ).to_eager()
    bins = np.quantile(lengths, np.arange(1, buckets) / buckets) / 100 if fixed else None
    by_rank = []
    for rank in range(ranks):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = DynamicBucketingSampler(
                cuts,
                max_duration=budget / 100,
                num_buckets=None if fixed else buckets,
                duration_bins=None if bins is None else bins.tolist(),
                shuffle=True,
                drop_last=False,
                seed=1,
                world_size=ranks,
                rank=rank,
            )
            by_rank.append([np.array([round(cut.duration * 100) for cut in batch]) for batch in sampler])
    steps = max(len(batches) for batches in by_rank)
    in_turn = [batches[step] for step in range(steps) for batches in by_rank if step < len(batches)]
    return [Padded(batch, len(batch), int(batch.max())) for batch in in_turn]


def returnn_laplace(lengths: Integers, budget: int) -> list[Padded]:
    """RETURNN's ordering `laplace:.1000` and its batching by frames, padded to the longest sequence of a batch."""
    from returnn.datasets.basic import DatasetSeq
    from returnn.datasets.cached2 import CachedDataset2
    from returnn.log import log

    log.initialize(verbosity=[1])

    class Listed(CachedDataset2):
        """Sequences of the given lengths, of one byte a frame."""

        def __init__(self) -> None:
            super().__init__(seq_ordering="laplace:.1000")
            self.num_inputs, self.num_outputs = 1, {"data": (1, 2)}
            self.order: Integers = np.arange(len(lengths))

        def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):  # type: ignore[no-untyped-def]
            self.order = np.array(self.get_seq_order_for_epoch(epoch, len(lengths), lambda at: int(lengths[at])))
            self._num_seqs = len(self.order)
            return super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)

        def _collect_single_seq(self, seq_idx):  # type: ignore[no-untyped-def]
            if seq_idx >= len(self.order):
                return None
            return DatasetSeq(seq_idx, features=np.zeros((int(lengths[self.order[seq_idx]]), 1), np.int8), targets={})

    data = Listed()
    data.init_seq_order(epoch=1)
    batches = data.generate_batches(shuffle_batches=False, recurrent_net=True, batch_size=budget)
    found = []
    while batches.has_more():
        (batch,) = batches.peek_next_n(1)
        own = np.array([int(part.frame_length["data"]) for part in batch.seqs])
        found.append(Padded(own, len(own), int(own.max())))
        batches.advance(1)
    return found
