"""Feeds in memory whose steps hold the same samples, be they spread over replicas or in one batch.

Rows are masked here and there, some replica's batch has no sample at all, and weights differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.fake_feed import SHAPES, FakeFeed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.wire.batch_layout import BucketShape

__all__ = ["joined_feed", "spread_feed"]


def spread_feed(
    replicas: int,
    *,
    epochs: tuple[int, ...],
    rank: int = 0,
    world: int = 0,
    shapes: tuple[BucketShape, ...] = SHAPES,
) -> FakeFeed:
    """One batch for each replica; of a larger world, those of this rank and those behind it."""
    world = world or replicas
    feed = FakeFeed(epochs=epochs, replicas=replicas, shapes=shapes)
    own = feed.session.fill

    def fill(arrays: Mapping[str, Any], epoch: int, number: int) -> None:
        round_, replica = divmod(number, replicas)
        _fill(own, arrays, epoch, round_ * world + rank + replica)

    feed.session.fill = fill
    feed.session.rank, feed.session.world = rank, world
    return feed


def joined_feed(world: int, *, epochs: tuple[int, ...], shapes: tuple[BucketShape, ...] = SHAPES) -> FakeFeed:
    """One batch a step, with the rows of all replicas."""
    feed = FakeFeed(epochs=epochs, shapes=tuple(replace(shape, rows=shape.rows * world) for shape in shapes))
    own = feed.session.fill

    def fill(arrays: Mapping[str, Any], epoch: int, number: int) -> None:
        rows = len(arrays["weight"]) // world
        for replica in range(world):
            part = {key: array[replica * rows : (replica + 1) * rows] for key, array in arrays.items()}
            _fill(own, part, epoch, number * world + replica)

    feed.session.fill = fill
    return feed


def _fill(fill: Any, arrays: Mapping[str, Any], epoch: int, number: int) -> None:
    fill(arrays, epoch, number)
    generator = np.random.default_rng((7, epoch, number))
    weight = generator.choice([0, 1, 1, 2], len(arrays["weight"]))
    if number % 5 == 3:
        weight[:] = 0
    for array in arrays.values():
        array[weight == 0] = 0
    arrays["weight"][...] = weight
