"""`characters`: a transcript to int32 numbers, one for each character; 0 is left free for padding and blanks.

Rules: pure; characters are numbered from 1 in the order of the alphabet; a letter that the alphabet has only in the
other case counts as that one (`letters`). The declared length is the transcript's, an upper bound if unknown characters
are dropped. Texts that lose more than 5 % of their letters are refused, unless settings ask for it.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import SampleError, SettingsError, choice, setting, text, transform
from loader_server.transforms.columns import listed
from loader_server.transforms.declare import built_in
from loader_server.transforms.letters import Alphabet, CountsLetters
from shared.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.letters import LetterCounts

__all__ = ["Characters", "CharactersSettings"]

#: Share of letters that may be dropped if `unknown` is not given: typing errors and foreign names have less.
_MOST_DROPPED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CharactersSettings:
    """The table [streams.<name>.characters]."""

    alphabet: str = setting(
        text, "the characters that are numbered from 1", default="abcdefghijklmnopqrstuvwxyz '0123456789"
    )
    unknown: str | None = setting(
        choice("drop", "mask"),
        'a character outside the alphabet is left out ("drop"), or masks the sample ("mask"); not given: it is left '
        "out, and data are refused that lose more than 5 % of their letters",
        default=None,
        means="drop",
    )


@built_in("characters")
@transform(
    {"text": ("int32", None)},
    lengths={"text": lambda lengths: lengths["text"]},
    settings=CharactersSettings,
    draws=False,
)
class Characters(CountsLetters):
    """Transform of `text`, a string, to int32 `[characters]`."""

    key = "text"

    def __init__(self, settings: CharactersSettings) -> None:
        twice = sorted({c for c in settings.alphabet if settings.alphabet.count(c) > 1})
        if twice:
            raise SettingsError(
                expected="an alphabet that names each character once",
                got=f"{twice[0]!r} more than once",
                where="alphabet",
                remedy="Remove one of them.",
            )
        self._unknown = settings.unknown
        self._masks = settings.unknown == "mask"
        self.alphabet = Alphabet(settings.alphabet)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the transcript by its numbers; raise SampleError for an unknown character if `unknown = "mask"`."""
        sample["text"] = self._numbered(sample["text"])

    def on_columns(self, columns: Columns) -> None:
        """Replace the transcripts of all samples by their numbers."""
        columns["text"] = [self._numbered(words) for words in listed(columns, "text")]

    @property
    def masks(self) -> bool:
        """Whether `unknown` is "mask"."""
        return self._masks

    def refuse_dropping(self, counts: LetterCounts, where: str) -> None:
        """Raise DataError if more than 5 % of all letters are dropped and `unknown` is not given."""
        if self._unknown is not None or counts.share_dropped <= _MOST_DROPPED:
            return
        letters = [letter for letter, _ in counts.commonest]
        raise DataError(
            expected=f"at most {100 * _MOST_DROPPED:g} % of the letters outside the alphabet",
            got=f"{counts.dropped:,} of {counts.letters:,} ({100 * counts.share_dropped:.1f} %), in "
            f"{counts.samples_dropped:,} of {counts.samples:,} samples, most often {_named(counts)}",
            where=where,
            remedy=f"Write alphabet = {_quoted(self.alphabet.characters, letters)}, which has these as well, or "
            'unknown = "drop", which leaves them out, below [streams.<name>.characters].',
        )

    def _numbered(self, words: str) -> NDArray[np.int32]:
        # UTF-32 has one number for each character, so numpy looks all of them up at once.
        points = np.frombuffer(words.encode("utf-32-le"), np.uint32)
        ids = self.alphabet.numbers_of(points)
        known = ids > 0
        if self._masks and not known.all():
            raise SampleError(
                reason="unknown_character",
                expected="characters of the alphabet",
                got=repr(words[int(np.argmin(known))]),
                where=f"transform characters, text {words[:80]!r}",
                remedy='Add it to the alphabet, or set unknown = "drop".',
            )
        return ids[known]


def _named(counts: LetterCounts) -> str:
    """Return the commonest dropped letters, and how often each occurs."""
    return ", ".join(f"{_shown(letter)} {count:,}" for letter, count in counts.commonest)


def _shown(letter: str) -> str:
    """Return a letter in readable form: a combining mark, which would join the quote before it, as its code point."""
    return f"U+{ord(letter):04X}" if unicodedata.category(letter).startswith("M") else repr(letter)


def _quoted(alphabet: str, more: list[str]) -> str:
    """Return the alphabet with further letters, in the alphabet's case, quoted for TOML."""
    upper = any(map(str.isupper, alphabet)) and not any(map(str.islower, alphabet))
    cased = [other if len(other := letter.upper() if upper else letter.lower()) == 1 else letter for letter in more]
    return json.dumps(alphabet + "".join(dict.fromkeys(cased)), ensure_ascii=False)
