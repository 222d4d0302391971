"""What a line of a Lhotse cut manifest means: which stretch of which file, what is said in it, by whom.

Rules: reads JSON without Lhotse, and opens nothing. A MonoCut of a recording that is a file, here or remote, is a
sample, or each of its supervisions is one, and so is a MultiCut of all channels of its file, which are averaged, or
of which one is chosen; all else is a bad row, with what to do about it: nothing is mixed, perturbed or run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.sources.audio.decoding import AVERAGED
from loader_server.sources.audio.stretches import Stretch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["WHOLE_CUT", "CutSample", "UnusableCut", "cut_sample", "samples_in"]

#: In place of a supervision's number: the sample is all of the cut.
WHOLE_CUT = -1

#: Types of audio sources whose bytes are a file, local or remote.
_READABLE = ("file", "url")
_WHOLE = "make whole recordings of them with save_audios(), or leave it to transforms of the stream"
#: What to do about cuts that are not read here, by their type.
_REMEDIES = {
    "MixedCut": f"a mixture is not made here: {_WHOLE}",
    "PaddingCut": "batches are padded anyway: leave it out",
}


class UnusableCut(Exception):  # it becomes a bad row
    """Why a line is a bad row: the reason in a word, and in full."""


@dataclass(frozen=True, slots=True)
class CutSample:
    """One sample: its name, its file, which part of it, the rate, and what is said in it."""

    key: str
    path: str
    stretch: Stretch
    rate: int
    text: str
    speaker: str
    language: str


def samples_in(line: bytes) -> int:
    """How many supervisions a line has; 1 if that cannot be told, because it is a row all the same."""
    try:
        return max(1, len(json.loads(line)["supervisions"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return 1


def cut_sample(line: bytes, supervision: int, channel: int = AVERAGED) -> CutSample:
    """The sample that a cut, or one of its supervisions, makes, from one channel if there are several; an UnusableCut
    if it cannot be read here.
    """
    try:
        cut = json.loads(line)
        _refuse_other_types(cut)
        _choose(cut, channel)
        return _whole(cut) if supervision == WHOLE_CUT else _supervised(cut, supervision)
    except UnicodeDecodeError as error:
        raise UnusableCut("not_utf8", f"expected UTF-8, got the byte 0x{error.object[error.start]:02x}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UnusableCut(
            "malformed", f"expected a cut as Lhotse writes it, got {type(error).__name__}: {error}"
        ) from None


def _refuse_other_types(cut: dict[str, Any]) -> None:
    kind = cut.get("type") or _manifest_of(cut)
    if kind not in ("MonoCut", "MultiCut"):
        remedy = _REMEDIES.get(kind, "write cuts of recordings, with CutSet.from_manifests(…)")
        raise UnusableCut("cut_type", f"expected a MonoCut or MultiCut, got a {kind}: {remedy}")


def _choose(cut: dict[str, Any], channel: int) -> None:
    """Take one of several channels."""
    if channel != AVERAGED and isinstance(several := cut["channel"], list):
        if channel not in several:
            raise UnusableCut("wrong_channel", f"expected a cut that has channel {channel}, got one of {several}")
        cut["channel"] = channel


def _manifest_of(line: dict[str, Any]) -> str:
    """Which of Lhotse's other manifests a line without a type belongs to."""
    known = {"sources": "recording", "recording_id": "supervision", "storage_type": "features"}
    kind = next((kind for key, kind in known.items() if key in line), "")
    if not kind:
        raise KeyError("type")
    return f"line of a {kind} manifest"


def _whole(cut: dict[str, Any]) -> CutSample:
    return _sample(cut, cut["id"], (0.0, cut["duration"]), sorted(cut["supervisions"], key=lambda one: one["start"]))


def _supervised(cut: dict[str, Any], number: int) -> CutSample:
    """The supervision's part of the cut; it may begin before the cut and end after it."""
    if not cut["supervisions"]:
        raise UnusableCut(
            "no_supervision", 'expected a supervision, got a cut without: leave it out, or sample = "cut"'
        )
    one = cut["supervisions"][number]
    begin_s, end_s = max(0.0, one["start"]), min(cut["duration"], one["start"] + one["duration"])
    return _sample(cut, one["id"], (begin_s, end_s - begin_s), [one])


def _sample(cut: dict[str, Any], key: str, within: tuple[float, float], said: list[dict[str, Any]]) -> CutSample:
    recording = cut.get("recording")
    if recording is None:
        raise UnusableCut("no_recording", "expected a cut of a recording, got one without: features are not read here")
    if recording.get("transforms"):
        names = ", ".join(str(one.get("name", "one")) for one in recording["transforms"])
        raise UnusableCut("transformed", f"expected a recording as it is on disk, got transforms ({names}): {_WHOLE}")
    path, channel = _file(recording["sources"], cut["channel"])
    stretch = Stretch(cut["start"] + within[0], float(within[1]), channel)
    if not math.isfinite(stretch.start_s + stretch.duration_s):
        raise ValueError(stretch)
    words = " ".join(text for one in said if (text := one.get("text")))
    words.encode()
    rate = int(recording["sampling_rate"])
    return CutSample(str(key), path, stretch, rate, words, _common(said, "speaker"), _common(said, "language"))


def _file(sources: Iterable[dict[str, Any]], asked: int | list[int]) -> tuple[str, int]:
    """The file that has this channel of the recording, and the channel's number there; or the file with exactly these
    channels.
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
    """What all of them say; empty if they differ."""
    found = {one.get(name) or "" for one in supervisions}
    return str(found.pop()) if len(found) == 1 else ""
