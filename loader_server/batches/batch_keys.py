"""The keys of a stream's batches: which names and axes they may have, and the marks of packed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.planning.batch_size import refuse_number_of_samples
from loader_server.planning.settings import NO_KEY
from loader_server.sources.audio.recorded_keys import has_recordings
from shared.errors import SettingsError
from shared.settings.tables import placing
from shared.wire.batch_layout import RESET, Field, fields_of_batch

if TYPE_CHECKING:
    from loader_server.job_file import StreamRecipe

__all__ = ["marks_of_packed", "refuse_wrong_keys"]


def refuse_wrong_keys(recipe: StreamRecipe, fields: tuple[Field, ...]) -> None:
    """Raise a SettingsError if outputs or strings share a name, or `length` names no output with a padded axis.

    Raise it as well for a budget in samples if no output is made of recordings. The names weight, tag, reset and
    <key>_length for each padded key are taken already, as every batch has them, and so are <key>_width where two axes
    are padded, and <key>_segment and <key>_position in packed rows.
    """
    marks = _names_of_marks(recipe.settings.length) if recipe.plan.packing is not None else ()
    made = [*(field.key for field in (*fields_of_batch(fields), RESET)), *marks, *dict(recipe.settings.strings)]
    twice = sorted({key for key in made if made.count(key) > 1})
    if twice:
        raise SettingsError(
            expected="outputs with names other than weight, tag, reset, <key>_length, <key>_width, which batches have",
            got=", ".join(twice),
            where=f"{recipe.where}, transforms" + (" and strings" if recipe.settings.strings else ""),
            remedy='Give the output another name, or the strings: strings = { transcript = "text" }.',
        )
    _refuse_wide(recipe, fields)
    padded = [field.key for field in fields if field.padded]
    if recipe.settings.length not in (*padded, NO_KEY):
        raise SettingsError(
            expected="length = " + (" or ".join(f'"{key}"' for key in padded) or "a key with a padded axis"),
            got=f'"{recipe.settings.length}"' + (", which is padded nowhere" if recipe.settings.length in made else ""),
            where=f"{recipe.where}, length",
            remedy="Name the key whose length decides the bucket; the transforms determine which keys there are."
            + ("" if padded else " For batches of 32 samples without one, write rows = 32, and no length or budget."),
        )
    if not has_recordings(fields):
        with placing(recipe.where):
            refuse_number_of_samples(recipe.plan.budget, recipe.settings.length)


def _refuse_wide(recipe: StreamRecipe, fields: tuple[Field, ...]) -> None:
    """Raise a SettingsError if two axes of a key vary and the stream packs rows, carries state or cuts recordings."""
    wide = [field.key for field in fields if field.is_wide]
    refusing = {
        "packing": recipe.plan.packing is not None,
        "carry": recipe.plan.carry,
        "chunk": recipe.chunks is not None,
    }
    named = [name for name, is_set in refusing.items() if is_set]
    if wide and named:
        raise SettingsError(
            expected=f"values that vary along one axis, which {' and '.join(named)} can cut or join",
            got=f'"{wide[0]}", which varies along two',
            where=f"{recipe.where}, {named[0]}",
            remedy=f"Leave out {named[0]}, or give it one size by a transform such as resize_image.",
        )


def marks_of_packed(recipe: StreamRecipe, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return the fields that tell samples of a packed row apart: ids 1, 2, … (0 is padding), and positions.

    Raise a SettingsError if samples have other fields than the packed one, or lack that one.
    """
    key = recipe.settings.length
    if [field.key for field in fields] != [key]:
        raise SettingsError(
            expected=f'"{key}" alone, as rows are packed',
            got=", ".join(field.key for field in fields),
            where=f"{recipe.where}, packing",
            remedy="Leave out the other outputs, or leave out packing.",
        )
    return tuple(Field(key=name, dtype="int32", shape=(None,)) for name in _names_of_marks(key))


def _names_of_marks(key: str) -> tuple[str, ...]:
    return f"{key}_segment", f"{key}_position"
