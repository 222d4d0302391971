"""What a job file names: a source, a class of one's own and a transform that take as long as the delays say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.synthetic import SyntheticSource
from loader_server.transforms import transform
from tests.support.slowed.delays import delay_s

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Features", "SlowlyRead", "takes_time"]

#: Samples have this many steps of so many float32 values: 8 kB each.
STEPS, BANDS = 25, 80


class SlowlyRead(SyntheticSource):
    """Made-up features whose reading takes `read_s` a sample."""

    gathers = False

    def read(self, samples: Sequence[int]) -> list[bytes]:
        """Take the time; there is nothing to read."""
        time.sleep(delay_s("read_s") * len(samples))
        return [b""] * len(samples)


class Features:
    """A class as users have it for PyTorch, whose items take `own_s` each."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._values = np.linspace(-1.0, 1.0, STEPS * BANDS, dtype=np.float32).reshape(STEPS, BANDS)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> dict[str, Any]:
        time.sleep(delay_s("own_s"))
        return {"features": self._values}

    def lengths(self) -> dict[str, list[int]]:
        """All are equally long."""
        return {"features": [STEPS] * self._samples}


@transform()
def takes_time(sample: dict[str, Any], rng: np.random.Generator) -> None:
    """Sleep for `transform_s`, and compute for `spin_s` of CPU time."""
    time.sleep(delay_s("transform_s"))
    until_s = time.thread_time() + delay_s("spin_s")
    while time.thread_time() < until_s:
        rng.standard_normal(100)
