"""Columns of the index for what was found of cuts: labels, custom fields, and what samples are made of."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from loader_server.sources.audio.stretches import stretch_columns
from loader_server.sources.cuts.cut_finder import FEATURES, PlainStretch
from loader_server.sources.cuts.made_places import MadeCut, made_columns
from loader_server.sources.cuts.stored_arrays import array_columns, array_strings
from loader_server.sources.cuts.stored_places import StoredArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loader_server.sources.cuts.cut_finder import MadeOf
    from loader_server.sources.manifest.cell_forms import CellForm

__all__ = ["FoundCut", "columns_of_cuts"]

_LABELS = ("key", "text", "speaker", "language")


@dataclass(frozen=True, slots=True)
class FoundCut:
    """A good row: its labels, what the sample is made of, and its custom fields: arrays, and others as texts.

    `labels` are its key, text, speaker and language. `forms` are those of features, if there are any, of the arrays,
    and of the other fields. The cut itself is not kept: a piece has many, of many small parts.
    """

    labels: tuple[str, str, str, str]
    made_of: MadeOf
    arrays: list[StoredArray]
    cells: list[str]
    forms: tuple[CellForm, ...]


def columns_of_cuts(
    cuts: Sequence[FoundCut], forms: tuple[CellForm, ...], *, makes: bool
) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """Return the index's numbers and strings of these cuts; `makes` says that Lhotse makes the samples."""
    strings = {name: [cut.labels[place] for cut in cuts] for place, name in enumerate(_LABELS)}
    numbers = {"length_text": list(map(len, strings["text"]))}
    arrays = [form for form in forms if form.kind == "array"]
    columns = [[cut.arrays[place] for cut in cuts] for place in range(len(arrays) - _has_features(forms))]
    if makes:
        _add(numbers, strings, _made([cut.made_of for cut in cuts], features=_has_features(forms)))
        arrays = [form for form in arrays if form.key != FEATURES]
    elif _has_features(forms):
        columns.insert(0, [_stored(cut.made_of) for cut in cuts])
        strings["path"] = [array.path for array in columns[0]]
    else:
        plain = [_plain(cut.made_of) for cut in cuts]
        strings["path"] = [stretch.path for stretch in plain]
        numbers |= stretch_columns([stretch.stretch for stretch in plain], plain=False)
    for place, (form, column) in enumerate(zip(arrays, columns, strict=True)):
        _add(numbers, strings, (array_columns(form, place, column), array_strings(place, column)))
    others = sum(form.kind != "array" for form in forms)
    strings |= {f"custom_{place}": [cut.cells[place] for cut in cuts] for place in range(others)}
    return numbers, strings


def _has_features(forms: tuple[CellForm, ...]) -> bool:
    return any(form.key == FEATURES for form in forms)


def _made(found: Sequence[MadeOf], *, features: bool) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """Return numbers and strings of cuts that Lhotse makes, with the lengths that are planned."""
    made = [cut for cut in found if isinstance(cut, MadeCut)]
    numbers, strings = made_columns(made)
    return numbers | {f"length_{FEATURES}" if features else "frames": list(map(attrgetter("frames"), made))}, strings


def _stored(found: MadeOf) -> StoredArray:
    assert isinstance(found, StoredArray), "features that are not made are stored"
    return found


def _plain(found: MadeOf) -> PlainStretch:
    assert isinstance(found, PlainStretch), "plain cuts are stretches of recordings"
    return found


def _add(numbers: dict[str, Any], strings: dict[str, Any], columns: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Add columns to these numbers and strings."""
    numbers |= columns[0]
    strings |= columns[1]
