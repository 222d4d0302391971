"""Parser of a line of a Lhotse cut manifest: the stretch of a file, its transcript, and its speaker.

Rules: reads JSON without Lhotse, and opens nothing. A sample is a MonoCut of a recording that is a file, local or
remote, or each of its supervisions; or a MultiCut of all channels of its file, which are averaged, or of which one is
chosen. Everything else is a bad row that says what to do about it: nothing is mixed, perturbed or run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.sources.audio.audio_files import AVERAGED
from loader_server.sources.audio.stretches import Stretch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["WHOLE_CUT", "CutSample", "UnusableCut", "cut_sample", "samples_in"]

#: In place of a supervision's number: the sample is the whole cut.
WHOLE_CUT = -1

#: Types of audio sources that are files, local or remote.
_READABLE = ("file", "url")
_WHOLE = "make whole recordings of them with save_audios(), or leave it to transforms of the stream"
#: Remedies for cuts that are not read here, by type.
_REMEDIES = {
    "MixedCut": f"a mixture is not made here: {_WHOLE}",
    "PaddingCut": "batches are padded anyway: leave it out",
}


class UnusableCut(Exception):  # it becomes a bad row
    """A cut that cannot be read here, with the reason in one word and in full."""


@dataclass(frozen=True, slots=True)
class CutSample:
    """One sample: its name, file, stretch and rate, its transcript, speaker and language."""

    key: str
    path: str
    stretch: Stretch
    rate: int
    text: str
    speaker: str
    language: str


def samples_in(line: bytes) -> int:
    """Return how many supervisions a line has, at least 1.

    It is 1 for a line that cannot be parsed or has none, so that it makes a row, which turns out to be bad.
    """
    try:
        return max(1, len(json.loads(line)["supervisions"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1


def cut_sample(line: bytes, supervision: int, channel: int = AVERAGED) -> CutSample:
    """Return the sample of a cut, or of one of its supervisions.

    `channel` chooses a channel of a cut that has several. Raise an UnusableCut if it cannot be read here, or the line
    is no cut as Lhotse writes it; an IndexError if it has supervisions, but none of this number.
    """
    try:
        cut = json.loads(line)
        _refuse_other_types(cut)
        _choose(cut, channel)
        if supervision != WHOLE_CUT:
            return _supervised(cut, supervision)
        return _sample(
            cut,
            cut["id"],
            (0.0, cut["duration"]),
            sorted(cut["supervisions"], key=lambda supervision: supervision["start"]),
        )
    except UnicodeDecodeError as error:
        raise UnusableCut("not_utf8", f"expected UTF-8, got the byte 0x{error.object[error.start]:02x}") from None
    # Whatever a line of another shape breaks in the code above: a bad row, whose message says what was found.
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UnusableCut(
            "malformed", f"expected a cut as Lhotse writes it, got {type(error).__name__}: {error}"
        ) from None


def _refuse_other_types(cut: dict[str, Any]) -> None:
    """Raise an UnusableCut for anything but a MonoCut or MultiCut.

    Raise a KeyError for a line that belongs to none of Lhotse's manifests, or an AttributeError for one that is no
    table.
    """
    kind = cut.get("type") or _manifest_of(cut)
    if kind not in ("MonoCut", "MultiCut"):
        remedy = _REMEDIES.get(kind, "write cuts of recordings, with CutSet.from_manifests(…)")
        raise UnusableCut("cut_type", f"expected a MonoCut or MultiCut, got a {kind}: {remedy}")


def _choose(cut: dict[str, Any], channel: int) -> None:
    """Reduce a cut of several channels to `channel`, in place; raise an UnusableCut if it lacks that channel.

    A cut of a single channel stays as it is, and so does any if `channel` is AVERAGED. Raise a KeyError if a cut has no
    channel while one is chosen.
    """
    if channel != AVERAGED and isinstance(several := cut["channel"], list):
        if channel not in several:
            raise UnusableCut("wrong_channel", f"expected a cut that has channel {channel}, got one of {several}")
        cut["channel"] = channel


def _manifest_of(line: dict[str, Any]) -> str:
    """Return which of Lhotse's other manifests a line without a type belongs to.

    Raise a KeyError if it belongs to none of them.
    """
    known = {"sources": "recording", "recording_id": "supervision", "storage_type": "features"}
    kind = next((kind for key, kind in known.items() if key in line), "")
    if not kind:
        raise KeyError("type")
    return f"line of a {kind} manifest"


def _supervised(cut: dict[str, Any], number: int) -> CutSample:
    """Return the sample of supervision `number`; raise an UnusableCut if the cut has none, or as `_sample` does.

    A supervision may begin before the cut and end after it: its part within the cut counts. Raise an IndexError if
    there are fewer, and another error of Python's, such as a KeyError or a TypeError, if the line has another shape.
    """
    if not cut["supervisions"]:
        raise UnusableCut(
            "no_supervision", 'expected a supervision, got a cut without: leave it out, or sample = "cut"'
        )
    chosen = cut["supervisions"][number]
    begin_s, end_s = max(0.0, chosen["start"]), min(cut["duration"], chosen["start"] + chosen["duration"])
    return _sample(cut, chosen["id"], (begin_s, end_s - begin_s), [chosen])


def _sample(
    cut: dict[str, Any], key: str, within: tuple[float, float], supervisions: list[dict[str, Any]]
) -> CutSample:
    """Return the sample of a part of a cut, given as begin and duration in seconds within the cut.

    Raise an UnusableCut if the cut has no recording, or one with transforms, channels or a source that cannot be used;
    a ValueError if its times are not finite, its path has a zero byte, or its text cannot be UTF-8; an error of
    Python's, such as a KeyError or a TypeError, if the line has another shape.
    """
    recording = cut.get("recording")
    if recording is None:
        raise UnusableCut("no_recording", "expected a cut of a recording, got one without: features are not read here")
    if recording.get("transforms"):
        names = ", ".join(str(transform.get("name", "one")) for transform in recording["transforms"])
        raise UnusableCut("transformed", f"expected a recording as it is on disk, got transforms ({names}): {_WHOLE}")
    path, channel = _file(recording["sources"], cut["channel"])
    stretch = Stretch(cut["start"] + within[0], float(within[1]), channel)
    # Python's JSON parser accepts NaN and Infinity.
    if not math.isfinite(stretch.start_s + stretch.duration_s):
        raise ValueError(stretch)
    transcript = " ".join(text for supervision in supervisions if (text := supervision.get("text")))
    # JSON may hold lone surrogates, which UTF-8 cannot: such a text makes a bad row.
    transcript.encode()
    rate = int(recording["sampling_rate"])
    speaker, language = _common(supervisions, "speaker"), _common(supervisions, "language")
    return CutSample(str(key), path, stretch, rate, transcript, speaker, language)


def _file(sources: Iterable[dict[str, Any]], asked: int | list[int]) -> tuple[str, int]:
    """Return the recording's file that has these channels, and which of its channels to take.

    A single channel may be one of several in its file; several have to be all of a file, which are averaged. Raise an
    UnusableCut if no file has them, or if the source is not a file; a ValueError if its path has a zero byte; an error
    of Python's, such as a KeyError or a TypeError, if the line has another shape.
    """
    for source in sources:
        if (set(asked) == set(source["channels"])) if isinstance(asked, list) else (asked in source["channels"]):
            if source["type"] not in _READABLE:
                remedy = "bring its audio to files first, with save_audios()"
                raise UnusableCut("not_a_file", f'expected a file, got a source of type "{source["type"]}": {remedy}')
            if "\0" in source["source"]:
                raise ValueError("a path with a zero byte")
            return source["source"], AVERAGED if isinstance(asked, list) else source["channels"].index(asked)
    if isinstance(asked, list):
        remedy = "choose one by `channel`, or write cuts of one each, with to_mono()"
        raise UnusableCut("channels", f"expected all channels of one file, which are averaged, got {asked}: {remedy}")
    raise UnusableCut("wrong_channel", f"expected a channel that the recording has, got {asked}")


def _common(supervisions: list[dict[str, Any]], name: str) -> str:
    """Return what all supervisions have under this name; empty if they differ or lack it, or there are none.

    Raise a TypeError if one has a list or a table there.
    """
    values = {supervision.get(name) or "" for supervision in supervisions}
    return str(values.pop()) if len(values) == 1 else ""
