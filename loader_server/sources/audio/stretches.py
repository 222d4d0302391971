"""Frames of a recording that make a sample: all of them, or a stretch that is given in seconds.

Rules: frames are counted from the file's own header, never from what a manifest says about it. A begin and a duration
are rounded to the nearest frame, halves up; a begin and an end, as Kaldi's segments have them, are cut down to whole
frames, as kaldiio does. A stretch may end up to half a second after its recording, as Kaldi allows, and is cut
there; one that lies further outside, or holds nothing, is a bad row. Stretches may overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from loader_server.sources.audio.audio_files import AVERAGED, AudioHeader, audio_bytes, header_of, header_of_remote
from loader_server.sources.remote.urls import is_url, without_credentials
from loader_server.sources.sample_limits import LARGEST_SAMPLE, OVER_LARGEST, size_texts
from loader_server.sources.source import BadRow
from shared.errors import DataError, ReadError, SampleError
from shared.settings.parsers import setting, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loader_server.sources.files.opening import Files

__all__ = ["WHOLE_FILE", "AudioStretch", "Headers", "Stretch", "channel_setting", "stretch_columns"]

#: In place of the first frame: the sample is the whole file.
WHOLE_FILE = -1

#: Columns of the index, and where an AudioStretch has their values.
_COLUMNS = {
    "bytes": "header.bytes",
    "mtime_ns": "header.mtime_ns",
    "content": "header.content",
    "frames": "frames",
    "rate": "header.rate",
    "start": "start",
    "channel": "channel",
}

#: How far a stretch may overrun its recording, as in Kaldi; it is cut there.
_OVERSHOOT_S = 0.5
#: A frame far outside any recording.
_FAR_FRAMES = 2.0**62


def channel_setting(which: str) -> Any:
    """Return the setting `channel` of a source; `which` names the rows that it holds for, in its help.

    Its parser takes integers of at least -1, and raises BadValue for anything else.
    """
    return setting(
        whole(AVERAGED), f"the channel, from 0, of {which}; -1: the average of all", default=AVERAGED, later=True
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Stretch that a row asks for: begin and duration, or begin and end, in seconds, and a channel.

    An infinite duration or end means the rest of the recording. The duration does not count if there is an end.
    """

    start_s: float = 0.0
    duration_s: float = math.inf
    channel: int = AVERAGED
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class AudioStretch:
    """Stretch that makes a sample: its file's header, first frame, number of frames, and channel.

    `start` is WHOLE_FILE if the sample is all of its file.
    """

    header: AudioHeader
    start: int
    frames: int
    channel: int


class Headers:
    """Headers of files, each read once however many stretches are cut from it.

    `channel` is for stretches that name none. A stretch that decodes to more than `largest` bytes is a bad row (0: no
    limit).
    """

    def __init__(self, files: Files, channel: int = AVERAGED, largest: int = LARGEST_SAMPLE) -> None:
        self._files = files
        self._largest = largest
        self._channel = channel
        self._known: dict[str, AudioHeader | BadRow] = {}

    def find(self, path: str, stretch: Stretch, where: tuple[str, int]) -> AudioStretch | BadRow:
        """Return the stretch that a row asks for, or a BadRow at `where`, its file and line.

        The row is bad if the file is missing, unreadable, no audio, cut short or too large, if it lacks the channel, or
        if the stretch is empty or lies outside of it. Raise a ReadError if a remote file cannot be fetched.
        SettingsError, as for MP3, and MachineError of `_header` pass through.
        """
        if path not in self._known:
            # Bad files are remembered, too: a table may name one in thousands of rows.
            self._known[path] = self._look(path)
        header = self._known[path]
        if isinstance(header, BadRow):
            return BadRow(*where, header.reason, header.detail)
        # What the row says goes before the stream's setting.
        if stretch.channel == AVERAGED:
            stretch = replace(stretch, channel=self._channel)
        found = _cut(header, stretch, where)
        if self._largest and isinstance(found, AudioStretch):
            nbytes = audio_bytes(found.frames, header.channels)
            if nbytes > self._largest:
                return BadRow(*where, OVER_LARGEST, "expected {}, got {}".format(*size_texts(nbytes, self._largest)))
        return found

    def _look(self, path: str) -> AudioHeader | BadRow:
        """Return a recording's header, or a BadRow without a place; raise what `_header` raises."""
        return _header(path, self._files)


def _header(path: str, files: Files) -> AudioHeader | BadRow:
    """Return a file's header, or a BadRow without a place if the file is missing or unusable.

    Raise a ReadError if a remote file cannot be fetched. SettingsError of `header_of`, and SettingsError and
    MachineError of `header_of_remote`, pass through.
    """
    try:
        return header_of_remote(path, files) if is_url(path) else header_of(path, files.seen)
    except SampleError as error:
        return BadRow(path, 0, error.reason, f"expected {error.expected}, got {error.got}")
    # A subclass of DataError, so it comes first: a store that fails now says nothing about the row.
    except ReadError:
        raise
    except DataError as error:
        shown = without_credentials(path) if is_url(path) else path
        return BadRow(path, 0, "missing_file", f"expected {error.expected}, got {error.got}: {shown}")
    except OSError as error:
        return BadRow(
            path,
            0,
            "missing_file" if isinstance(error, FileNotFoundError) else "unreadable",
            f"{error.strerror}: {path}",
        )


def _cut(header: AudioHeader, asked: Stretch, where: tuple[str, int]) -> AudioStretch | BadRow:
    """Return the frames that a stretch covers, or a BadRow.

    The row is bad if the recording lacks the channel, or if the stretch is empty, begins outside of the recording, or
    ends more than half a second after it; a shorter overrun is cut off.
    """
    if not AVERAGED <= asked.channel < header.channels:
        return BadRow(
            *where, "wrong_channel", f"expected a channel from 0 to {header.channels - 1}, got {asked.channel}"
        )
    length_s = header.frames / header.rate
    start, frames, end_s = _extent(header, asked, length_s)
    got = f"got one from {asked.start_s:g} s to {end_s:g} s"
    if not 0 <= start < header.frames or end_s > length_s + _OVERSHOOT_S:
        return BadRow(*where, "outside_recording", f"expected a part of a recording of {length_s:g} s, {got}")
    if frames <= 0:
        return BadRow(*where, "empty_stretch", f"expected an end after the beginning, {got}")
    # Only the end is cut: the overshoot was allowed above.
    frames = min(frames, header.frames - start)
    return AudioStretch(header, WHOLE_FILE if frames == header.frames else start, frames, asked.channel)


def _extent(header: AudioHeader, asked: Stretch, length_s: float) -> tuple[int, int, float]:
    """Return the first frame of a stretch, its number of frames, and its end in seconds; nothing is cut yet."""
    if asked.end_s is not None:
        end_s = length_s if math.isinf(asked.end_s) else asked.end_s
        # To the end of the recording is to its last frame, which seconds might miss by one.
        stop = header.frames if math.isinf(asked.end_s) else _whole_frames(end_s * header.rate)
        start = _whole_frames(asked.start_s * header.rate)
        return start, stop - start, end_s
    duration_s = length_s - asked.start_s if math.isinf(asked.duration_s) else asked.duration_s
    start, frames = (_whole_frames(seconds * header.rate + 0.5) for seconds in (asked.start_s, duration_s))
    return start, frames, asked.start_s + duration_s


def _whole_frames(frames: float) -> int:
    """Return the frames that are whole; a number that no recording has is cut to `_FAR_FRAMES`."""
    # Clamped first: seconds times rate may be infinite, which math.floor refuses.
    return math.floor(max(-_FAR_FRAMES, min(frames, _FAR_FRAMES)))


def stretch_columns(stretches: Sequence[AudioStretch], *, plain: bool) -> dict[str, list[int]]:
    """Return the index's columns of these stretches; `plain` leaves out `start` and `channel`.

    They can be left out if all samples are whole files with all channels.
    """
    columns = {name: list(map(attrgetter(fact), stretches)) for name, fact in _COLUMNS.items()}
    if plain:
        del columns["start"], columns["channel"]
    return columns
