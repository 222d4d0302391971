"""Checks of the arguments of public calls, `connect` first, made before anything is opened, sent, moved or waited for.

Rules: pure; each check returns the value in its plain form, or raises a SettingsError that names the call, what it
expected and what it got. Bounds of messages are not repeated here: `shared.wire.codec` keeps them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.wire.topics.work_messages import MEASURE
from trainer_client.core.workers.open_connections import MOST_REMOTE

if TYPE_CHECKING:
    from trainer_client.core.upcoming import Ranks

__all__ = [
    "fields_of_state",
    "only_here",
    "refuse_fixed_places",
    "refuse_nonsense",
    "refuse_numbers",
    "refuse_texts",
    "refuse_work",
    "refused",
    "seconds",
    "whole",
]

_SHOWN = 100

#: The allowed kinds of work with batches.
_WORK = ("train", "evaluate", "predict", MEASURE)

#: Numbers whose default is not None, so that None is refused for them.
_NEVER_LEFT_OPEN = ("replicas", "workers")

#: Prefetching more than this takes memory and gains nothing.
_MOST_PREFETCH = 1024

#: The largest world that a message can state.
_MOST_RANKS = 4096

#: The length of `elastic`: least and most.
_LIMITS = 2


def whole(value: Any, name: str, where: str, *, least: int = 0, most: int = 2**48) -> int:
    """Return a whole number from `least` to `most` as int; raise SettingsError for any other value.

    numpy's integers are allowed; booleans, floats and None are not.
    """
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
    """Return a time in seconds as float: above 0, or at least 0 if it `may_be_zero`; infinity is allowed.

    Raise SettingsError for any other value, booleans, NaN and numpy's numbers but float64 included.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or value < 0 or (value == 0 and not may_be_zero):
        raise refused(f"{name}, seconds {'of at least' if may_be_zero else 'above'} 0", value, where)
    return float(value)


def fields_of_state(state: Any, names: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """Return a state from a checkpoint; raise SettingsError unless it is a mapping with all these names."""
    if not isinstance(state, Mapping):
        raise refused("what state() returned", state, where)
    missing = [name for name in names if name not in state]
    if missing:
        raise refused(f"what state() returned, with {', '.join(names)}", f"a state without {missing[0]}", where)
    return state


def refused(expected: str, got: Any, where: str) -> SettingsError:
    """Return the SettingsError for a value that a call cannot take; it shows 100 characters of the value at most."""
    shown = got if isinstance(got, str) and got.startswith("a state") else repr(got)
    return SettingsError(expected=expected, got=shown[:_SHOWN], where=where, remedy="Correct the call.")


def only_here(what: str) -> SettingsError:
    """Return the SettingsError for pickling an object (`what`, in words) of the process that connected it."""
    return SettingsError(
        expected=f"{what} that stays in the process that connected it",
        got="one to be pickled: its connections and its memory cannot be sent",
        where="pickle",
        remedy="Call connect in the process that reads, with its own rank and world. What can be sent is feed.state().",
    )


# --- arguments of connect ---


def refuse_numbers(**numbers: int | None) -> None:
    """Raise SettingsError for a value that is no whole number; `refuse_nonsense` checks which fit together.

    None is allowed except for `replicas` and `workers`. Refused as well: `epochs` below 1, and numbers beyond 2**48 in
    either direction.
    """
    for name, number in numbers.items():
        if number is not None or name in _NEVER_LEFT_OPEN:
            whole(number, name, "connect", least=1 if name == "epochs" else -(2**48))


def refuse_texts(**texts: str | None) -> None:
    """Raise SettingsError for a value that is no string; None is allowed except for the endpoint and the stream."""
    for name, value in texts.items():
        if not isinstance(value, str) and (value is not None or name in ("endpoint", "stream")):
            raise refused(f"{name}, a string", value, "connect")


def refuse_work(work: str | None) -> None:
    """Raise SettingsError for an unknown kind of work; None is allowed, as are train, evaluate, predict and MEASURE."""
    if work is not None and work not in _WORK:
        raise refused(f"work, one of {', '.join(map(repr, _WORK))}", work, "connect")


def refuse_nonsense(ranks: Ranks, prefetch: int | None, workers: int) -> None:
    """Raise SettingsError for ranks outside their world, or a prefetch or number of workers out of its bounds.

    There has to be at least one replica. A prefetch may be None or from 1 to 1024, workers from 1 to MOST_REMOTE.
    """
    if not 0 <= ranks.rank <= ranks.world - ranks.replicas or ranks.replicas < 1:
        got = f"rank {ranks.rank}, replicas {ranks.replicas}, world {ranks.world}"
        raise _nonsense("rank >= 0 and rank + replicas <= world", got, "Ranks count from 0; world counts all ranks.")
    if prefetch is not None and not 1 <= prefetch <= _MOST_PREFETCH:
        raise _nonsense(f"prefetch from 1 to {_MOST_PREFETCH}", str(prefetch), "Leave it out: 8 is usual.")
    if not 1 <= workers <= MOST_REMOTE:
        raise _nonsense(f"workers from 1 to {MOST_REMOTE}", str(workers), "Leave it out: 16 is usual.")


def refuse_fixed_places(ranks: Ranks, rank: int | None, elastic: tuple[int, int]) -> None:
    """Raise SettingsError for invalid limits of an elastic world, or for fixed ranks beside valid ones.

    Limits are a pair of whole numbers, least and most, from 1 to 4096. Ranks are fixed if `rank` is given, or if the
    world has more ranks than this trainer's.
    """
    is_pair = isinstance(elastic, tuple | list) and len(elastic) == _LIMITS
    least, most = (whole(limit, "elastic", "connect") for limit in elastic) if is_pair else (0, 0)
    if not 1 <= least <= most <= _MOST_RANKS:
        expected = f"elastic=(least, most), from 1 to {_MOST_RANKS}"
        raise _nonsense(expected, f"elastic={elastic}", "Write (2, 4), for example.")
    if rank is not None or ranks.world > ranks.replicas:
        got = f"rank {ranks.rank} of {ranks.world}, and elastic={elastic}"
        remedy = (
            "Leave rank and world out: the coordinator gives them. A strategy over several processes cannot change its "
            "world: leave elastic out, and have all of them started anew."
        )
        raise _nonsense("either fixed ranks or elastic", got, remedy)


def _nonsense(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="connect", remedy=remedy)
