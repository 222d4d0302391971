"""Values of all kinds, drawn with a random generator of which a property test draws the seed alone.

What Hypothesis draws piece by piece it can make smaller when a test fails, at a tenth of a millisecond a piece: right
for what people have to read. Where thousands of messages and scraps of bytes are thrown at a decoder, a seed will do.
As with Hypothesis, bounds and other values where code goes wrong come far more often than chance would have it.
"""

from __future__ import annotations

import math
import struct
import sys
from random import Random

from hypothesis import strategies as st

__all__ = ["RANDOMS", "anything", "blob", "finite", "integer", "mutated", "number", "text"]


class _Seeded(Random):
    """One that a failed test names by what makes it again."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def __repr__(self) -> str:
        return f"Random({self._seed})"


#: A generator for each example.
RANDOMS = st.integers(0, 2**64 - 1).map(_Seeded)

_FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-5, 2.0**53, 5e-324, sys.float_info.min, sys.float_info.max, -sys.float_info.max)
_NOT_FINITE = (math.inf, -math.inf, math.nan)
#: Besides any other character.
_CHARACTERS = "\0\n /\\\"'09azAZ\x7f\x80\xdf\u0130\u20ac\ud7ff\ue000\ufffe\uffff\U0001f600\U0010ffff"


def integer(random: Random, low: int, high: int) -> int:
    """One of low … high: a bound, one near zero or a power of two, or any."""
    near = random.choice((low, high, 0, 1 << random.randrange(65), -1 << random.randrange(64)))
    drawn = near + random.randint(-2, 2)
    return drawn if low <= drawn <= high and random.random() < 0.6 else random.randint(low, high)


def number(random: Random, low: float, high: float) -> float:
    """One of low … high, neither of them below zero: a bound, one of any magnitude, or any."""
    drawn = random.choice(
        (low, high, math.nextafter(low, high), math.nextafter(high, low), 2.0 ** -random.randrange(1074))
    )
    return drawn if low <= drawn <= high and random.random() < 0.5 else random.uniform(low, high)


def finite(random: Random) -> float:
    """Any number that a float holds."""
    drawn = random.choice(_FLOATS) if random.random() < 0.3 else _any_float(random)
    return drawn if math.isfinite(drawn) else random.uniform(-1e3, 1e3)


def _any_float(random: Random) -> float:
    drawn: float = struct.unpack("<d", random.randbytes(8))[0]
    return drawn


def text(random: Random, most: int) -> str:
    """At most so many characters, no half of a pair among them."""
    return "".join(_character(random) for _ in range(random.randint(0, most)))


def _character(random: Random) -> str:
    if random.random() < 0.5:
        return random.choice(_CHARACTERS)
    code = random.randrange(0x110000 - 0x800)
    return chr(code if code < 0xD800 else code + 0x800)


def blob(random: Random, most: int) -> bytes:
    """At most so many bytes."""
    return random.randbytes(random.choice((0, most, random.randint(0, most))))


def anything(random: Random, leaves: int = 12) -> object:
    """Any value that a frame can hold, of at most so many leaves."""
    return _ANYTHING[random.randrange(len(_ANYTHING) if leaves > 1 else 6)](random, leaves)


def _list(random: Random, leaves: int) -> list[object]:
    return [anything(random, leaves // 2) for _ in range(random.randint(0, min(leaves, 5)))]


def _dict(random: Random, leaves: int) -> dict[object, object]:
    keys = [
        text(random, 8) if random.random() < 0.5 else blob(random, 4) for _ in range(random.randint(0, min(leaves, 5)))
    ]
    return {key: anything(random, leaves // 2) for key in keys}


#: The first six hold nothing else.
_ANYTHING = (
    lambda random, leaves: random.choice((None, True, False)),
    lambda random, leaves: integer(random, -(2**63), 2**64 - 1),
    lambda random, leaves: random.choice(_NOT_FINITE) if random.random() < 0.3 else _any_float(random),
    lambda random, leaves: finite(random),
    lambda random, leaves: text(random, 8),
    lambda random, leaves: blob(random, 8),
    *(_list, _list, _dict, _dict),
)


def mutated(random: Random, data: bytes) -> bytes:
    """The same with up to two bytes changed, left out or put in, at one to three places: any of them, the bounds more
    often.
    """
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        last = len(changed)
        place = random.choice((0, last)) if random.random() < 0.1 else random.randint(0, last)
        changed[place : place + random.randint(0, 2)] = blob(random, 2)
    return bytes(changed)
