"""What a transform does to the letters of an index's samples: counted while the index is made, kept beside its columns.

Rules: the file is no column, so the fingerprint does not depend on it; it names the alphabet, and counts for another
one are made anew. What reaches the transform is counted, or nothing: after a user's own transform, or where texts can
only be had by decoding samples, the report says why there are no counts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from loader_server.transforms.letters import LetterCounter, LetterCounts, counting_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loader_server.sources.source import Source
    from loader_server.transforms.chain import Chain
    from loader_server.transforms.letters import Alphabet

__all__ = ["NOT_AT_HAND", "LettersReport", "count_letters", "kept_counts", "letters_report"]

_FILE = "letters.json"

NOT_AT_HAND = "the texts of this source are only at hand once its samples are decoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersReport:
    """What becomes of letters, or why they are not counted; `masks`: samples with an unknown character are masked."""

    counts: LetterCounts | None = None
    masks: bool = False
    not_counted: str = ""


def count_letters(chain: Chain | None, opened: Callable[[], Source], columns: Path, where: str) -> None:
    """Count the letters that a chain drops and folds, unless that was done for its alphabet, and keep the counts beside
    the columns of an index; `opened` opens its source.

    Raises:
        DataError: The chain drops more letters than anybody may want.

    """
    found = counting_step(chain) if chain is not None else None
    if found is None or found[1]:
        return
    step, _ = found
    counts = kept_counts(columns, step.alphabet) or _counted(opened(), step.key, step.alphabet)
    if counts is not None:
        _keep(columns, step.alphabet, counts)
        step.refuse_dropping(counts, where)


def letters_report(
    chain: Chain | None, columns: Path, where: str, source: Source | None = None
) -> LettersReport | None:
    """Return what becomes of the letters of an index's samples; None if the chain drops none.

    Letters that were not counted for this alphabet while indexing are counted now, if the open `source` is given.

    Raises:
        DataError: The chain drops more letters than anybody may want.

    """
    found = counting_step(chain) if chain is not None else None
    if found is None:
        return None
    step, own = found
    if own:
        return LettersReport(not_counted=f"{own} comes before it and may change the texts")
    counts = kept_counts(columns, step.alphabet)
    if counts is None and source is not None:
        counts = _counted(source, step.key, step.alphabet)
    if counts is None:
        return LettersReport(not_counted=NOT_AT_HAND)
    step.refuse_dropping(counts, where)
    return LettersReport(counts=counts, masks=step.masks)


def _counted(source: Source, key: str, alphabet: Alphabet) -> LetterCounts | None:
    blocks = source.uncut.texts(key)
    if blocks is None:
        return None
    counter = LetterCounter(alphabet)
    for block in blocks:
        counter.add(block)
    return counter.counts()


def kept_counts(columns: Path, alphabet: Alphabet) -> LetterCounts | None:
    """Return the counts that are kept beside the columns of an index; None if there are none for this alphabet."""
    try:
        kept = json.loads((columns / _FILE).read_text("utf-8"))
        if kept.pop("alphabet") != alphabet.characters:
            return None
        commonest = tuple((str(letter), int(count)) for letter, count in kept.pop("commonest"))
        return LetterCounts(commonest=commonest, **kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _keep(columns: Path, alphabet: Alphabet, counts: LetterCounts) -> None:
    kept: dict[str, Any] = {"alphabet": alphabet.characters, **asdict(counts)}
    draft = columns / f"{_FILE}.new"
    draft.write_text(json.dumps(kept), "utf-8")
    draft.replace(columns / _FILE)
