"""Where the random numbers of transforms come from.

Rules: pure. A sample has one generator an epoch, the same whoever builds it; a transform that says it draws nothing
gets one that refuses, so that no transform can draw the same numbers for every sample without anyone noticing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.errors import SettingsError
from shared.hashing import key_of

__all__ = ["RefusingGenerator", "generator_for"]


def generator_for(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """The generator of one sample in one epoch: the same whoever builds it, however often."""
    return np.random.Generator(np.random.Philox(key=key_of("augment", seed, epoch, sample)))


class RefusingGenerator(np.random.Generator):
    """What a transform with `draws=False` gets: touching it raises an error that names the transform.

    It is a `Generator` by type, so that libraries accept it, and are refused as well once they draw.
    """

    def __init__(self, transform: str, where: str) -> None:
        super().__init__(np.random.PCG64(0))
        object.__setattr__(self, "_refused", (transform, where))

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - as objects have it
        if name == "__class__":
            return RefusingGenerator
        transform, where = object.__getattribute__(self, "_refused")
        raise SettingsError(
            expected=f"the transform {transform} to draw no random numbers, as it declares draws=False",
            got=f"rng.{name}",
            where=where,
            remedy="Leave draws=False out of its declaration: then its numbers differ from sample to sample.",
        )
