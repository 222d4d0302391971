"""Bounds of message fields: checks as plain values, which PROTOCOL.md quotes and tests derive examples from.

Rules: pure; a check takes what msgpack gave and returns the field's value, or raises OutOfBounds with what it expected;
types are exact (True is no integer); nothing is allocated from a number that was not bounded first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.wire.batch_layout import DTYPES, STRING

__all__ = [
    "Blob",
    "Boolean",
    "Check",
    "Choice",
    "Dtype",
    "FixedList",
    "Integer",
    "Many",
    "Maybe",
    "Number",
    "OutOfBounds",
    "Rate",
    "Record",
    "Share",
    "Text",
    "record",
]

Check = Callable[[Any], Any]


class OutOfBounds(ValueError):  # a verdict that never leaves the codec
    """A value that is outside its bounds."""


@dataclass(frozen=True, slots=True)
class Integer:
    """Check of an integer between bounds."""

    minimum: int
    maximum: int

    def __call__(self, value: object) -> int:
        # The exact type, here and below: True is an int too, and a bool in place of a number is a peer's mistake.
        if type(value) is not int or not self.minimum <= value <= self.maximum:
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return f"integer {self.minimum} … {_short(self.maximum)}"


@dataclass(frozen=True, slots=True)
class Text:
    """Check of a string of bounded length."""

    longest: int

    def __call__(self, value: object) -> str:
        if type(value) is not str or len(value) > self.longest:
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return f"string of at most {_short(self.longest)} characters"


@dataclass(frozen=True, slots=True)
class Blob:
    """Check of bytes of bounded length."""

    longest: int

    def __call__(self, value: object) -> bytes:
        if type(value) is not bytes or len(value) > self.longest:
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return f"at most {_short(self.longest)} bytes"


@dataclass(frozen=True, slots=True)
class Boolean:
    """Check of true or false."""

    def __call__(self, value: object) -> bool:
        if type(value) is not bool:
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Rate:
    """Check of a positive number below a billion."""

    def __call__(self, value: object) -> float:
        if type(value) not in (int, float) or not 0 < value < 1e9:  # type: ignore[operator] # the type was just checked
            raise OutOfBounds(str(self))
        return float(value)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return "number above 0 and below 1e9"


@dataclass(frozen=True, slots=True)
class Share:
    """Check of a number from 0 to 1."""

    def __call__(self, value: object) -> float:
        if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator] # the type was just checked
            raise OutOfBounds(str(self))
        return float(value)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return "number 0 … 1"


@dataclass(frozen=True, slots=True)
class Number:
    """Check of a finite float."""

    def __call__(self, value: object) -> float:
        if type(value) is not float or not math.isfinite(value):
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return "finite float"


@dataclass(frozen=True, slots=True)
class Dtype:
    """Check of the name of a dtype that may cross the wire; that of strings only with `strings`."""

    strings: bool = False

    def __call__(self, value: object) -> str:
        if type(value) is not str or not (value in DTYPES or (self.strings and value == STRING)):
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return "name of a dtype, or string" if self.strings else "name of a dtype"


@dataclass(frozen=True, slots=True)
class Choice:
    """Check of one of a few names."""

    names: tuple[str, ...]

    def __call__(self, value: object) -> str:
        if type(value) is not str or value not in self.names:
            raise OutOfBounds(str(self))
        return value

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)


@dataclass(frozen=True, slots=True)
class Maybe:
    """Check of null, or of a value that another check accepts."""

    check: Check

    def __call__(self, value: object) -> object:
        return None if value is None else self.check(value)

    def __str__(self) -> str:
        return f"null or {self.check}"


@dataclass(frozen=True, slots=True)
class Many:
    """Check of a list of bounded length whose entries another check accepts."""

    check: Check
    most: int

    def __call__(self, value: object) -> tuple[Any, ...]:
        # The length before the entries: a frame of 1 MiB can hold a million of them.
        if type(value) is not list or len(value) > self.most:
            raise OutOfBounds(f"a list of at most {_short(self.most)}")
        check = self.check
        return tuple([check(item) for item in value])

    def __str__(self) -> str:
        return f"at most {_short(self.most)} of ({self.check})"


@dataclass(frozen=True, slots=True)
class FixedList:
    """Check of a list of fixed length, with a check for each place."""

    checks: tuple[Check, ...]

    def __call__(self, value: object) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(self.checks):
            raise OutOfBounds(f"a list of {len(self.checks)}")
        if len(value) == 2:  # the fast path: most are pairs, and each batch brings one
            first, second = self.checks
            return first(value[0]), second(value[1])
        return tuple([check(item) for check, item in zip(self.checks, value, strict=True)])

    def __str__(self) -> str:
        return ", ".join(str(check) for check in self.checks)


@dataclass(frozen=True, slots=True)
class Record:
    """Check of a record inside a message: the list of its fields in order."""

    kind: Callable[..., Any]
    fields: FixedList

    def __call__(self, value: object) -> object:
        return self.kind(*self.fields(value))

    def __str__(self) -> str:
        return self.kind.__name__


def record(kind: type) -> Record:
    """Return the check of a dataclass whose fields carry their own."""
    return Record(kind, FixedList(tuple(field.metadata["check"] for field in dataclasses.fields(kind))))


def _short(number: int) -> str:
    """Return a number as text; from 2^16 on a power of two as "2^16", and one less than such as "2^16 - 1"."""
    for less, suffix in ((0, ""), (1, " - 1")):
        power = (number + less).bit_length() - 1
        if number + less == 2**power and power >= 16:
            return f"2^{power}{suffix}"
    return str(number)
