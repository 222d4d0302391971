"""Notes of `index` and `plan` on how transforms treat a source's data, and of `plan` on their code.

They cover letters that are dropped or folded, recordings whose rate is below what features are made for, native code
that may not keep to the job's processor level, and tokens that are padded with another id than their tokenizer's.

Rules: facts are plain numbers and strings, ready for JSON; the lines for people are made from them.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.index.request import NOT_AT_HAND, letters_report
from loader_server.processor.native_code import native_code_lines
from loader_server.transforms.audio.low_rates import low_rates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.index.joined import OpenedSource
    from loader_server.index.request import LettersReport
    from loader_server.transforms.audio.low_rates import LowRate
    from loader_server.transforms.chain import Chain

__all__ = ["facts_of", "lines_of", "low_rates_of", "notes_of"]

Facts = dict[str, Any]

#: Limit of samples whose letters are counted on the spot; counting more takes some seconds, so only `index` does it.
_COUNTED_AT_ONCE = 1_000_000
_INDEX_COUNTS = "the index was made without these counts; loader-server index makes them, if samples need no decoding"


def notes_of(chain: Chain, opened: OpenedSource) -> Facts:
    """Return the notes on an indexed source; count letters that indexing did not count, if that is quick.

    Without anything to note they are empty. Errors of reading the source pass through.

    Raises:
        DataError: The chain drops more letters than anybody may want.
    """
    quick = opened.index.samples <= _COUNTED_AT_ONCE
    columns = opened.index.folder / opened.index.meta.folder
    letters = letters_report(chain, columns, (lambda: opened.source) if quick else None)
    if letters is not None:
        letters.refuse_dropping(opened.where)
        if not quick and letters.not_counted == NOT_AT_HAND:
            letters = replace(letters, not_counted=_INDEX_COUNTS)
    return facts_of(letters, low_rates_of(chain, opened))


def low_rates_of(chain: Chain, opened: OpenedSource) -> tuple[LowRate, ...]:
    """Return the groups of recordings whose rate is below what a transform resamples them to; () without rates.

    Groups count only if the transform makes no bands, or bands stay empty.
    """
    rates = opened.source.uncut.lengths.get("audio_rate")
    return () if rates is None else tuple(low_rates(chain, np.asarray(rates)))


def facts_of(letters: LettersReport | None, rates: tuple[LowRate, ...]) -> Facts:
    """Return facts on letters, if a transform drops any, and on recordings with a low rate, if there are any.

    The facts on letters are counts, or the reason why there are none. Without either the result is empty.
    """
    facts: Facts = {"low_rates": [asdict(rate) for rate in rates]} if rates else {}
    if letters is None:
        return facts
    if letters.counts is None:
        return facts | {"letters": {"not_counted": letters.not_counted}}
    counts = asdict(letters.counts) | {"commonest": dict(letters.counts.commonest)}
    return facts | {"letters": counts | {"unknown": "mask" if letters.step.masks else "drop"}}


def lines_of(notes: Facts) -> Iterator[str]:
    """Yield the notes as lines for people; none if there is nothing to note."""
    if "letters" in notes:
        yield f"characters: {_letters_line(notes['letters'])}"
    yield from map(_rate_line, notes.get("low_rates", ()))
    yield from native_code_lines(notes.get("native_code", {}))
    yield from (_padding_line(key, *note) for key, note in notes.get("padding", {}).items())


def _letters_line(counts: Facts) -> str:
    """Return how many letters are dropped, masked or folded, or why that is not known.

    Which letters are dropped is listed by frequency, with the number of samples that hold them.
    """
    if "not_counted" in counts:
        return f"letters not counted: {counts['not_counted']}"
    masks = counts["unknown"] == "mask"
    outside = "outside the alphabet" if masks else "dropped"
    parts = [f"none of {counts['letters']:,} letters {outside}"]
    if counts["dropped"]:
        named = ", ".join(f"{letter!r} {count:,}" for letter, count in counts["commonest"].items())
        share = f"{100 * counts['dropped'] / counts['letters']:.1f} %"
        samples = f"in {counts['samples_dropped']:,} of {counts['samples']:,} samples"
        parts = [f"{counts['dropped']:,} of {counts['letters']:,} letters {outside} ({share}), {samples}: {named}"]
    if counts["folded"]:
        parts.append(f"{counts['folded']:,} folded to the other case, in {counts['samples_folded']:,} samples")
    if counts["others_dropped"]:
        parts.append(f"{counts['others_dropped']:,} blanks and punctuation {outside}")
    if masks:
        parts.append(f"{counts['samples_unknown']:,} samples are masked")
    return "; ".join(parts)


def _padding_line(key: str, tokenizer: str, token: int) -> str:
    return (
        f'{tokenizer}: the padding token of "{key}" is {token}, and batches are padded with 0: write '
        f'padding = {{ {key} = "tokenizer" }}, or {{ {key} = 0 }} to leave it so'
    )


def _rate_line(rate: Facts) -> str:
    empty = (
        f"{rate['empty_bands']} of {rate['bands']} bands are above {rate['highest_hz']:,g} Hz and get nothing"
        if rate["bands"]
        else f"there is nothing above {rate['highest_hz']:,g} Hz"
    )
    return (
        f"{rate['transform']}: {rate['samples']:,} samples are recorded at {rate['own_rate']:,} Hz and resampled to "
        f"{rate['rate']:,} Hz: {empty}"
    )
