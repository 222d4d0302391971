"""What the lines of a Kaldi data folder mean: where an utterance's audio or features are, what was said, and by whom.

Rules: an entry that is a command is never run, whatever it says: it is a bad row, as is any entry that cannot be
understood. Knows files only by name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.sources.audio.decoding import AVERAGED
from loader_server.sources.audio.stretches import Stretch
from loader_server.sources.source import BadRow
from loader_server.sources.speech.kaldi_tables import words_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from loader_server.sources.speech.kaldi_tables import JoinedLine

__all__ = [
    "ALL_ROWS",
    "FEATURES",
    "RECORDINGS",
    "SEGMENTS",
    "SPEAKERS",
    "TABLES",
    "TEXT",
    "KaldiUtterance",
    "utterance_of",
]

#: The tables of a folder.
RECORDINGS, SEGMENTS, FEATURES, TEXT, SPEAKERS = "wav.scp", "segments", "feats.scp", "text", "utt2spk"
TABLES = (RECORDINGS, SEGMENTS, FEATURES, TEXT, SPEAKERS)

#: An archive, and the byte where the matrix begins.
_PLACE = re.compile(r"(.+):(\d+)")
#: The part of a matrix that counts: rows, the last one included, and perhaps columns, which have to be all.
_RANGE = re.compile(r"(.+)\[([^]]*)\]")
#: Of a number in an entry: no file has more bytes.
_MOST_DIGITS = 18
_ROWS = re.compile(r"(\d+):(\d+)(,:?)?")
#: Stands for the first and the last row of a whole matrix.
ALL_ROWS = (0, -1)
_CHANNELS = {"A": 0, "B": 1}
#: The end of a segment that lasts to the end of its recording.
_TO_THE_END = -1.0


@dataclass(frozen=True, slots=True)
class KaldiUtterance:
    """One row: its line, from 1, its key, the file, from which byte on and which rows of the matrix there (of an
    archive) or which stretch of it, and what is said of it.
    """

    line: int
    key: str
    path: str
    offset: int
    rows: tuple[int, int]
    stretch: Stretch
    text: str
    speaker: str


class _Unusable(Exception):  # it becomes a bad row
    """Why a line cannot be used: the reason in a word, and in full."""


def utterance_of(joined: JoinedLine, first: str, where: str, tables: Collection[str]) -> KaldiUtterance | BadRow:
    """The row of a line of the table `first`, whose path is `where`; `tables` are all that the folder has."""
    try:
        return _utterance(joined, first, tables)
    except _Unusable as error:
        reason, detail = error.args
    except UnicodeDecodeError as error:
        reason, detail = "not_utf8", f"expected UTF-8, got the byte 0x{error.object[error.start]:02x}"
    return BadRow(where, joined.number + 1, reason, detail)


def _utterance(joined: JoinedLine, first: str, tables: Collection[str]) -> KaldiUtterance:
    key, *rest = words_of(joined.line)[:2] or [""]
    if joined.again >= 0:
        raise _Unusable("duplicate", f'expected each key once, got "{key}" as in line {joined.again + 1}')
    if not rest:
        raise _Unusable("malformed", "expected a key, and what there is to say of it, got none")
    stretch, offset, rows, entry = Stretch(), 0, ALL_ROWS, rest[0]
    if first == SEGMENTS:
        stretch = _segment(rest[0])
        entry = _said(joined, RECORDINGS, "no_recording", f'of the recording "{rest[0].split()[0]}"')
    path = _path(entry, where=f"in {FEATURES if first == FEATURES else RECORDINGS}")
    if first == FEATURES:
        path, offset, rows = _place(path)
    elif _PLACE.fullmatch(path):
        raise _Unusable("in_archive", f"expected an audio file, got a place in an archive: {path}")
    text = _said(joined, TEXT, "no_text", f'of "{key}"', empty=True) if TEXT in tables else ""
    speaker = _said(joined, SPEAKERS, "no_speaker", f'of "{key}"') if SPEAKERS in tables else ""
    return KaldiUtterance(joined.number + 1, key, path, offset, rows, stretch, text, speaker)


def _said(joined: JoinedLine, table: str, reason: str, of: str, *, empty: bool = False) -> str:
    """The entry in another table; only a text may be empty."""
    words = words_of(joined.others.get(table, b""))
    if len(words) < 1 + (not empty):
        raise _Unusable(reason, f"expected a line {of} in {table}, got none")
    return words[1] if len(words) > 1 else ""


def _path(entry: str, where: str) -> str:
    if entry.endswith("|") or entry.startswith("|") or entry == "-":
        remedy = "run the commands once, and name the files that they wrote"
        raise _Unusable("command", f"expected a file {where}, got a command, which is never run ({entry}): {remedy}")
    if "\0" in entry:
        raise _Unusable("malformed", f"expected a file {where}, got a path with a zero byte")
    return entry


def _place(entry: str) -> tuple[str, int, tuple[int, int]]:
    """The archive, the offset in it, and which rows of the matrix there; in a separate file it begins at 0."""
    rows = ALL_ROWS
    if ranged := _RANGE.fullmatch(entry):
        entry, rows = ranged[1], _rows(ranged[2])
    found = _PLACE.fullmatch(entry)
    if found and len(found[2]) > _MOST_DIGITS:
        raise _Unusable("no_matrix", f"expected a byte of an archive, got one of {len(found[2])} digits: {entry}")
    return (found[1], int(found[2]), rows) if found else (entry, 0, rows)


def _rows(said: str) -> tuple[int, int]:
    found = _ROWS.fullmatch(said)
    if found is None or max(map(len, found.groups()[:2])) > _MOST_DIGITS or int(found[1]) > int(found[2]):
        raise _Unusable("range", f"expected a range of rows, as [0:99] is of a hundred, got [{said}]")
    return int(found[1]), int(found[2])


def _segment(rest: str) -> Stretch:
    """The recording's key, begin and end in seconds, and the channel, if it is given."""
    words = rest.split()
    try:
        _, begin, end, channel = words if len(words) == 4 else (*words, "")
        begin_s, end_s = float(begin), float(end)
        if not math.isfinite(begin_s + end_s):
            raise ValueError(rest)
        duration_s = math.inf if end_s == _TO_THE_END else end_s - begin_s
        return Stretch(begin_s, duration_s, _channel(channel))
    except ValueError:
        expected = "expected a recording, begin and end in seconds, and perhaps a channel"
        raise _Unusable("malformed", f"{expected}, got {rest}") from None


def _channel(word: str) -> int:
    """The number of a channel; 0 and 1 are also called A and B."""
    return int(_CHANNELS.get(word, word)) if word else AVERAGED
