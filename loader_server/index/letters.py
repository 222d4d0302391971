"""The effect of a transform on the letters of an index's samples: counted with the index, kept beside its columns.

Rules: the file is no column, so the fingerprint does not depend on it; it names the alphabet, and counts for another
one are made anew. Either everything that reaches the transform is counted, or nothing: after a user's own transform, or
if texts can only be had by decoding samples, the report says why there are no counts.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loader_server.transforms.characters import LetterCounter, LetterCounts, counting_step
from shared.system.own_files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader_server.sources.source import Source
    from loader_server.transforms.chain import Chain
    from loader_server.transforms.characters import Alphabet, Characters

__all__ = ["NOT_AT_HAND", "LettersReport", "kept_counts", "letters_report"]

_FILE = "letters.json"

NOT_AT_HAND = "the texts of this source are at hand only when its samples are read"


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersReport:
    """The effect of a transform on the letters of an index's samples: its counts, or why there are none."""

    step: Characters
    counts: LetterCounts | None = None
    not_counted: str = ""
    #: Whether the counts were made just now, and are not kept yet.
    is_new: bool = False

    def keep(self, columns: Path) -> None:
        """Write new counts beside an index's columns; if that fails, they are made anew when needed."""
        if self.counts is None or not self.is_new:
            return
        kept: dict[str, Any] = {"alphabet": self.step.alphabet.characters, **asdict(self.counts)}
        # An index may be read-only, or on a full disk: the counts are only a cache.
        with contextlib.suppress(OSError), replacing(columns / _FILE) as file:
            file.write(json.dumps(kept).encode())

    def refuse_dropping(self, where: str) -> None:
        """Raise a DataError if the transform drops too many letters."""
        if self.counts is not None:
            self.step.refuse_dropping(self.counts, where)


def letters_report(chain: Chain, columns: Path, opened: Callable[[], Source] | None) -> LettersReport | None:
    """Return the effect of a chain on the letters of an index's samples; None if the chain drops none.

    Letters that were not counted for this alphabet before are counted now, in the source that `opened` gives.
    """
    found = counting_step(chain)
    if found is None:
        return None
    step, own = found
    if own:
        return LettersReport(step=step, not_counted=f"{own} comes before it and may change the texts")
    kept = kept_counts(columns, step.alphabet)
    if kept is not None:
        return LettersReport(step=step, counts=kept)
    blocks = opened().uncut.texts(step.key) if opened is not None else None
    if blocks is None:
        return LettersReport(step=step, not_counted=NOT_AT_HAND)
    counter = LetterCounter(step.alphabet)
    for block in blocks:
        counter.add(block)
    return LettersReport(step=step, counts=counter.counts(), is_new=True)


def kept_counts(columns: Path, alphabet: Alphabet) -> LetterCounts | None:
    """Return the counts kept beside an index's columns; None if there are none, or those of another alphabet."""
    try:
        kept = json.loads((columns / _FILE).read_text("utf-8"))
        if kept.pop("alphabet") != alphabet.characters:
            return None
        commonest = tuple((str(letter), int(count)) for letter, count in kept.pop("commonest"))
        return LetterCounts(commonest=commonest, **kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
