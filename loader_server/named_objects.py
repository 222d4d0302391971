"""Objects that a job file names as `package.module:name`: importing them, and errors about such names.

Rules: a wrong name is an error of the job file, whatever importing raised; must not know what the objects are for.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.settings.parsers import nearest
from shared.settings.tables import placing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MissingModuleError", "import_named"]


class MissingModuleError(SettingsError):
    """The error for a module that cannot be found, or that imports one that cannot be found."""


def import_named(name: str, noun: str, where: str) -> Callable[..., Any]:
    """Return the function or class of a name with a colon; `noun` is the word for it in messages.

    Raises:
        SettingsError: It is not there or cannot be called, or importing its module raises any other error; `where`
            names the setting.
        MissingModuleError: Its module is not there, or a module that its module imports.
    """
    place, _, attribute = name.partition(":")
    try:
        with placing(where):
            module = importlib.import_module(place)
    except SettingsError:
        raise  # the module is there, and what it declares says what is wrong
    except Exception as error:  # a user's module may raise anything
        kind = MissingModuleError if isinstance(error, ModuleNotFoundError) else SettingsError
        raise kind(
            expected=f'the module "{place}" to be importable{_nearest_module(place, error)}',
            got=f"{type(error).__name__}: {error}",
            where=where,
            remedy="Install it, or start the loader in the folder that holds it.",
        ) from error
    target: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(target):
        raise SettingsError(
            expected=f'{noun} "{attribute}" in {place}' + nearest(attribute, dir(module)),
            got="nothing of that name" if target is None else f"a {type(target).__name__}",
            where=where,
            remedy="Correct the name.",
        )
    return target


def _nearest_module(place: str, error: Exception) -> str:
    """Return a hint at the module with the nearest name in the same package, or beside it.

    Return "" if the module exists and another is missing, or if no name is near.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name is None or not place.startswith(error.name):
        return ""
    package, _, name = error.name.rpartition(".")
    path = getattr(importlib.import_module(package), "__path__", []) if package else None
    return nearest(name, (module.name for module in pkgutil.iter_modules(path)))
