"""What one setting may hold: its declaration, and the parsers that turn what TOML gives into it.

A parser takes a value and returns the setting, or says what it expected. Pure; numbers carry units.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from shared.bad_limit import BadLimit

__all__ = [
    "Amount",
    "BadValue",
    "FileName",
    "Parser",
    "Table",
    "amount",
    "bad_limit",
    "by_key",
    "byte_count",
    "choice",
    "duration_s",
    "file",
    "flag",
    "label",
    "number",
    "numbers",
    "refuse_beyond_bounds",
    "setting",
    "settings_that_count",
    "tables",
    "text",
    "texts",
    "timeout_s",
    "whole",
]

Table = Mapping[str, Any]
Parser = Callable[[object], Any]


class BadValue(Exception):  # a verdict that never leaves this room
    """A parser refused a value; the reader adds the place and turns this into a SettingsError."""

    def __init__(self, expected: str, got: str = "") -> None:
        self.expected, self.got = expected, got
        super().__init__(expected)


#: What TOML promises to hold, and more brackets within brackets than any setting has.
_INTEGERS = range(-(2**63), 2**63)
_DEEPEST = 16
#: How much of a setting's name is shown where that is absurd too.
_SHOWN_KEY = 60


def refuse_beyond_bounds(document: object) -> None:
    """Raise BadValue if what TOML gave holds what no setting takes and no message could show: integers of more than 64
    bits, strings with a NUL, brackets that are nested without end.
    """
    level = [("", document)]
    for _ in range(_DEEPEST):
        for key, value in level:
            if type(value) is int and value not in _INTEGERS:
                raise BadValue(f"an integer of at most 64 bits for {key}", f"one of {value.bit_length()} bits")
            if isinstance(value, str) and "\0" in value:
                raise BadValue(f"no character NUL in {key}", reprlib.repr(value))
        level = [part for key, value in level for part in _parts(key, value)]
    if level:
        key, _ = level[0]
        raise BadValue(f"at most {_DEEPEST} brackets within each other", f"more, in {key}")


def _parts(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield what a table or list holds, a table's keys too, each with the setting that it is of."""
    if isinstance(value, dict):
        for name, held in value.items():
            shown = f"{key}.{name}".strip(".").replace("\0", "\\0")[:_SHOWN_KEY]
            yield from ((shown, name), (shown, held))
    elif isinstance(value, list):
        yield from ((key, part) for part in value)


def setting(
    parse: Parser,
    help_text: str,
    *,
    default: Any = dataclasses.MISSING,
    later: bool = False,
    means: object = None,
) -> Any:
    """Declare one setting of a dataclass: its parser, its help text, its default (none: it is required).

    One that came `later` than others counts only where it is said, so what was made before stays what it was. With the
    default None, `means` is the value that fingerprints of a transform have for it: bytes are the same with either.
    """
    facts = {"parse": parse, "help": help_text, "later": later, "means": means}
    return dataclasses.field(default=default, metadata=facts)


def settings_that_count(settings: Any) -> dict[str, Any]:
    """The settings by which things are told apart: all but later ones that are left out."""
    values = dataclasses.asdict(settings)
    for field in dataclasses.fields(settings):
        if field.metadata.get("later") and values[field.name] == field.default:
            del values[field.name]
    return values


def nearest(got: object, known: Iterable[str]) -> str:
    """The hint that a refusal adds: the known name nearest to what was written, if any is near."""
    near = difflib.get_close_matches(str(got), known)
    return f', perhaps "{near[0]}"' if near else ""


def text(value: object) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise BadValue("a string")
    return value


_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def label(value: object) -> str:
    """A name that can serve as a folder, as a metric's label and as one word of a log line."""
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise BadValue("up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit")
    return value


def texts(value: object) -> tuple[str, ...]:
    """A list of strings; a single string counts as a list of one."""
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise BadValue("a list of strings")
    return tuple(value)


class FileName(str):
    """A file as a job file names it, relative to the job file's folder; `remedy` is what to do where it is missing."""

    __slots__ = ()

    remedy: ClassVar[str] = "Mend its name, which is relative to the job file, or put the file there."


def file(value: object) -> FileName:
    """The name of a file. A transform gets its path instead, and its content counts where otherwise its name would."""
    return FileName(text(value))


def by_key(parse: Parser) -> Parser:
    """A table of key = value, all values of one kind: as pairs in the order of the keys, for settings are hashed."""

    def parse_each(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict) or not value:
            raise BadValue("a table such as { text = … }")
        try:
            return tuple((key, parse(value[key])) for key in sorted(value))
        except BadValue as bad:
            raise BadValue(f"a table such as {{ text = … }} whose values are each {bad.expected}") from None

    return parse_each


def tables(value: object) -> tuple[Table, ...]:
    """A list of tables, as [[…]] makes it."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise BadValue("a list of tables")
    return tuple(value)


def flag(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BadValue("true or false")
    return value


def whole(minimum: int, maximum: int = 2**62) -> Parser:
    """An integer between bounds."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            above = f"an integer of at least {minimum}"
            raise BadValue(above if maximum == 2**62 else f"an integer from {minimum} to {maximum}")
        return value

    return parse


def number(minimum: float, maximum: float = float("inf")) -> Parser:
    """A number between bounds."""

    def parse(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise BadValue(f"a number from {minimum} to {maximum}")
        return float(value)

    return parse


def numbers(minimum: float, maximum: float = float("inf")) -> Parser:
    """A list of numbers between bounds, of which there is at least one; a single number counts as a list of one."""
    one = number(minimum, maximum)

    def parse(value: object) -> tuple[float, ...]:
        listed = value if isinstance(value, list) else [value]
        try:
            return tuple(map(one, listed or [None]))
        except BadValue as bad:
            raise BadValue(f"a list with at least one entry, each {bad.expected}") from None

    return parse


def choice(*names: str) -> Parser:
    """One of several names."""

    def parse(value: object) -> str:
        if value not in names:
            raise BadValue("one of " + ", ".join(f'"{name}"' for name in names) + nearest(value, names))
        return str(value)

    return parse


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with its unit, such as 300 s of audio or 4096 tokens."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


#: So many digits before and after the point are more than any amount needs, and never overflow.
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_AMOUNT = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)\s*")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def amount(*units: str) -> Parser:
    """A number with one of these units, written as one string: "300 s"."""

    def parse(value: object) -> Amount:
        expected = " or ".join(f'"<number> {unit}"' for unit in units)
        found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise BadValue(f"an amount with its unit, {expected}, of at most 15 digits")
        if found[2] not in units:
            raise BadValue(f"an amount with its unit, {expected}{nearest(found[2], units)}")
        return Amount(float(found[1]), found[2])

    return parse


def duration_s(value: object) -> float:
    """A duration such as "2 s" or "500 ms", in seconds."""
    parsed: Amount = amount(*_SECONDS)(value)
    return parsed.value * _SECONDS[parsed.unit]


def timeout_s(value: object) -> float:
    """A duration that a wait may be limited by."""
    timeout_s = duration_s(value)
    if not 0.01 <= timeout_s <= 3600:
        raise BadValue('a duration from "10 ms" to "1 h"')
    return timeout_s


def byte_count(value: object) -> int:
    """A size such as "2 GiB", in bytes."""
    parsed: Amount = amount(*_BYTES)(value)
    return int(parsed.value * _BYTES[parsed.unit])


_BAD_LIMIT = re.compile(rf"\s*({_NUMBER})\s*(%|samples?)\s*")


def bad_limit(value: object) -> BadLimit:
    """A share such as 0.01 or "1 %", or a number such as "20 samples"."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return BadLimit(float(value))
    found = _BAD_LIMIT.fullmatch(value) if isinstance(value, str) else None
    if found is not None and found[2] == "%" and float(found[1]) <= 100:
        return BadLimit(float(found[1]) / 100)
    if found is not None and found[2] != "%" and found[1].isdigit():
        return BadLimit(samples=int(found[1]))
    raise BadValue('a share such as "1 %" or 0.01, or a number such as "20 samples"')
