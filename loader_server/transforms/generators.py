"""Where the random numbers of transforms come from.

Rules: pure. A sample has one generator in an epoch, the same whoever builds it; a transform that says that it draws no
numbers gets one that refuses to give any, so that nobody draws the same numbers for every sample without noticing.
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
    """What a transform gets that says `draws=False`: whoever touches it is named.

    It passes for a generator, so that it is also refused where a library is handed it and draws.
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
