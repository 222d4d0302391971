"""Reading of tables of settings into frozen dataclasses.

Unknown keys are refused, and the error suggests the nearest known one. Pure.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from shared.errors import SettingsError
from shared.settings.values import BadValue, Table, nearest

__all__ = ["read_table", "read_tables"]

_T = TypeVar("_T")


def read_table(kind: type[_T], table: Table, where: str) -> _T:
    """Return a dataclass of settings read from a table; raise SettingsError for unknown, missing or bad settings."""
    one: _T = read_tables((kind,), table, where)[0]
    return one


def read_tables(
    kinds: tuple[type, ...], table: Table, where: str, *, also_known: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    """Return several dataclasses of settings that share one flat table.

    `also_known` are keys that others read. Raise SettingsError for unknown, missing and invalid settings.
    """
    known = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    for key in table:
        if key not in known and key not in also_known:
            raise SettingsError(
                expected="a known setting" + nearest(key, (*sorted(known), *also_known)),
                got=f'"{key}"',
                where=where,
                remedy="Known here: " + ", ".join(sorted((*known, *also_known))) + ".",
            )
    return tuple(_read(kind, table, where) for kind in kinds)


def _read(kind: type[_T], table: Table, where: str) -> _T:
    """Return one dataclass read from its part of a table; raise SettingsError if a required setting is missing."""
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in table:
            values[field.name] = _parsed(field, table[field.name], where)
        elif field.default is dataclasses.MISSING:  # the dataclass itself fills in defaults
            raise SettingsError(
                expected=f'"{field.name}" ({field.metadata["help"]})',
                got="no such setting",
                where=where,
                remedy=f"Add {field.name} = … there.",
            )
    return kind(**values)


def _parsed(field: dataclasses.Field[Any], value: object, where: str) -> object:
    """Return a setting as its parser has it; raise SettingsError with the setting's place if it refuses the value."""
    try:
        return field.metadata["parse"](value)
    except BadValue as bad:
        raise SettingsError(
            expected=bad.expected,
            got=repr(value),
            where=f"{where}, {field.name}",
            remedy=f"It means: {field.metadata['help']}.",
        ) from None
    except SettingsError as bad:  # of a parser that knows the remedy, and only the place within the setting
        place = f"{where}, {bad.where}" if bad.where else where
        raise SettingsError(expected=bad.expected, got=bad.got, where=place, remedy=bad.remedy) from None
