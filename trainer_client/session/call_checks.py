"""Checks of the arguments of public calls, made before anything is sent, moved or waited for.

Rules: pure; each check returns the value in its plain form, or raises a SettingsError that names the call, what it
expected and what it got. Bounds of messages are not repeated here: `shared.wire.codec` keeps them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from shared.errors import SettingsError

__all__ = ["fields_of_state", "only_here", "refused", "seconds", "text", "whole"]

_SHOWN = 100


def whole(value: Any, name: str, where: str, *, least: int = 0, most: int = 2**48) -> int:
    """Return a whole number from `least` to `most` as int; numpy's integers are allowed, booleans are not."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        is_above = number is not None and number > most
        upto = f" to {most}" if most < 2**48 or is_above else " on"
        raise refused(f"{name}, a whole number from {least}{upto}", value, where)
    return number


def seconds(value: Any, name: str, where: str, *, may_be_zero: bool = False) -> float:
    """Return a time in seconds as float: above 0, or at least 0 if it `may_be_zero`; infinity is allowed."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or value < 0 or (value == 0 and not may_be_zero):
        raise refused(f"{name}, seconds {'of at least' if may_be_zero else 'above'} 0", value, where)
    return float(value)


def text(value: Any, name: str, where: str) -> str:
    """Return the value if it is a string."""
    if not isinstance(value, str):
        raise refused(f"{name}, a string", value, where)
    return value


def fields_of_state(state: Any, names: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """Return a state from a checkpoint, if it is a mapping with all these names."""
    if not isinstance(state, Mapping):
        raise refused("what state() returned", state, where)
    missing = [name for name in names if name not in state]
    if missing:
        raise refused(f"what state() returned, with {', '.join(names)}", f"a state without {missing[0]}", where)
    return state


def refused(expected: str, got: Any, where: str) -> SettingsError:
    """Return the error for a value that a call cannot take."""
    shown = got if isinstance(got, str) and got.startswith("a state") else repr(got)
    return SettingsError(expected=expected, got=shown[:_SHOWN], where=where, remedy="Correct the call.")


def only_here(what: str) -> SettingsError:
    """Return the error for pickling an object that belongs to the process that connected it."""
    return SettingsError(
        expected=f"{what} that stays in the process that connected it",
        got="one to be pickled: its connections and its memory cannot be sent",
        where="pickle",
        remedy="Call connect in the process that reads, with its own rank and world. What can be sent is feed.state().",
    )
