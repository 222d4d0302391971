"""Declaration of one setting, and the parsers that turn TOML values into settings.

A parser takes a value and returns the setting, or raises BadValue with what it expected. Pure; numbers carry units.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

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
    "named",
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
    "wholes",
]

Table = Mapping[str, Any]
Parser = Callable[[object], Any]


class BadValue(Exception):  # a verdict that never leaves this room
    """A parser's refusal of a value; the reader adds the place and turns it into a SettingsError."""

    def __init__(self, expected: str, got: str = "") -> None:
        self.expected, self.got = expected, got
        super().__init__(expected)


#: The integers that TOML guarantees, and a nesting that is deeper than any setting's.
_INTEGERS = range(-(2**63), 2**63)
_DEEPEST = 16
#: Longest shown name of a setting, because the name may be absurd too.
_SHOWN_KEY = 60


def refuse_beyond_bounds(document: object) -> None:
    """Raise BadValue if a document holds a value that no setting takes and no message could show.

    Such values are integers of more than 64 bits, strings or keys with a NUL, and nesting of 16 levels or more, the
    document itself being the first.
    """
    # Level by level instead of recursively: a file of nothing but brackets must not exhaust the stack.
    level = [("", document)]
    for _ in range(_DEEPEST):
        for key, value in level:
            if type(value) is int and value not in _INTEGERS:  # `type`, because True is an int as well
                raise BadValue(f"an integer of at most 64 bits for {key}", f"one of {value.bit_length()} bits")
            if isinstance(value, str) and "\0" in value:
                raise BadValue(f"no character NUL in {key}", reprlib.repr(value))
        level = [part for key, value in level for part in _parts(key, value)]
    if level:
        key, _ = level[0]
        raise BadValue(f"at most {_DEEPEST} brackets within each other", f"more, in {key}")


def _parts(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the contents of a table (its keys too) or list, each with the name of its setting."""
    if isinstance(value, dict):
        for name, content in value.items():
            shown = f"{key}.{name}".strip(".").replace("\0", "\\0")[:_SHOWN_KEY]
            yield from ((shown, name), (shown, content))
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
    """Declare a setting of a dataclass: its parser, its help text and its default (without one it is required).

    A setting added `later` enters fingerprints only when it differs from its default, so existing indexes stay valid.
    With the default None, `means` is the value that a transform's fingerprint uses for it, because bytes are the same
    with either.
    """
    facts = {"parse": parse, "help": help_text, "later": later, "means": means}
    return dataclasses.field(default=default, metadata=facts)


def settings_that_count(settings: Any) -> dict[str, Any]:
    """Return the settings that enter fingerprints: all but `later` ones at their default."""
    values = dataclasses.asdict(settings)
    for field in dataclasses.fields(settings):
        if field.metadata.get("later") and values[field.name] == field.default:
            del values[field.name]
    return values


def nearest(got: object, known: Iterable[str]) -> str:
    """Return a hint with the known name nearest to what was written, or "" if none is near."""
    near = difflib.get_close_matches(str(got), known)
    return f', perhaps "{near[0]}"' if near else ""


def text(value: object) -> str:
    """Return a string that is not empty; raise BadValue otherwise."""
    if not isinstance(value, str) or not value:
        raise BadValue("a string")
    return value


_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def label(value: object) -> str:
    """Return a name that can serve as a folder, a metric's label and a word of a log line; raise BadValue otherwise.

    It has up to 100 ASCII letters, digits, dots, dashes and underscores, and begins with a letter or digit.
    """
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise BadValue("up to 100 letters, digits, dots, dashes and underscores, the first a letter or digit")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Return a list of non-empty strings as a tuple; a single such string counts as a list of one.

    An empty list stays empty. Raise BadValue otherwise.
    """
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise BadValue("a list of strings")
    return tuple(value)


def named(value: object) -> tuple[tuple[str, str], ...]:
    """Return pairs of a name and what it stands for: from a table, or from a list of names that stand for themselves.

    Those of a table are sorted by name. Raise BadValue for what `texts` refuses, for a name that a list has twice, and
    for a table that is empty or has anything but non-empty strings.
    """
    if isinstance(value, dict):
        if "" in value:
            raise BadValue("names that are not empty")
        pairs: tuple[tuple[str, str], ...] = by_key(text)(value)
        return pairs
    names = texts(value)
    if len(set(names)) < len(names):
        raise BadValue("a list of strings, each of them once, or a table")
    return tuple((name, name) for name in names)


class FileName(str):
    """File name from a job file, relative to its folder; `remedy` says what to do if the file is missing."""

    __slots__ = ()

    remedy: ClassVar[str] = "Mend its name, which is relative to the job file, or put the file there."


def file(value: object) -> FileName:
    """Return the name of a file; raise BadValue unless it is a string that is not empty.

    A transform gets the file's path instead, and the file's content enters its fingerprint instead of the name.
    """
    return FileName(text(value))


def by_key(parse: Parser) -> Parser:
    """Return a parser for tables whose values all have one kind.

    It gives pairs sorted by key, because settings are hashed. It raises BadValue for anything but a table, for an empty
    table, and if `parse` refuses a value.
    """

    def parse_each(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict) or not value:
            raise BadValue("a table such as { text = … }")
        try:
            return tuple((key, parse(value[key])) for key in sorted(value))
        except BadValue as bad:
            raise BadValue(f"a table such as {{ text = … }} whose values are each {bad.expected}") from None

    return parse_each


def tables(value: object) -> tuple[Table, ...]:
    """Return a list of tables, as [[…]] makes it; raise BadValue otherwise, for an empty list too."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise BadValue("a list of tables")
    return tuple(value)


def flag(value: object) -> bool:
    """Return true or false; raise BadValue for anything else."""
    if not isinstance(value, bool):
        raise BadValue("true or false")
    return value


def whole(minimum: int, maximum: int = 2**62) -> Parser:
    """Return a parser for integers from `minimum` to `maximum`.

    It raises BadValue for anything else, for true and false too.
    """

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            bounds = f"of at least {minimum}" if maximum == 2**62 else f"from {minimum} to {maximum}"
            raise BadValue(f"an integer {bounds}")
        return value

    return parse


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)  # true is an integer to Python


def number(minimum: float, maximum: float = float("inf")) -> Parser:
    """Return a parser that gives numbers from `minimum` to `maximum` as floats.

    It raises BadValue for anything else, for true and false too.
    """

    def parse(value: object) -> float:
        if not _is_number(value) or not minimum <= value <= maximum:
            raise BadValue(f"a number from {minimum} to {maximum}")
        return float(value)

    return parse


def numbers(minimum: float, maximum: float = float("inf")) -> Parser:
    """Return a parser for non-empty lists of numbers between bounds; a single number counts as a list of one.

    It gives a tuple of floats, and raises BadValue for an empty list and for any other entry.
    """
    parse_number = number(minimum, maximum)

    def parse(value: object) -> tuple[float, ...]:
        listed = value if isinstance(value, list) else [value]
        try:
            return tuple(map(parse_number, listed or [None]))  # None: an empty list is refused as well
        except BadValue as bad:
            raise BadValue(f"a list with at least one entry, each {bad.expected}") from None

    return parse


def wholes(count: int, minimum: int, maximum: int = 2**62) -> Parser:
    """Return a parser for lists of `count` integers between bounds, which it gives as a tuple.

    It raises BadValue for anything else, for a single integer too.
    """
    parse_whole = whole(minimum, maximum)

    def parse(value: object) -> tuple[int, ...]:
        try:
            entries = tuple(map(parse_whole, value)) if isinstance(value, list) else ()
        except BadValue:
            entries = ()
        if len(entries) != count:
            raise BadValue(f"a list of {count} whole numbers from {minimum} to {maximum}")
        return entries

    return parse


def choice(*names: str) -> Parser:
    """Return a parser for one of several names; it raises BadValue for anything else, with the nearest name if any."""

    def parse(value: object) -> str:
        if value not in names:
            raise BadValue("one of " + ", ".join(f'"{name}"' for name in names) + nearest(value, names))
        return str(value)

    return parse


@dataclass(frozen=True, slots=True)
class Amount:
    """Number with its unit, such as 300 s of audio or 4096 tokens."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


#: 15 digits before and after the point are more than any amount needs, and never overflow.
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_AMOUNT = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)\s*")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def amount(*units: str) -> Parser:
    """Return a parser for a number with one of these units, written as one string: "300 s".

    It raises BadValue for anything else: another unit, a negative number, or more than 15 digits before or after the
    point.
    """

    def parse(value: object) -> Amount:
        expected = " or ".join(f'"<number> {unit}"' for unit in units)
        match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise BadValue(f"an amount with its unit, {expected}, of at most 15 digits")
        if match[2] not in units:
            raise BadValue(f"an amount with its unit, {expected}{nearest(match[2], units)}")
        return Amount(float(match[1]), match[2])

    return parse


def duration_s(value: object) -> float:
    """Return a duration such as "2 s" or "500 ms" in seconds; raise BadValue otherwise.

    Units are us, ms, s, min and h.
    """
    parsed: Amount = amount(*_SECONDS)(value)
    return parsed.value * _SECONDS[parsed.unit]


def timeout_s(value: object) -> float:
    """Return the seconds of a duration that can limit a wait: 10 ms to 1 h; raise BadValue otherwise."""
    timeout_s = duration_s(value)
    if not 0.01 <= timeout_s <= 3600:
        raise BadValue('a duration from "10 ms" to "1 h"')
    return timeout_s


def byte_count(value: object) -> int:
    """Return the bytes of a size such as "2 GiB", rounded down; raise BadValue otherwise.

    Units are B, kB, MB, GB, KiB, MiB and GiB.
    """
    parsed: Amount = amount(*_BYTES)(value)
    return int(parsed.value * _BYTES[parsed.unit])


_BAD_LIMIT = re.compile(rf"\s*({_NUMBER})\s*(%|samples?)\s*")


def bad_limit(value: object) -> BadLimit:
    """Return a limit from a share such as 0.01 or "1 %", or a number such as "20 samples"; raise BadValue otherwise.

    A share is from 0 to 1, or from 0 to 100 %; a number of samples is whole.
    """
    if _is_number(value) and 0 <= value <= 1:
        return BadLimit(float(value))
    match = _BAD_LIMIT.fullmatch(value) if isinstance(value, str) else None
    amount, unit = match.groups() if match else ("", "")
    if unit == "%" and float(amount) <= 100:
        return BadLimit(float(amount) / 100)
    if unit.startswith("sample") and amount.isdigit():
        return BadLimit(samples=int(amount))
    raise BadValue('a share such as "1 %" or 0.01, or a number such as "20 samples"')
