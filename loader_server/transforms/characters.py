"""`characters`: a transcript to int32 numbers, one for each character; 0 is left free for padding and blanks.

Rules: pure; characters are numbered from 1 in the order of the alphabet; a letter that the alphabet has only in the
other case counts as that one. The declared length is the transcript's, an upper bound where unknown characters are
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.transforms import SampleError, SettingsError, choice, setting, text, transform
from loader_server.transforms.columns import OfColumns, listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loader_server.transforms.columns import Columns

__all__ = ["Characters", "CharactersSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CharactersSettings:
    """The table [streams.<name>.characters]."""

    alphabet: str = setting(
        text, "the characters that are numbered from 1", default="abcdefghijklmnopqrstuvwxyz '0123456789"
    )
    unknown: str = setting(
        choice("drop", "mask"), "a character outside the alphabet is left out, or masks the sample", default="drop"
    )


@transform(
    {"text": ("int32", None)},
    lengths={"text": lambda lengths: lengths["text"]},
    settings=CharactersSettings,
    draws=False,
)
class Characters(OfColumns):
    """The transform: `text`, a string, becomes int32 `[characters]`."""

    def __init__(self, settings: CharactersSettings) -> None:
        twice = sorted({c for c in settings.alphabet if settings.alphabet.count(c) > 1})
        if twice:
            raise SettingsError(
                expected="an alphabet that names each character once",
                got=f"{twice[0]!r} more than once",
                where="alphabet",
                remedy="Remove one of them.",
            )
        self._masks = settings.unknown == "mask"
        self._numbers = _numbers(settings.alphabet)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:  # noqa: ARG002 - every transform gets it
        """Replace the transcript by its numbers."""
        sample["text"] = self._numbered(sample["text"])

    def on_columns(self, columns: Columns) -> None:
        """Replace the transcripts of all samples."""
        columns["text"] = [self._numbered(words) for words in listed(columns, "text")]

    def _numbered(self, words: str) -> NDArray[np.int32]:
        points = np.frombuffer(words.encode("utf-32-le"), np.uint32)
        ids = self._numbers[np.minimum(points, len(self._numbers) - 1)]
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


def _numbers(alphabet: str) -> NDArray[np.int32]:
    """The number of each code point; the last entry is for all code points beyond, which have none."""
    numbers = {ord(character): place for place, character in enumerate(alphabet, 1)}
    for character in alphabet:
        for other in (character.upper(), character.lower()):
            if len(other) == 1:
                numbers.setdefault(ord(other), numbers[ord(character)])
    table = np.zeros(max(numbers) + 2, np.int32)
    table[list(numbers)] = list(numbers.values())
    return table
