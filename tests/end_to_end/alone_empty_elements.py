"""Data sets whose elements are empty in every way, sent to loaders and read back: run in a process of its own, because
TensorFlow may end the process that it hands an empty tensor to.

Each stream of the job takes one data set, and is named after it and the number of its producers. What comes back is
compared with what the data set is here.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import trainer_client
from shared.wire.batch_layout import DTYPES
from trainer_client.core import stream_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["DATA", "PRODUCERS", "main", "pipeline"]

#: Odd, so that with two producers one shard ends before the other.
ELEMENTS = 5
PRODUCERS = (1, 2)
NUMBERS = sorted(DTYPES)

#: Shapes by rank: `n` is 0 in every other element, and the last shapes of a rank never have room for anything.
Shape = tuple[int | str, ...]
SHAPES: dict[int, tuple[Shape, ...]] = {
    1: (("n",), (0,)),
    2: (("n", 3), (2, "n"), ("n", 0), (0, 3), (3, 0)),
    3: (("n", "n", 2), (2, "n", 3), (2, 0, 3)),
    4: (("n", 2, 1, 2), (2, 1, "n", 2), (1, 1, 1, "n"), (1, 2, 0, 2)),
}


def filled(*ranks: int) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Return a map from a number to a value of each dtype of numbers and of each of these ranks."""

    def element(number: tf.Tensor) -> dict[str, tf.Tensor]:
        values = {}
        for rank in ranks:
            for dtype, shape in zip(NUMBERS, itertools.cycle(SHAPES[rank])):
                sizes = [tf.cast(number % 2, tf.int32) if size == "n" else size for size in shape]
                values[f"{dtype}_{rank}"] = tf.cast(tf.fill(sizes, number), dtype)
        return values

    return element


def scalars(number: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return a scalar of each dtype, and strings: empty ones, and none."""
    n = number % 2
    words = {
        "letters": tf.strings.substr("abc", 0, tf.cast(n, tf.int32)),
        "blank": tf.fill([2], ""),
        "some": tf.fill([n], "word"),
        "none": tf.fill([0, 2], "word"),
        "deep": tf.fill([2, n, 1, 1], "word"),
    }
    return {dtype: tf.cast(number, dtype) for dtype in NUMBERS} | words


def ragged(number: tf.Tensor) -> dict[str, Any]:
    """Return ragged tensors without values, rows or both in every other element."""
    n = number % 2
    words = tf.strings.as_string(tf.range(n))
    return {
        "no_values": tf.ragged.range([n, 0, n]),
        "no_rows": tf.RaggedTensor.from_row_lengths(tf.range(3 * n), tf.fill([n], 3)),
        "nested": tf.RaggedTensor.from_nested_row_lengths(tf.range(n), [[1, 1], [0, n]]),
        "words": tf.RaggedTensor.from_row_lengths(words, [n, 0]),
        "features": tf.RaggedTensor.from_row_lengths(tf.zeros([n, 4]), [n, 0]),
    }


def sparse(number: tf.Tensor) -> dict[str, Any]:
    """Return sparse tensors without values in every other element."""
    n = number % 2
    return {
        "numbers": tf.sparse.from_dense([[n, 0], [0, n]]),
        "words": tf.sparse.from_dense(tf.fill([n, 2], "word")),
        "no_rows": tf.sparse.from_dense(tf.fill([n, 2], 1.0)),
    }


def padded(number: tf.Tensor) -> dict[str, Any]:
    """Return a value that is always empty, and one that is empty in many elements."""
    return {"none": tf.zeros([0, 4]), "some": tf.fill([number % 3], number), "words": tf.fill([number // 4], "word")}


#: How many numbers there are, and what is made of them.
DATA: dict[str, tuple[int, Callable[[tf.data.Dataset], tf.data.Dataset]]] = {
    "batches": (33, lambda numbers: numbers.batch(8)),
    "scalars": (ELEMENTS, lambda numbers: numbers.map(scalars)),
    "flat": (ELEMENTS, lambda numbers: numbers.map(filled(1, 2))),
    "deep": (ELEMENTS, lambda numbers: numbers.map(filled(3, 4))),
    "ragged": (ELEMENTS, lambda numbers: numbers.map(ragged)),
    "sparse": (ELEMENTS, lambda numbers: numbers.map(sparse)),
    "padded": (7, lambda numbers: numbers.map(padded).padded_batch(2)),
}


def pipeline(context: Any) -> tf.data.Dataset:
    """Make batches of samples of which half of the values are always empty; for workers and trainers."""
    numbers = tf.data.Dataset.range(ELEMENTS).shard(context.shards, context.shard)
    data = context.padded_batch(context.add_lengths(numbers.map(padded)), 1)
    return context.map_producer_to_consumer(data)


def main(endpoint: str) -> None:
    """Send and read each data set, several elements at a time and one by one; say what was read."""
    for (name, (count, make)), producers in itertools.product(DATA.items(), PRODUCERS):
        stream = f"{name}_{producers}"
        data = make(tf.data.Dataset.range(count))
        shards = [make(tf.data.Dataset.range(count).shard(producers, shard)) for shard in range(producers)]
        for _ in each_way(stream):
            sent: Any = trainer_client.distribute(data, endpoint, stream=stream)
            with sent.feed:
                print(compared(sent, shards), flush=True)
    for _ in each_way("pipeline"):
        with trainer_client.connect(endpoint, stream="pipeline") as feed:
            read = [[value.shape.num_elements() for value in element.values()] for element in feed.pipeline(pipeline)]
            print(len(read), "elements,", sum(0 in sizes for sizes in read), "with empty values", flush=True)


def each_way(stream: str) -> Iterator[None]:
    """Let batches enter TensorFlow several at a time, then one by one."""
    for most in (16, 1):
        stream_spec._MOST_AT_A_TIME = most
        print(f"{stream}, {most} at a time:", end=" ", flush=True)
        yield


def compared(sent: Iterable[Any], shards: list[tf.data.Dataset]) -> str:
    """Say how many elements came back equal, and how many were those of a shard that had ended."""
    came = list(sent)
    expected = list(itertools.chain(*itertools.zip_longest(*shards)))
    assert len(came) == len(expected), f"{len(came)} elements, and not {len(expected)}"
    pairs = [(got, want) for got, want in zip(came, expected, strict=True) if want is not None]
    for got, want in pairs:
        for ours, theirs in zip(arrays(got), arrays(want), strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)
    return f"{len(pairs)} elements, {len(came) - len(pairs)} of a shard that had ended"


def arrays(element: Any) -> Iterator[Any]:
    """Yield all arrays of an element, those of ragged and sparse tensors included."""
    return (tensor.numpy() for tensor in tf.nest.flatten(element, expand_composites=True))


if __name__ == "__main__":
    main(sys.argv[1])
