"""`characters`: a transcript to int32 numbers, one for each character; 0 is left free for padding and blanks.

A letter is any character but blanks, punctuation and control characters: digits, symbols and combining marks carry
meaning as well. It is folded if the alphabet has it only in the other case, and dropped if the alphabet lacks both.

Rules: pure; characters are numbered from 1 in the order of the alphabet; numbers and counts of letters come from one
table, so counts match what happens to the texts. The declared length is the transcript's, an upper bound if unknown
characters are dropped. Texts that lose more than 5 % of their letters are refused, unless settings ask for it.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import SampleError, SettingsError, choice, setting, text, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.on_columns import OfColumns, listed
from shared.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.chain import Chain

__all__ = ["Alphabet", "Characters", "CharactersSettings", "LetterCounter", "LetterCounts", "counting_step"]

#: Share of letters that may be dropped if `unknown` is not given: typing errors and foreign names have less.
_MOST_DROPPED = 0.05
#: Most letters that a count names.
_NAMED = 10
_CODE_POINTS = 0x110000
#: Unicode categories of characters that are no letters: blanks, punctuation, control characters.
_NO_LETTERS = ("Z", "P", "C")
#: Fates of a character. Those of letters come first, so that `fates <= _DROPPED` finds letters.
_KEPT, _FOLDED, _DROPPED, _OTHER_KEPT, _OTHER_DROPPED, _NOT_LOOKED_UP = range(6)
#: Counts that blocks of texts simply add to.
_SUMS = ("samples", "letters", "folded", "others_dropped", "samples_dropped", "samples_folded", "samples_unknown")


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
class Characters(OfColumns):
    """Transform of `text`, a string, to int32 `[characters]`.

    Raise SettingsError if the alphabet names a character more than once.
    """

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
        #: Whether a sample with a character outside the alphabet is masked.
        self.masks = settings.unknown == "mask"
        self.alphabet = Alphabet(settings.alphabet)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the transcript by its numbers; raise SampleError for an unknown character if `unknown = "mask"`.

        Raise UnicodeEncodeError for a lone surrogate.
        """
        sample["text"] = self._numbered(sample["text"])

    def on_columns(self, columns: Columns) -> None:
        """Replace the transcripts of all samples by their numbers.

        Raise SampleError for an unknown character if `unknown = "mask"`, TypeError unless they are a list, KeyError if
        there are none, or UnicodeEncodeError for a lone surrogate.
        """
        columns["text"] = [self._numbered(words) for words in listed(columns, "text")]

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
        """Return the numbers of a text's characters; unknown ones are left out.

        Raise SampleError for an unknown character if `unknown = "mask"`, or UnicodeEncodeError for a lone surrogate.
        """
        points = np.frombuffer(words.encode("utf-32-le"), np.uint32)
        ids = self.alphabet.numbers_of(points)
        known = ids > 0
        if self.masks and not known.all():
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
    """Return the alphabet with further letters, upper-case if it has only such, else lower-case, quoted for TOML."""
    upper = any(map(str.isupper, alphabet)) and not any(map(str.islower, alphabet))
    cased = [other if len(other := letter.upper() if upper else letter.lower()) == 1 else letter for letter in more]
    return json.dumps(alphabet + "".join(dict.fromkeys(cased)), ensure_ascii=False)


# --- the alphabet, and counts of letters ---


class Alphabet:
    """Characters, numbered from 1 in their order; a letter that is there only in the other case counts as that one."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self._numbers = _numbers(characters)

    def numbers_of(self, points: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the number of each code point, in either case; 0 if it has none."""
        # The table ends one beyond the highest code point of the alphabet; that entry, 0, serves all higher ones.
        numbers: NDArray[np.int32] = self._numbers[np.minimum(points, len(self._numbers) - 1)]
        return numbers


def _numbers(alphabet: str) -> NDArray[np.int32]:
    """Return the table of numbers by code point; its last entry stands for all code points beyond, which have none."""
    numbers = {ord(character): place for place, character in enumerate(alphabet, 1)}
    for character in alphabet:
        for other in (character.upper(), character.lower()):
            if len(other) == 1:  # "ß".upper() is "SS": such a letter has no single other case
                numbers.setdefault(ord(other), numbers[ord(character)])
    table = np.zeros(max(numbers) + 2, np.int32)
    table[list(numbers)] = list(numbers.values())
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCounts:
    """Counts of all samples' letters by fate.

    `commonest` are the ten commonest dropped letters, `others_dropped` counts blanks, punctuation and control
    characters, and `samples_...` count samples that have any such character.
    """

    samples: int
    letters: int
    dropped: int
    folded: int
    others_dropped: int
    samples_dropped: int
    samples_folded: int
    #: Samples with any character outside the alphabet.
    samples_unknown: int
    commonest: tuple[tuple[str, int], ...]

    @property
    def share_dropped(self) -> float:
        """Return the share of letters that are dropped, from 0 to 1; 0 without letters."""
        return self.dropped / self.letters if self.letters else 0.0


def counting_step(chain: Chain) -> tuple[Characters, str] | None:
    """Return the first `characters` transform, and the name of the first user's own one before it ("" if none).

    Return None without a `characters`. A user's transform may change the texts, so that counts of the source's texts
    are not those of the batches.
    """
    own = ""
    for step in chain.steps:
        if isinstance(step.call, Characters):
            return step.call, own
        own = own or (step.name if ":" in step.name else "")
    return None


class LetterCounter:
    """Counter of the fates of letters in texts, block by block."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self._own = np.array(sorted(map(ord, alphabet.characters)), np.uint32)
        #: Fate of each code point, looked up when it first occurs.
        self._fates = np.full(_CODE_POINTS, _NOT_LOOKED_UP, np.uint8)
        #: How often each letter was dropped, by its code point.
        self._dropped: Counter[int] = Counter()
        #: All other counts, by their names in LetterCounts.
        self._sums = Counter(dict.fromkeys(_SUMS, 0))

    def add(self, texts: Sequence[str]) -> None:
        """Count the characters of further samples' texts by their fate, and the samples that have such characters."""
        # "surrogatepass", because a lone surrogate in one text must not end the count of all others.
        points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        fates = self._fates_of(points)
        places = {fate: np.flatnonzero(fates == fate) for fate in (_FOLDED, _DROPPED, _OTHER_DROPPED)}
        samples = {fate: _texts_with(found, ends) for fate, found in places.items()}
        letters, counts = np.unique(points[places[_DROPPED]], return_counts=True)
        self._dropped.update(dict(zip(letters.tolist(), counts.tolist(), strict=True)))
        self._sums.update(
            samples=len(texts),
            letters=int(np.count_nonzero(fates <= _DROPPED)),
            folded=len(places[_FOLDED]),
            others_dropped=len(places[_OTHER_DROPPED]),
            samples_dropped=len(samples[_DROPPED]),
            samples_folded=len(samples[_FOLDED]),
            samples_unknown=len(np.union1d(samples[_DROPPED], samples[_OTHER_DROPPED])),
        )

    def counts(self) -> LetterCounts:
        """Return the counts of all texts added so far, with only the commonest of the dropped letters by name."""
        commonest = sorted(self._dropped.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]
        return LetterCounts(
            dropped=self._dropped.total(),
            commonest=tuple((chr(point), count) for point, count in commonest),
            **self._sums,
        )

    def _fates_of(self, points: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Return the fate of each code point, looking up those that occur for the first time."""
        fates = np.take(self._fates, points)
        # Unicode's categories are looked up once for each character that occurs, which is slow Python code.
        if fates.max(initial=_KEPT) == _NOT_LOOKED_UP:
            new = np.unique(points[fates == _NOT_LOOKED_UP])
            unknown, own = self._alphabet.numbers_of(new) == 0, np.isin(new, self._own)
            letters = np.array([unicodedata.category(chr(point))[0] not in _NO_LETTERS for point in new.tolist()])
            of_letters = np.where(unknown, _DROPPED, np.where(own, _KEPT, _FOLDED))
            self._fates[new] = np.where(letters, of_letters, np.where(unknown, _OTHER_DROPPED, _OTHER_KEPT))
            fates = np.take(self._fates, points)
        return fates


def _texts_with(characters: NDArray[np.intp], ends: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return which texts have any of the characters at these ascending places; `ends` are the ends of the texts."""
    of_texts = np.searchsorted(ends, characters, side="right")
    return of_texts[np.flatnonzero(np.diff(of_texts, prepend=-1))]
