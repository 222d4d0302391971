"""An alphabet's effect on characters: their numbers, and how many letters are dropped or folded.

A letter is any character but blanks, punctuation and control characters: digits, symbols and combining marks carry
meaning as well. It is folded if the alphabet has it only in the other case, and dropped if the alphabet lacks both.

Rules: pure; numbers and counts come from one table, so counts match what happens to the texts.
"""

from __future__ import annotations

import abc
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loader_server.transforms.columns import OfColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loader_server.transforms.chain import Chain

__all__ = ["Alphabet", "CountsLetters", "LetterCounter", "LetterCounts", "counting_step"]

#: Most letters that a count names.
_NAMED = 10
_CODE_POINTS = 0x110000
#: Unicode categories of characters that are no letters: blanks, punctuation, control characters.
_NO_LETTERS = ("Z", "P", "C")
#: Fates of a character. Those of letters come first, so that `fates <= _DROPPED` finds letters.
_KEPT, _FOLDED, _DROPPED, _OTHER_KEPT, _OTHER_DROPPED, _NOT_LOOKED_UP = range(6)


class Alphabet:
    """Characters, numbered from 1 in their order; a letter that is there only in the other case counts as that one."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self._numbers = _numbers(characters)

    def numbers_of(self, points: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Return the number of each code point; 0 if it has none."""
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
        """Share of letters that are dropped."""
        return self.dropped / self.letters if self.letters else 0.0


class CountsLetters(OfColumns):
    """Transform that drops or folds letters of the texts under `key`."""

    key: str
    alphabet: Alphabet

    @property
    @abc.abstractmethod
    def masks(self) -> bool:
        """Whether a sample with a character outside the alphabet is masked."""

    @abc.abstractmethod
    def refuse_dropping(self, counts: LetterCounts, where: str) -> None:
        """Raise DataError if more letters are dropped than anybody may want."""


def counting_step(chain: Chain) -> tuple[CountsLetters, str] | None:
    """Return the transform that drops letters, and the name of a user's own one before it; None if none drops any.

    A user's transform may change the texts, so that counts of the source's texts are not those of the batches.
    """
    own = ""
    for step in chain.steps:
        if isinstance(step.call, CountsLetters):
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
        self._dropped: Counter[int] = Counter()
        self._letters = self._folded = self._others_dropped = 0
        self._samples = self._samples_dropped = self._samples_folded = self._samples_unknown = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count the texts of further samples."""
        # "surrogatepass", because a lone surrogate in one text must not end the count of all others.
        points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        fates = self._fates_of(points)
        places = {fate: np.flatnonzero(fates == fate) for fate in (_FOLDED, _DROPPED, _OTHER_DROPPED)}
        samples = {fate: _texts_with(found, ends) for fate, found in places.items()}
        self._letters += int(np.count_nonzero(fates <= _DROPPED))
        self._folded += len(places[_FOLDED])
        self._others_dropped += len(places[_OTHER_DROPPED])
        letters, counts = np.unique(points[places[_DROPPED]], return_counts=True)
        self._dropped.update(dict(zip(letters.tolist(), counts.tolist(), strict=True)))
        self._samples += len(texts)
        self._samples_dropped += len(samples[_DROPPED])
        self._samples_folded += len(samples[_FOLDED])
        self._samples_unknown += len(np.union1d(samples[_DROPPED], samples[_OTHER_DROPPED]))

    def counts(self) -> LetterCounts:
        """Return the counts so far."""
        commonest = sorted(self._dropped.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]
        return LetterCounts(
            samples=self._samples,
            letters=self._letters,
            dropped=self._dropped.total(),
            folded=self._folded,
            others_dropped=self._others_dropped,
            samples_dropped=self._samples_dropped,
            samples_folded=self._samples_folded,
            samples_unknown=self._samples_unknown,
            commonest=tuple((chr(point), count) for point, count in commonest),
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
