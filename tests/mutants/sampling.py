"""Which mistakes are tried: lines at random, each as likely as any other, and one mistake for a line.

Lines are ranked by a keyed hash of their text, not by their place: while the code around it changes, most of a sample
stays what it was, so two figures can be compared. Another seed gives another sample.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.mutants.operators import Mutant, mutants_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.mutants.equivalent import Equivalent

__all__ = ["Sample", "draw", "mutants_in"]


@dataclass(frozen=True, slots=True)
class Sample:
    """What is tried, and what would have been tried if it were not known to change nothing."""

    mutants: list[Mutant]
    left_out: list[tuple[Mutant, Equivalent]]


def mutants_in(root: Path, modules: Iterable[str]) -> list[Mutant]:
    """All mistakes that can be put into these modules."""
    return [mutant for module in modules for mutant in mutants_of(module, (root / module).read_bytes())]


def draw(
    mutants: list[Mutant], count: int, seed: int, equivalents: Mapping[tuple[str, str, str], Equivalent]
) -> Sample:
    """So many mutants, or as many as there are lines that may hold one."""
    sample = Sample([], [])
    for key, candidates in sorted(_by_line(mutants).items(), key=lambda line: _rank(seed, *line[0])):
        if len(sample.mutants) == count:
            break
        chosen = min(candidates, key=lambda one: _rank(seed, *key, one.edit.operator, one.after))
        known = equivalents.get((chosen.module, chosen.before, chosen.after))
        if known is None:
            sample.mutants.append(chosen)
        else:
            sample.left_out.append((chosen, known))
    return sample


def _by_line(mutants: list[Mutant]) -> dict[tuple[str, str, int], list[Mutant]]:
    """A line is known by its module, its text, and how often that text stood in the module before."""
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        lines[mutant.module, mutant.line].append(mutant)
    seen: Counter[tuple[str, str]] = Counter()
    named = {}
    for (module, _), candidates in sorted(lines.items()):
        text = candidates[0].before
        named[module, text, seen[module, text]] = candidates
        seen[module, text] += 1
    return named


def _rank(seed: int, *parts: object) -> bytes:
    return hashlib.blake2b(repr((seed, *parts)).encode(), digest_size=8).digest()
