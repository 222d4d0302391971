"""Parser of the lines of a Kaldi data folder: where audio or features are, what was said, and by whom.

Rules: an entry that is a command is never run, whatever it says: it is a bad row, as is any entry that cannot be
understood. Knows files only by name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_server.sources.audio.audio_files import AVERAGED
from loader_server.sources.audio.stretches import Stretch
from loader_server.sources.source import BadRow
from loader_server.sources.speech.kaldi_folder import FEATURES, RECORDINGS, SEGMENTS, SPEAKERS, TEXT, words_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from loader_server.sources.speech.kaldi_folder import JoinedLine

__all__ = ["ALL_ROWS", "KaldiUtterance", "utterance_of"]

#: An archive and the byte where a matrix begins.
_PLACE = re.compile(r"(.+):(\d+)")
#: A range of a matrix: first and last row, and perhaps columns, which have to be all of them.
_RANGE = re.compile(r"(.+)\[([^]]*)\]")
#: Most digits of a number in an entry: a longer one is beyond any file, and may not fit into int64.
_MOST_DIGITS = 18
_ROWS = re.compile(r"(\d+):(\d+)(,:?)?")
#: In place of first and last row: the whole matrix.
ALL_ROWS = (0, -1)
#: Letters that stand for channels of a recording; others are numbers.
_CHANNELS = {"A": 0, "B": 1}
#: The end of a segment that lasts to the end of its recording.
_TO_THE_END = -1.0


@dataclass(frozen=True, slots=True)
class KaldiUtterance:
    """One row: line number (from 1), key, where its audio or features are, and its text and speaker.

    For features, `offset` is the byte of the archive where the matrix begins, and `rows` its first and last row that
    count; for audio, `stretch` is the part of the recording, and a `path` in an archive ends in `:` and a byte.
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
    """A line that cannot be used, with the reason in one word and in full."""


def utterance_of(joined: JoinedLine, first: str, where: str, tables: Collection[str]) -> KaldiUtterance | BadRow:
    """Return the utterance of a joined line, or a BadRow with the reason.

    `first` is the name of the table whose lines are rows, `where` its path for messages, and `tables` are all tables of
    the folder.
    """
    try:
        return _utterance(joined, first, tables)
    except _Unusable as error:
        reason, detail = error.args
    except UnicodeDecodeError as error:
        reason, detail = "not_utf8", f"expected UTF-8, got the byte 0x{error.object[error.start]:02x}"
    return BadRow(where, joined.number + 1, reason, detail)


def _utterance(joined: JoinedLine, first: str, tables: Collection[str]) -> KaldiUtterance:
    """Return the utterance of a joined line; raise _Unusable if any of its entries cannot be used.

    Raise a UnicodeDecodeError if one is not UTF-8.
    """
    key, *rest = words_of(joined.line) or [""]
    # The first of several lines with a key counts, so this one is bad whatever else it says.
    if joined.again >= 0:
        raise _Unusable("duplicate", f'expected each key once, got "{key}" as in line {joined.again + 1}')
    if not rest:
        raise _Unusable("malformed", "expected a key, and what there is to say of it, got none")
    stretch, offset, rows, entry = Stretch(), 0, ALL_ROWS, rest[0]
    if first == SEGMENTS:
        stretch = _segment(rest[0])
        entry = _entry(joined, RECORDINGS, "no_recording", f'of the recording "{rest[0].split()[0]}"')
    path = _path(entry, where=f"in {FEATURES if first == FEATURES else RECORDINGS}")
    if first == FEATURES:
        path, offset, rows = _place(path)
    elif (place := _PLACE.fullmatch(path)) and len(place[2]) > _MOST_DIGITS:
        digits = len(place[2])
        raise _Unusable("no_recording_there", f"expected a byte of an archive, got a number of {digits} digits: {path}")
    text = _entry(joined, TEXT, "no_text", f'of "{key}"', empty=True) if TEXT in tables else ""
    speaker = _entry(joined, SPEAKERS, "no_speaker", f'of "{key}"') if SPEAKERS in tables else ""
    return KaldiUtterance(joined.number + 1, key, path, offset, rows, stretch, text, speaker)


def _entry(joined: JoinedLine, table: str, reason: str, of: str, *, empty: bool = False) -> str:
    """Return the line's entry in another table; raise _Unusable if it is missing, or empty unless `empty`.

    Raise a UnicodeDecodeError if it is not UTF-8.
    """
    words = words_of(joined.others.get(table, b""))
    if len(words) < 1 + (not empty):
        raise _Unusable(reason, f"expected a line {of} in {table}, got none")
    return words[1] if len(words) > 1 else ""


def _path(entry: str, where: str) -> str:
    """Return the entry as the name of a file.

    Raise _Unusable if it is a command, standard input ("-") or has a zero byte.
    """
    # Kaldi pipes such entries through a shell, and "-" is its standard input. Running them would mean to run
    # whatever a data folder says.
    if entry.endswith("|") or entry.startswith("|") or entry == "-":
        remedy = "run the commands once, and name the files that they wrote"
        raise _Unusable("command", f"expected a file {where}, got a command, which is never run ({entry}): {remedy}")
    if "\0" in entry:
        raise _Unusable("malformed", f"expected a file {where}, got a path with a zero byte")
    return entry


def _place(entry: str) -> tuple[str, int, tuple[int, int]]:
    """Return archive, offset and rows of an entry of feats.scp; the offset is 0 in a file of its own.

    Raise _Unusable if the offset has too many digits, or the range is not rows from low to high.
    """
    rows = ALL_ROWS
    if ranged := _RANGE.fullmatch(entry):
        entry, rows = ranged[1], _rows(ranged[2])
    place = _PLACE.fullmatch(entry)
    if place and len(place[2]) > _MOST_DIGITS:
        raise _Unusable("no_matrix", f"expected a byte of an archive, got a number of {len(place[2])} digits: {entry}")
    return (place[1], int(place[2]), rows) if place else (entry, 0, rows)


def _rows(written: str) -> tuple[int, int]:
    """Return the first and last row of a range; raise _Unusable for anything but rows from low to high."""
    bounds = _ROWS.fullmatch(written)
    if bounds is None or max(map(len, bounds.groups()[:2])) > _MOST_DIGITS or int(bounds[1]) > int(bounds[2]):
        raise _Unusable("range", f"expected a range of rows, as [0:99] is of a hundred, got [{written}]")
    return int(bounds[1]), int(bounds[2])


def _segment(rest: str) -> Stretch:
    """Return the stretch of a segment's line; raise _Unusable if it is malformed.

    The line has the recording's key, begin and end in seconds (-1: the recording's end), and perhaps a channel.
    """
    words = rest.split()
    try:
        _, begin, end, channel = words if len(words) == 4 else (*words, "")
        begin_s, end_s = float(begin), float(end)
        # float() accepts "nan" and "inf".
        if not math.isfinite(begin_s + end_s):
            raise ValueError(rest)
        return Stretch(
            begin_s,
            channel=int(_CHANNELS.get(channel, channel)) if channel else AVERAGED,
            end_s=math.inf if end_s == _TO_THE_END else end_s,
        )
    except ValueError:
        expected = "expected a recording, begin and end in seconds, and perhaps a channel"
        raise _Unusable("malformed", f"{expected}, got {rest}") from None
