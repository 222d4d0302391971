"""Mistakes that change nothing anyone could notice: reviewed by a person, with the reason, in `equivalent.toml`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mutants.operators import Mutant

__all__ = ["LIST", "Equivalent", "read_equivalents", "require_fresh"]

LIST = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """In `module`, a line that reads `line` may as well read `becomes`."""

    module: str
    line: str
    becomes: str
    reason: str


def read_equivalents(path: Path = LIST) -> dict[tuple[str, str, str], Equivalent]:
    """The list, by what a mutant is known by."""
    entries = [Equivalent(**entry) for entry in tomllib.loads(path.read_text("utf-8")).get("equivalent", [])]
    return {(one.module, one.line, one.becomes): one for one in entries}


def require_fresh(equivalents: Iterable[Equivalent], mutants: Iterable[Mutant]) -> None:
    """Every entry still names a mistake that can be made; the code changes, and with it the reasons."""
    possible = {(one.module, one.before, one.after) for one in mutants}
    stale = [one for one in equivalents if (one.module, one.line, one.becomes) not in possible]
    if stale:
        listed = "".join(f"\n  {one.module}: {one.line}  ->  {one.becomes}" for one in stale)
        raise ValueError(f"{LIST.name} names mistakes that cannot be made any more; take out or renew: {listed}")
