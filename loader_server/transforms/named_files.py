"""Files that a transform's settings name, such as a vocabulary or a source of noises: their places and content.

Rules: a file is looked for below the job file's folder, or where a joining host has fetched it. A file is identified by
its content: a copy under another name or in another place is the same, so machines may keep it where they like, and a
changed one makes another transform.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from loader_server.sources.side_source import SideSource
from shared.errors import SettingsError
from shared.settings.parsers import FileName

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader_server.sources.files.file_facts import FilePlaces

__all__ = ["content_of_settings", "names_in", "with_paths"]

_BLOCK_BYTES = 2**20


def with_paths(settings: Any, places: FilePlaces) -> Any:
    """Return the settings with each file's path in place of its name."""
    if settings is None:
        return None
    values = _values(settings)
    placed = {name: _each_file(value, lambda file: _below(file, places)) for name, value in values.items()}
    return settings if placed == values else replace(settings, **placed)


def names_in(settings: Any) -> list[str]:
    """Return the names of the files in the settings, as written there."""
    names: list[str] = []
    for value in _values(settings).values() if settings is not None else ():
        _each_file(value, lambda file: names.append(file) if isinstance(file, FileName) else file)
    return [str(name) for name in names]


def content_of_settings(settings: Any, where: str) -> str:
    """Return all settings as text, with each file's hash in place of its path.

    A setting that is None adds nothing, so that a setting added later does not change the content of earlier ones; one
    declared with `means` adds that value. Raise SettingsError if a file cannot be read.
    """
    if settings is None:
        return ""
    means = {field.name: field.metadata.get("means") for field in fields(settings)}
    values = [(name, means[name] if value is None else value) for name, value in _values(settings).items()]
    # Hashes in place of paths: a copy of a file elsewhere makes the same transform, and another content another one.
    given = ((name, value) for name, value in values if value is not None)
    return repr(sorted((name, _each_file(value, lambda file: _digest(file, where))) for name, value in given))


def _values(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def _below(file: FileName | SideSource, places: FilePlaces) -> FileName | SideSource:
    return file.at(places) if isinstance(file, SideSource) else type(file)(places.find(file))


def _each_file(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, FileName | SideSource):
        return change(value)
    return tuple(_each_file(element, change) for element in value) if isinstance(value, tuple) else value


def _digest(path: FileName | SideSource, where: str) -> str:
    """Return the hash of a file's content, or of a side source.

    Raise SettingsError if the file cannot be read, DataError if the source cannot be used.
    """
    if isinstance(path, SideSource):
        return path.digest(f"{where}, recordings")
    state = xxhash.xxh3_128()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                state.update(block)
    except OSError as error:
        raise SettingsError(
            expected="a file that can be read",
            got=f"{error.strerror or type(error).__name__}: {path}",
            where=where,
            remedy=path.remedy,
        ) from None
    return state.hexdigest()
