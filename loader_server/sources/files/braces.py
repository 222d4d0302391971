"""File names with braces, as shells and WebDataset expand them: `shard-{0000..0099}.tar`, `{train,more}.tar`.

Rules: pure. Numbers keep their leading zeros; ranges may fall; several braces of a name are all combined, the last one
fastest. Anything else stays as it is, and so do nested braces.
"""

from __future__ import annotations

import math
import re
from itertools import product

from shared.errors import SettingsError

__all__ = ["names_meant"]

_BRACES = re.compile(r"\{([^{}]*(?:\.\.|,)[^{}]*)\}")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(\d{1,18}))?")
#: More names than this must be a typing error.
_MOST_NAMES = 1_000_000


def names_meant(name: str) -> list[str]:
    """Return all names that a name with braces stands for; a name without braces stands for itself.

    Raise a SettingsError if there are more than a million.
    """
    pieces = _BRACES.split(name)
    choices = [[piece] if place % 2 == 0 else _choices(piece, name) for place, piece in enumerate(pieces)]
    # Counted before the names are made: a few braces may stand for billions.
    total = math.prod(map(len, choices))
    if total > _MOST_NAMES:
        raise _too_many(name, total)
    return ["".join(combined) for combined in product(*choices)]


def _choices(within: str, name: str) -> list[str]:
    """Return what the text within a pair of braces stands for; raise a SettingsError for too long a range.

    A text that is neither a range nor a list keeps its braces.
    """
    limits = _RANGE.fullmatch(within)
    if limits is None:
        return within.split(",") if "," in within else [f"{{{within}}}"]
    first, last, step = int(limits[1]), int(limits[2]), max(int(limits[3] or 1), 1)
    # Before the range becomes a list, which could take all memory.
    if abs(last - first) // step >= _MOST_NAMES:
        raise _too_many(name, abs(last - first) // step + 1)
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    # As in bash, one limit with leading zeros is enough, and all names are as wide as the wider limit.
    is_padded = any(re.match(r"-?0\d", text) for text in limits.groups()[:2])
    width = max(len(limits[1]), len(limits[2])) if is_padded else 0
    return [f"{number:0{width}}" for number in numbers]


def _too_many(name: str, total: int) -> SettingsError:
    return SettingsError(
        expected=f"braces that stand for at most {_MOST_NAMES} names",
        got=f"{total} of them",
        where=name,
        remedy="Mend `paths` of the stream, or name a folder or a pattern.",
    )
