"""A calm reading to compare with, and small helpers for hurting things."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import trainer_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.loaders import Loaders


@pytest.fixture
def read() -> Callable[..., list[tuple[int, int]]]:
    """Read the rest of an epoch as (number, digest)."""

    def read_epoch(loaders: Loaders, **how: object) -> list[tuple[int, int]]:
        with trainer_client.connect(loaders.endpoint, **how) as feed:
            return [(batch.number, batch.digest) for batch in feed]

    return read_epoch
