"""Random number generators of transforms.

Rules: pure. A sample has one generator an epoch, the same in every process that builds it; a transform that declares
`draws=False` gets one that refuses, so that no transform can draw the same numbers for every sample unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import SettingsError
from shared.hashing import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Drawn", "RecordingGenerator", "RefusingGenerator", "generator_for"]


def generator_for(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """Return the generator of one sample in one epoch: the same in every process, however often it is built."""
    return np.random.Generator(_bits_for(seed, epoch, sample))


def _bits_for(seed: int, epoch: int, sample: int) -> np.random.BitGenerator:
    # The key alone defines the sequence: no state passes from one sample to the next, so their order does not matter.
    return np.random.Philox(key=key_of("augment", seed, epoch, sample))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A call of a generator: the method and its result."""

    method: str
    got: Any


class RecordingGenerator(np.random.Generator):
    """Generator with the same numbers as `generator_for`, which keeps them in `drawn` for inspection."""

    def __init__(self, seed: int, epoch: int, sample: int) -> None:
        super().__init__(_bits_for(seed, epoch, sample))
        self.drawn: list[Drawn] = []

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        public = not name.startswith("_") and name not in ("drawn", "bit_generator")
        return _recorded(name, value, self.drawn) if public and callable(value) else value


def _recorded(name: str, method: Callable[..., Any], drawn: list[Drawn]) -> Callable[..., Any]:
    """Return the method with each call's result noted in `drawn`, or its first argument if it returns None.

    What the method raises passes, and that call is not noted.
    """

    def call(*args: Any, **named: Any) -> Any:
        got = method(*args, **named)
        # A copy, because transforms may change what they drew. `shuffle` returns None and changes its argument instead.
        drawn.append(Drawn(name, np.array(args[0] if got is None and args else got)))
        return got

    return call


class RefusingGenerator(np.random.Generator):
    """Generator for a transform with `draws=False`: any access raises an error that names the transform.

    It is a `Generator` by type, so that libraries accept it, and are refused as well once they draw.
    """

    def __init__(self, transform: str, where: str) -> None:
        super().__init__(np.random.PCG64(0))
        object.__setattr__(self, "_refused", (transform, where))

    def __getattribute__(self, name: str) -> Any:
        # `isinstance` reads `__class__`, which draws nothing.
        if name == "__class__":
            return RefusingGenerator
        transform, where = object.__getattribute__(self, "_refused")
        raise SettingsError(
            expected=f"the transform {transform} to draw no random numbers, as it declares draws=False",
            got=f"rng.{name}",
            where=where,
            remedy="Leave draws=False out of its declaration: then its numbers differ from sample to sample.",
        )
