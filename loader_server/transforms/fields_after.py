"""The fields of samples after one transform, by what it declares and the fields before.

Rules: pure. A length comes from a rule of the transform, or is that of the field before, or is found while indexing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.settings.tables import placing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader_server.transforms.declare import FieldRule, LengthRule
    from loader_server.transforms.find import NamedTransform
    from shared.wire.batch_layout import Field

__all__ = ["fields_after"]


def fields_after(fields: tuple[Field, ...], step: NamedTransform, where: str) -> tuple[Field, ...]:
    """Return the fields after one step, the same if it is undeclared.

    Raise SettingsError if a padded output has no length, or a key lacks a field to change, or has one that the
    transform cannot take.
    """
    if step.outputs is None:
        return fields
    kept = {field.key: field for field in fields if field.key not in step.outputs.removes}
    place = f"{where}, {step.name}"
    for field in step.outputs.fields:
        rules = None if step.outputs.measured else step.outputs.lengths
        kept[field.key] = field if rules is None else _with_length_of(kept.get(field.key), field, rules, place)
    for key, change in step.outputs.changes.items():
        kept[key] = _changed(kept, key, change, place)
    return tuple(kept.values())


def _changed(fields: Mapping[str, Field], key: str, change: FieldRule, where: str) -> Field:
    """Return what a transform makes of the field of a key; raise SettingsError without one, or one that it refuses."""
    if key not in fields:
        raise SettingsError(
            expected=f'an array "{key}"',
            got=", ".join(f'"{name}"' for name in fields) or "no arrays",
            where=where,
            remedy="Name another `key`, or write the transform behind the one that makes it.",
        )
    with placing(where):
        return change(fields[key])


def _with_length_of(before: Field | None, field: Field, rules: Mapping[str, LengthRule], where: str) -> Field:
    """Return an output field, as long and wide as the field before where no rule tells.

    Raise SettingsError if neither tells. If its length is that of the field before, it gets its number of steps a
    second, unless it has one of its own.
    """
    known = before.length_keys if before is not None else ()
    if any(key not in rules and key not in known for key in field.length_keys):
        raise SettingsError(
            expected=f'a length of the padded output "{field.key}"' + (", and a width" if field.is_wide else ""),
            got="none declared",
            where=where,
            remedy="Declare lengths={" + ", ".join(f'"{key}": …' for key in field.length_keys) + "}, or measured=True.",
        )
    # A transform that changes only values need not repeat how many steps make a second.
    inherits = before is not None and field.per_second is None and field.key not in rules
    return replace(field, per_second=before.per_second) if before and inherits else field
