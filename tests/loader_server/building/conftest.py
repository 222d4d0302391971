"""What tests of the building thread share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.build_bench import Bench
from tests.support.in_memory import MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(source: MemorySource | None = None, read_timeout_s: float = 60.0) -> Bench:
        made.append(Bench(tmp_path, source or MemorySource(), read_timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.thread.close(60.0)
