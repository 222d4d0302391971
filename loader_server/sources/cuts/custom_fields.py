"""Custom fields of cuts and supervisions: texts, numbers, and arrays that a manifest names.

Rules: a stream names the fields that it wants and what they become; a cut that lacks one is a bad row. Where each
supervision is a sample, its own fields go before those of its cut. A mixture has those of its first track that has
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader_server.sources.cuts.plain_cuts import UnusableCut, audible_tracks, refused_if_malformed
from loader_server.sources.manifest.cell_forms import CellForm, number_of
from shared.errors import SampleError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.sources.cuts.plain_cuts import CutSample

__all__ = ["FIELD_KINDS", "MOST_FIELDS", "array_manifest", "cells_of", "forms_asked"]

#: What a custom field may become.
FIELD_KINDS = ("array", "text", "int32", "int64", "float32", "float64")

#: The most custom fields; the index keeps several files for each.
MOST_FIELDS = 64

#: Keys that a sample has otherwise, and columns of the index.
_TAKEN = frozenset(("audio", "audio_rate", "features", "text", "speaker", "language", "key", "path"))


def forms_asked(custom: tuple[tuple[str, str], ...], table: str) -> tuple[CellForm, ...]:
    """Return the fields that a stream asks for, arrays first, whose dtypes and shapes are not known yet.

    `table` is the stream's table in the job file. Raise a SettingsError if a field has a name that a sample has
    otherwise, or if there are too many.
    """
    if len(custom) > MOST_FIELDS:
        raise SettingsError(
            expected=f"at most {MOST_FIELDS} custom fields",
            got=str(len(custom)),
            where=f"{table}, custom",
            remedy="Leave out what no transform and no trainer needs.",
        )
    for name, _ in custom:
        if name in _TAKEN:
            raise SettingsError(
                expected="fields with names of their own",
                got=f'"{name}", which samples have otherwise',
                where=f"{table}, custom",
                remedy="Leave it out, or rename the field in the cuts.",
            )
    forms = [CellForm(key=name, kind=kind) for name, kind in custom]
    return tuple(sorted(forms, key=lambda form: form.kind != "array"))


def cells_of(part: CutSample, forms: tuple[CellForm, ...], where: str) -> list[str]:
    """Return the texts and numbers of a sample as the index keeps them, in the order of these forms without arrays.

    Raise an UnusableCut if a field is missing, is no text or number, or does not fit its dtype.
    """
    return [_cell(_value(part, form.key), form, where) for form in forms if form.kind != "array"]


def array_manifest(part: CutSample, form: CellForm) -> Mapping[str, Any]:
    """Return the manifest of a sample's array; raise an UnusableCut if the field is missing or no array."""
    if "tracks" in part.cut:
        remedy = f'leave "{form.key}" out of `custom`, or make whole cuts of the mixtures'
        raise UnusableCut("mixed_array", f"expected a MonoCut or MultiCut with an array, got a MixedCut: {remedy}")
    manifest = _value(part, form.key)
    stored = manifest.get("array", manifest) if isinstance(manifest, dict) else None
    if not isinstance(stored, dict) or "storage_type" not in stored or "shape" not in stored:
        raise UnusableCut("wrong_type", f'expected an array in the custom field "{form.key}", got {manifest!r}')
    return manifest  # type: ignore[no-any-return] # JSON


def _value(part: CutSample, name: str) -> Any:
    """Return the value of a custom field; raise an UnusableCut if there is none."""
    with refused_if_malformed():
        cuts = [track["cut"] for track in audible_tracks(part.cut)] if "tracks" in part.cut else [part.cut]
        for holder in (part.supervision or {}, *cuts):
            value = (holder.get("custom") or {}).get(name)
            if value is not None:
                return value
    raise UnusableCut("no_custom_field", f'expected a custom field "{name}", got a cut without')


def _cell(value: Any, form: CellForm, where: str) -> str:
    """Return a text or number as the index keeps it; raise an UnusableCut if it is neither, or does not fit."""
    if isinstance(value, bool) and form.kind != "text":
        value = int(value)
    if isinstance(value, dict | list):
        raise UnusableCut("wrong_type", f'expected a {form.kind} in the custom field "{form.key}", got {value!r}')
    with refused_if_malformed():  # lone surrogates, which UTF-8 cannot hold
        text = str(value)
        text.encode()
    if form.kind != "text":
        try:
            number_of(text, form, where)
        except SampleError as error:
            detail = f'expected {error.expected} in the custom field "{form.key}", got {error.got}'
            raise UnusableCut(error.reason, detail) from None
    return text
