"""Reading of tables of settings into frozen dataclasses.

Unknown keys are refused, and the error suggests the nearest known one. Each caller that knows a place adds it by
`placing`, so that an error names the whole path from the job file on, even from code that does not know its own place,
such as a user's transform. Pure.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import SettingsError
from shared.settings.parsers import BadValue, Table, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["placing", "read_table", "read_tables"]

_T = TypeVar("_T")


@contextlib.contextmanager
def placing(where: str) -> Iterator[None]:
    """Prefix `where` to the place of a SettingsError from the block, unless it begins with that already.

    The error is raised again, as a plain SettingsError.
    """
    try:
        yield
    except SettingsError as error:
        # Blocks nest, and an inner one may have named the whole place already: naming it twice would hide the setting.
        is_placed = error.where.startswith(where)
        place = error.where if is_placed else f"{where}, {error.where}" if error.where else where
        raise SettingsError(expected=error.expected, got=error.got, where=place, remedy=error.remedy) from None


def read_table(kind: type[_T], table: Table, where: str) -> _T:
    """Return a dataclass of settings read from a table; raise SettingsError for unknown, missing or bad settings.

    Other errors of a user's parser pass through.
    """
    return read_tables((kind,), table, where)[0]  # type: ignore[no-any-return] # of this kind


def read_tables(
    kinds: tuple[type, ...], table: Table, where: str, *, also_known: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    """Return several dataclasses of settings that share one flat table.

    `also_known` are keys that others read. Raise SettingsError for unknown, missing and invalid settings; other errors
    of a user's parser pass through.
    """
    known = {field.name for kind in kinds for field in dataclasses.fields(kind)}.union(also_known)
    for key in table:
        if key not in known:
            raise SettingsError(
                expected="a known setting" + nearest(key, sorted(known)),
                got=f'"{key}"',
                where=where,
                remedy="Known here: " + ", ".join(sorted(known)) + ".",
            )
    return tuple(_read(kind, table, where) for kind in kinds)


def _read(kind: type[_T], table: Table, where: str) -> _T:
    """Return one dataclass read from its part of a table; raise SettingsError for a missing or invalid setting.

    Other errors of a user's parser pass through.
    """
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
    """Return a setting as its parser has it; raise SettingsError with the setting's place if it refuses the value.

    A SettingsError that the parser raises gets the place of the table prefixed; its other errors pass through.
    """
    try:
        with placing(where):  # for a parser that knows the remedy, and only the place within the setting
            return field.metadata["parse"](value)
    except BadValue as bad:
        raise SettingsError(
            expected=bad.expected,
            got=repr(value),
            where=f"{where}, {field.name}",
            remedy=f"It means: {field.metadata['help']}.",
        ) from None
