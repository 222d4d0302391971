"""Recipes: what Lhotse has to know of a cut to make a sample of it, and how long that will be.

A recipe is the cut as the manifest has it, without labels, and without features or recording if the other is wanted.
Rules: reads no audio and needs no Lhotse. Only transforms that give the same at each loading are allowed, by their
names; commands are never run. Lengths are those that Lhotse gives, rounded as it rounds them.
"""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

from loader_server.sources.cuts.plain_cuts import UnusableCut, audible_tracks, refuse_no_file, refused_if_malformed
from loader_server.sources.cuts.stored_places import SHAR, frames_in
from loader_server.sources.remote.urls import joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from loader_server.sources.cuts.plain_cuts import CutSample

__all__ = [
    "WITHIN",
    "files_named",
    "holders_in",
    "is_recording",
    "original_frames",
    "planned_frames",
    "rate_of",
    "recipe_of",
    "width_of",
]

#: The part of the cut that is the sample, in seconds, under this key of a recipe; absent if it is all of it.
WITHIN = "within"

#: Transforms that give the same at each loading. Those that need a library besides Lhotse say so when they run.
_REPEATABLE = frozenset(
    ("Speed", "Tempo", "Volume", "Resample", "ReverbWithImpulseResponse", "Clipping", "LoudnessNormalization")
)
#: Types of audio sources that are read.
_READABLE = ("file", "url", SHAR)
#: Storage types of arrays in files of their own, in the folder that a manifest names.
_IN_OWN_FILES = ("numpy_files", "lilcom_files", "lilcom_url")
#: What a cut, and a track of a mixture, keep in a recipe; besides recording or features.
_OF_CUT = (
    *("id", "type", "start", "duration", "channel", "tracks", "transforms"),
    *("sampling_rate", "feat_value", "num_frames", "num_features", "frame_shift", "num_samples"),
)
_OF_TRACK = ("type", "offset", "snr", "tag", "is_snr_reference", "mute")


def recipe_of(part: CutSample, values: str) -> dict[str, Any]:
    """Return the recipe of a part of a cut for its "audio" or its "features".

    Raise an UnusableCut if it has none, if it is drawn anew at each loading, runs a command, or has a transform that is
    not known to repeat, or if the line is no cut as Lhotse writes it.
    """
    with refused_if_malformed():
        recipe = _kept(part.cut, "recording" if values == "audio" else "features")
        if not any(True for _ in _main_holders(recipe)):
            raise UnusableCut(f"no_{values}", f"expected a cut that has {values}, got one without")
        _refuse_unrepeatable(recipe)
        if part.supervision is not None:
            recipe[WITHIN] = [part.begin_s, part.duration_s]
        return recipe


def _kept(cut: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return what a recipe keeps of a cut: no labels, and of recording and features only the one named by `data`."""
    kept = {name: cut[name] for name in (*_OF_CUT, data) if cut.get(name) is not None}
    if "tracks" in cut:
        kept["tracks"] = [
            {**{name: track[name] for name in _OF_TRACK if name in track}, "cut": _kept(track["cut"], data)}
            for track in cut["tracks"]
        ]
    elif data == "recording" and data in kept:
        kept[data] = _of_channels(cut[data], cut["channel"])
    return kept


def _of_channels(recording: Mapping[str, Any], channel: int | list[int]) -> dict[str, Any]:
    """Return a recording with those of its sources that have the channels of a cut: the others are not read."""
    wanted = set(channel) if isinstance(channel, list) else {channel}
    sources = [source for source in recording["sources"] if wanted & set(source["channels"])]
    if not wanted <= {own for source in sources for own in source["channels"]}:
        raise UnusableCut("wrong_channel", f"expected a channel that the recording has, got {channel}")
    return {**recording, "sources": sources}


def _main_holders(recipe: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the recordings or features of a recipe's cuts that are heard, without those of its transforms."""
    for cut in [track["cut"] for track in audible_tracks(dict(recipe))] if "tracks" in recipe else [recipe]:
        yield from (cut[name] for name in ("recording", "features") if name in cut)


def holders_in(recipe: Any) -> list[dict[str, Any]]:
    """Return all tables of a recipe that name data, in its order: recordings, and features.

    Recordings of impulse responses are among them; a recording's own come before those of its transforms.
    """
    found = list[dict[str, Any]]()
    _look_for_holders(recipe, found)
    return found


def _look_for_holders(value: Any, found: list[dict[str, Any]]) -> None:
    """Add all tables in a value that name data."""
    # Into one list, and into nothing but tables and lists: this is done for each line of a manifest.
    if isinstance(value, list):
        for part in value:
            if isinstance(part, dict | list):
                _look_for_holders(part, found)
        return
    if not isinstance(value, dict):
        return
    if is_recording(value) or "storage_type" in value:
        found.append(value)
    for name, part in value.items():
        # The words of a supervision, thousands of them, name no files.
        if isinstance(part, dict | list) and (name != "alignment" or "array" in part):
            _look_for_holders(part, found)


def is_recording(table: Mapping[str, Any]) -> bool:
    """Return whether a table of a recipe is a recording."""
    return "sources" in table


def _refuse_unrepeatable(recipe: Mapping[str, Any]) -> None:
    """Raise an UnusableCut for a command, or for a transform that is drawn at loading or not known to repeat."""
    for holder in holders_in(recipe):
        for source in holder.get("sources", ()):
            refuse_no_file(source, _READABLE)
    for transform in _transforms_in(recipe):
        name, settings = transform["name"], transform.get("kwargs") or {}
        if name not in _REPEATABLE:
            known = ", ".join(sorted(_REPEATABLE))
            raise UnusableCut("transformed", f"expected transforms of {known}, got {name}: save its audio to files")
        # Also with seeds: Lhotse draws a part of the room from PyTorch's generator, whatever they are.
        if name == "ReverbWithImpulseResponse" and settings.get("rir") is None:
            expected = "expected the same audio at each loading"
            remedy = "give reverb_rir() the recording of an impulse response"
            raise UnusableCut("drawn", f"{expected}, got {name} of a room that is drawn: {remedy}")


def _transforms_in(recipe: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all transforms of a recipe: of its recordings, of impulse responses, and of mixtures."""
    if isinstance(recipe, list):
        for value in recipe:
            yield from _transforms_in(value)
    elif isinstance(recipe, dict):
        yield from recipe.get("transforms") or ()
        for value in recipe.values():
            yield from _transforms_in(value)


def rate_of(recipe: Mapping[str, Any]) -> int:
    """Return the sampling rate of what Lhotse makes of a recipe: of its first cut that is no padding."""
    first = next(iter(_main_holders(recipe)))
    return int(first["sampling_rate"])


def width_of(recipe: Mapping[str, Any]) -> int:
    """Return how many numbers a frame has of what Lhotse makes of a recipe: 1 for audio."""
    return int(next(iter(_main_holders(recipe))).get("num_features", 1))


def files_named(line: bytes) -> list[str]:
    """Return the files that a cut's line names anywhere, but those of Shar folders, each once; none if it is no cut."""
    named = dict[str, None]()
    try:
        for holder in holders_in(json.loads(line)):
            if is_recording(holder):
                named |= {source["source"]: None for source in holder["sources"] if source["type"] in ("file", "url")}
            elif holder["storage_type"] in _IN_OWN_FILES:
                named[joined(holder["storage_path"], holder["storage_key"].lstrip("/"))] = None
            elif holder["storage_type"] != SHAR:
                named[holder["storage_path"]] = None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []  # a bad row
    return [path for path in named if isinstance(path, str) and "\0" not in path]


def planned_frames(part: CutSample, recipe: Mapping[str, Any], values: str) -> int:
    """Return how many samples of audio, or frames of features, Lhotse makes of a recipe.

    Raise an UnusableCut if there are none, or if it is no cut as Lhotse writes it.
    """
    with refused_if_malformed():
        rate = rate_of(recipe)
        frames = _samples_in(part.duration_s, rate)
        if part.supervision is not None:
            frames = _truncated(recipe, _samples_in(part.begin_s, rate), frames, rate)
        if values == "features":
            shift = next(iter(_main_holders(recipe)))["frame_shift"]
            duration_s = part.duration_s if part.supervision is None else frames / rate
            frames = frames_in(duration_s, shift, rate)
    if frames <= 0:
        raise UnusableCut("empty_stretch", f"expected an end after the beginning, got {part.duration_s:g} s")
    return frames


def _truncated(recipe: Mapping[str, Any], begin: int, wanted: int, rate: int) -> int:
    """Return how many samples `truncate` of Lhotse leaves of a cut, of `wanted` ones from sample `begin` on.

    Raise an error of Python's, such as a KeyError, if the recipe has another shape.
    """
    if "tracks" not in recipe:
        return min(wanted, _samples_in(recipe["duration"], rate) - begin)
    left = list[tuple[dict[str, Any], int, int]]()
    for track in recipe["tracks"]:
        offset = _samples_in(track.get("offset", 0.0), rate)
        end = min(offset + _samples_in(track["cut"]["duration"], rate), begin + wanted)
        if end > max(begin, offset):
            left.append((track, end - begin, end - max(begin, offset)))
    if all(track["type"] == "PaddingCut" for track, _, _ in left):
        return wanted
    # A single track that is left is returned alone, without what comes before it.
    if len(left) == 1:
        return left[0][2]
    heard = [end for track, end, _ in left if not track.get("mute")]
    return max(heard or [end for _, end, _ in left])


def original_frames(recording: Mapping[str, Any]) -> tuple[float, int]:
    """Return about how many frames a recording's file should have, and its rate, before its transforms.

    Raise an error of Python's, such as a KeyError, if the recording has another shape.
    """
    frames, rate = float(recording["num_samples"]), int(recording["sampling_rate"])
    for transform in reversed(recording.get("transforms") or ()):
        settings = transform.get("kwargs") or {}
        if transform["name"] in ("Speed", "Tempo"):
            frames *= settings["factor"]
        elif transform["name"] == "Resample":
            frames *= settings["source_sampling_rate"] / settings["target_sampling_rate"]
            rate = int(settings["source_sampling_rate"])
    return frames, rate


def _samples_in(duration_s: float, rate: int) -> int:
    """Return how many samples a duration has, rounded as Lhotse does: halves up."""
    return int(Decimal(round(duration_s * rate, ndigits=8)).quantize(Decimal(0), rounding=ROUND_HALF_UP))
