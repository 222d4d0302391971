"""What the data path benchmark carries: three payloads, each written anew for every batch.

Rules: a batch is its template, copied, with a stamp in the first step of every row that tells the batch; so nobody can
send the same bytes twice without being noticed, and the work of making it is the same for all: one copy. Must not know
TensorFlow, sockets or any of the paths.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["PAYLOADS", "Payload", "Shape", "read_shapes", "template", "values_of", "write_shapes"]

BANDS = 80

#: The shape of each key of a batch.
Shape = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A name, the keys that the consumer gets, and the stream that plans it."""

    name: str
    keys: tuple[str, ...]
    stream: str


PAYLOADS = {
    one.name: one
    for one in (
        Payload(
            name="features_10mb",
            keys=("features",),
            stream='kind = "features"\nsamples = 640000\nmedian_length = 1000\nspread = 0\nlength = "features"\n'
            'budget = "32000 frames"\nshapes = [1000]\norder = "as_is"',
        ),
        Payload(
            name="tokens_small",
            keys=("tokens",),
            stream='kind = "tokens"\nsamples = 6400000\nmedian_length = 50\nspread = 0\nlength = "tokens"\n'
            'budget = "3200 tokens"\nshapes = [50]\norder = "as_is"',
        ),
        Payload(
            name="dict_bucketed",
            keys=("features", "features_length", "tokens", "tokens_length"),
            stream='kind = "both"\nsamples = 600000\nmedian_length = 400\nspread = 0.5\nlength = "features"\n'
            'budget = "6000 frames"\nshapes = 8\norder = "shuffled"',
        ),
    )
}


def template(key: str, size: int) -> NDArray[Any]:
    """Values to copy from, `size` of them; random as real ones are, for some of the peers compress."""
    random = np.random.default_rng(1)
    if key == "features":
        return random.standard_normal(size, np.float32)
    return random.integers(1, 32_000, size, np.int32)


def values_of(shapes: list[Shape]) -> Iterator[tuple[int, Shape]]:
    """Batch numbers and their shapes, without end."""
    return zip(itertools.count(), itertools.cycle(shapes), strict=False)


def write_shapes(path: Path, shapes: list[Shape]) -> None:
    """Keep the shapes of an epoch's batches for the paths that have no planner."""
    path.write_text(json.dumps(shapes))


def read_shapes(path: Path) -> list[Shape]:
    """What `write_shapes` kept."""
    return [{key: tuple(sizes) for key, sizes in shape.items()} for shape in json.loads(path.read_text())]


def largest(shapes: list[Shape], key: str) -> int:
    """Values of the largest batch."""
    return max(math.prod(shape[key]) for shape in shapes)
