"""Parser of a line of a Lhotse cut manifest: the part of a cut that is a sample, and the stretch of a file for it.

Rules: reads JSON without Lhotse, and opens nothing. A sample is a cut, or each of its supervisions. Plain cuts are
MonoCuts of a recording that is a file, local or remote, and MultiCuts of all channels of their file, which are
averaged, or of which one is chosen. Everything else is a bad row that says what to do about it: nothing is mixed,
perturbed or run here.
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

__all__ = [
    "MIXED",
    "PLAIN",
    "WHOLE_CUT",
    "CutSample",
    "PlainAudio",
    "UnusableCut",
    "audible_tracks",
    "cut_sample",
    "plain_audio",
    "refuse_no_file",
    "refused_if_malformed",
    "samples_in",
]

#: In place of a supervision's number: the sample is the whole cut.
WHOLE_CUT = -1

#: Types of cuts of one recording, and all types that have something to load.
PLAIN = ("MonoCut", "MultiCut")
MIXED = (*PLAIN, "MixedCut")

#: Types of audio sources that are files, local or remote.
_READABLE = ("file", "url")
_WHOLE = (
    "write use_lhotse = true for the stream, make whole recordings of them with save_audios(), or leave it to "
    "transforms of the stream"
)
#: Remedies for cuts that are not read here, by type.
_REMEDIES = {
    "MixedCut": f"a mixture is not made here: {_WHOLE}",
    "PaddingCut": "batches are padded anyway: leave it out",
}


class UnusableCut(Exception):  # it becomes a bad row
    """A cut that cannot be read here, with the reason in one word and in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSample:
    """The part of a cut that is a sample: `begin_s` and `duration_s` within it, its name, and its labels.

    `supervision` is None if the sample is the whole cut.
    """

    cut: dict[str, Any]
    supervision: dict[str, Any] | None
    begin_s: float
    duration_s: float
    key: str
    text: str
    speaker: str
    language: str


@dataclass(frozen=True, slots=True)
class PlainAudio:
    """The file of a plain cut's recording, the stretch of it, and the rate that the manifest gives it."""

    path: str
    stretch: Stretch
    rate: int


def samples_in(line: bytes, types: tuple[str, ...] = PLAIN) -> int:
    """Return how many supervisions a line has, at least 1.

    It is 1 for a line that cannot be parsed, has none, or is a mixture where `types` have none, so that it makes a row,
    which turns out to be bad.
    """
    try:
        cut = json.loads(line)
        return 1 if "tracks" in cut and types == PLAIN else max(1, len(_supervisions_of(cut)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return 1


class _Refusal:
    """What turns the errors within its block that a line of another shape causes into an UnusableCut."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, UnicodeDecodeError):
            raise UnusableCut("not_utf8", f"expected UTF-8, got the byte 0x{error.object[error.start]:02x}") from None
        # Whatever a line of another shape breaks within: a bad row, whose message says what was found.
        if isinstance(error, ValueError | TypeError | KeyError | AttributeError | ArithmeticError | RecursionError):
            raise UnusableCut(
                "malformed", f"expected a cut as Lhotse writes it, got {type(error).__name__}: {error}"
            ) from None


#: One for all, as it has no state: three are entered for each line, and a generator would take 1 µs each.
_REFUSAL = _Refusal()


def refused_if_malformed() -> _Refusal:
    """Return a context manager that raises an UnusableCut for the errors that a line of another shape causes within."""
    return _REFUSAL


def cut_sample(line: bytes, supervision: int, channel: int = AVERAGED, types: tuple[str, ...] = PLAIN) -> CutSample:
    """Return the part of a cut that is a sample: all of it, or one of its supervisions.

    `channel` chooses a channel of a cut that has several. Raise an UnusableCut if the cut is not of these types or
    lacks that channel, or if the line is no cut as Lhotse writes it, or has no such supervision.
    """
    with refused_if_malformed():
        cut = json.loads(line)
        _refuse_other_types(cut, types)
        _choose(cut, channel)
        supervisions = _supervisions_of(cut)
        if supervision != WHOLE_CUT:
            return _supervised(cut, supervisions, supervision)
        ordered = sorted(supervisions, key=lambda supervision: supervision["start"])
        return _part(cut, None, (0.0, _duration_of(cut)), ordered)


def plain_audio(part: CutSample) -> PlainAudio:
    """Return the file and stretch of a part of a plain cut.

    Raise an UnusableCut if the cut has no recording, or one with transforms, channels or a source that cannot be used;
    or if it is no cut as Lhotse writes it.
    """
    with refused_if_malformed():
        recording = part.cut.get("recording")
        if recording is None:
            remedy = 'features are read with values = "features"'
            raise UnusableCut("no_recording", f"expected a cut of a recording, got one without: {remedy}")
        if recording.get("transforms"):
            names = ", ".join(str(transform.get("name", "one")) for transform in recording["transforms"])
            expected = "expected a recording as it is on disk"
            raise UnusableCut("transformed", f"{expected}, got transforms ({names}): {_WHOLE}")
        path, channel = _file(recording["sources"], part.cut["channel"])
        stretch = Stretch(part.cut["start"] + part.begin_s, float(part.duration_s), channel)
        if not math.isfinite(stretch.start_s):
            raise ValueError(stretch)
        return PlainAudio(path, stretch, int(recording["sampling_rate"]))


def audible_tracks(cut: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tracks of a MixedCut that are heard: those that are not muted, or all if all are.

    Raise an error of Python's, such as a KeyError, if the cut has another shape.
    """
    tracks: list[dict[str, Any]] = cut["tracks"]
    return [track for track in tracks if not track.get("mute")] or tracks


def _refuse_other_types(cut: dict[str, Any], types: tuple[str, ...]) -> None:
    """Raise an UnusableCut for anything but a cut of these types.

    Raise a KeyError for a line that belongs to none of Lhotse's manifests, or an AttributeError for one that is no
    table.
    """
    kind = cut.get("type") or _manifest_of(cut)
    if kind not in types:
        remedy = _REMEDIES.get(kind, "write cuts of recordings, with CutSet.from_manifests(…)")
        expected = "a MonoCut or MultiCut" if types == PLAIN else "a MonoCut, MultiCut or MixedCut"
        raise UnusableCut("cut_type", f"expected {expected}, got a {kind}: {remedy}")


def _choose(cut: dict[str, Any], channel: int) -> None:
    """Reduce a cut of several channels to `channel`, in place; raise an UnusableCut if it lacks that channel.

    A cut of a single channel stays as it is, as does a MixedCut, and any cut if `channel` is AVERAGED. Raise a KeyError
    if another cut has no channel while one is chosen.
    """
    if channel != AVERAGED and "tracks" not in cut and isinstance(several := cut["channel"], list):
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


def _supervisions_of(cut: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the supervisions of a cut; those of a MixedCut's tracks begin in the mixture.

    Raise an error of Python's, such as a KeyError, if the cut has another shape.
    """
    if "tracks" not in cut:
        supervisions: list[dict[str, Any]] = cut["supervisions"]
        return supervisions
    return [
        {**supervision, "start": round(supervision["start"] + track.get("offset", 0.0), ndigits=8)}
        for track in audible_tracks(cut)
        for supervision in track["cut"].get("supervisions", ())
    ]


def _duration_of(cut: dict[str, Any]) -> float:
    """Return the seconds that a cut has, or a mixture by its audible tracks.

    Raise an error of Python's, such as a KeyError, if the cut has another shape.
    """
    if "tracks" not in cut:
        return float(cut["duration"])
    ends = (track.get("offset", 0.0) + track["cut"]["duration"] for track in audible_tracks(cut))
    return float(round(max(ends), ndigits=8))


def _supervised(cut: dict[str, Any], supervisions: list[dict[str, Any]], number: int) -> CutSample:
    """Return the part of supervision `number`; raise an UnusableCut if the cut has none.

    A supervision may begin before the cut and end after it: its part within the cut counts. Raise an IndexError if
    there are fewer, and another error of Python's, such as a KeyError or a TypeError, if the line has another shape.
    """
    if not supervisions:
        raise UnusableCut(
            "no_supervision", 'expected a supervision, got a cut without: leave it out, or sample = "cut"'
        )
    chosen = supervisions[number]
    begin_s = max(0.0, chosen["start"])
    end_s = min(_duration_of(cut), chosen["start"] + chosen["duration"])
    return _part(cut, chosen, (begin_s, end_s - begin_s), [chosen])


def _part(
    cut: dict[str, Any],
    supervision: dict[str, Any] | None,
    within: tuple[float, float],
    supervisions: list[dict[str, Any]],
) -> CutSample:
    """Return the part of a cut from a begin on and as long as a duration, in seconds, with these supervisions.

    Raise a ValueError if the text cannot be UTF-8 or a time is not finite; an error of Python's, such as a KeyError or
    a TypeError, if the line has another shape.
    """
    transcript = " ".join(text for supervision in supervisions if (text := supervision.get("text")))
    # JSON may hold lone surrogates, which UTF-8 cannot: such a text makes a bad row.
    transcript.encode()
    # Python's JSON parser accepts NaN and Infinity.
    if not math.isfinite(sum(within)):
        raise ValueError(within)
    return CutSample(
        cut=cut,
        supervision=supervision,
        begin_s=within[0],
        duration_s=within[1],
        key=str((supervision or cut)["id"]),
        text=transcript,
        speaker=_common(supervisions, "speaker"),
        language=_common(supervisions, "language"),
    )


def _file(sources: Iterable[dict[str, Any]], asked: int | list[int]) -> tuple[str, int]:
    """Return the recording's file that has these channels, and which of its channels to take.

    A single channel may be one of several in its file; several have to be all of a file, which are averaged. Raise an
    UnusableCut if no file has them, or if the source is not a file; a ValueError if its path has a zero byte; an error
    of Python's, such as a KeyError or a TypeError, if the line has another shape.
    """
    for source in sources:
        if (set(asked) == set(source["channels"])) if isinstance(asked, list) else (asked in source["channels"]):
            refuse_no_file(source)
            return source["source"], AVERAGED if isinstance(asked, list) else source["channels"].index(asked)
    if isinstance(asked, list):
        remedy = "choose one by `channel`, or write cuts of one each, with to_mono()"
        raise UnusableCut("channels", f"expected all channels of one file, which are averaged, got {asked}: {remedy}")
    raise UnusableCut("wrong_channel", f"expected a channel that the recording has, got {asked}")


def refuse_no_file(source: dict[str, Any], readable: tuple[str, ...] = _READABLE) -> None:
    """Raise an UnusableCut if an audio source is not of a type that is read, or a ValueError for a zero byte in a path.

    Raise an error of Python's, such as a KeyError, if it has another shape.
    """
    if source["type"] not in readable:
        remedy = "bring its audio to files first, with save_audios()"
        raise UnusableCut("not_a_file", f'expected a file, got a source of type "{source["type"]}": {remedy}')
    if "\0" in source["source"]:
        raise ValueError("a path with a zero byte")


def _common(supervisions: list[dict[str, Any]], name: str) -> str:
    """Return what all supervisions have under this name; empty if they differ or lack it, or there are none.

    Raise a TypeError if one has a list or a table there.
    """
    values = {supervision.get(name) or "" for supervision in supervisions}
    return str(values.pop()) if len(values) == 1 else ""
