"""The search for the transforms that a stream names, and their construction.

Rules: built-in transforms and a user's own are found, declared and given settings in the same way; only their code is
identified differently: ours by the version of its bytes, a user's by its source. A class is constructed once in each
process for each set of settings, and again when a file that they name has changed. Must not know chains.

A file that settings name, such as a vocabulary or a source of noises, is looked for below the job file's folder, or
where a joining host has fetched it. It is identified by its content: a copy under another name or in another place is
the same, so machines may keep it where they like, and a changed one makes another transform.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import xxhash

from loader_server import transforms
from loader_server.installed import version_of
from loader_server.named_objects import import_named
from loader_server.own_code import own_code
from loader_server.processor.native_code import native_names
from loader_server.sources.blame import error_text
from loader_server.sources.files.file_facts import FilePlaces
from loader_server.sources.side_source import SideSource
from loader_server.transforms.declare import BUILT_INS, Outputs, declaration_of
from loader_server.transforms.generators import RefusingGenerator
from shared.errors import SettingsError, StokerError
from shared.extras import how_to_get
from shared.hashing import fingerprint
from shared.settings.parsers import FileName, nearest
from shared.settings.tables import placing, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from loader_server.own_code import OwnCode
    from loader_server.transforms.declare import Declaration, Transform
    from shared.settings.parsers import Table

__all__ = [
    "NamedTransform",
    "built_ins",
    "content_of_settings",
    "find_transforms",
    "names_in",
    "settings_of_built_ins",
    "table_names",
    "with_paths",
]

_HERE = FilePlaces()

#: An instance of a dataclass of settings, which is hashable, as it is frozen; None if there are no settings.
_Settings: TypeAlias = Any

_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTransform:
    """One transform of a stream, ready to be called with a sample and a generator."""

    name: str
    call: Transform
    #: Declared outputs; None if they are measured while indexing.
    outputs: Outputs | None
    #: Its settings with the hashes of files that they name; for a user's own transform, a hash of its source and these.
    identity: str
    #: Versions of the installed packages that its bytes depend on.
    packages: Mapping[str, str]
    #: Its own modules that are no Python sources, but compiled.
    compiled: tuple[str, ...] = ()
    #: Whether it declares that native code which it uses gives the same bytes on each processor of a job's level.
    processor_safe: bool = False
    #: Passed instead of a generator to a transform that must not draw; None if it draws.
    refusing: RefusingGenerator | None = field(repr=False, compare=False)

    @property
    def draws(self) -> bool:
        """Return whether it gets the sample's generator."""
        return self.refusing is None

    @property
    def native_code(self) -> list[str]:
        """Return the packages and modules by which its bytes may hang on the processor, whatever level a job keeps to.

        There are none if it declares `processor_safe`. Raise importlib's PackageNotFoundError if a package was just
        removed.
        """
        return [] if self.processor_safe else native_names(self.packages, self.compiled)


def find_transforms(
    names: tuple[str, ...], tables: Mapping[str, Table], where: str, places: FilePlaces = _HERE
) -> tuple[NamedTransform, ...]:
    """Return the transforms of these names, in this order, each with the settings from its table.

    Files that settings name are looked for in `places`. Raise SettingsError for an unknown name, a table that belongs
    to no transform or is there twice, settings that do not fit, a transform that cannot be imported or made, or a file
    or package that is missing. Raise DataError if a source of recordings that settings name cannot be used. Other
    errors of `_made` pass through, such as an OSError.
    """
    # Before the tables, so that a misspelt name is reported instead of its table.
    targets = [_target(name, f"{where}, transforms") for name in names]
    owned = _tables_by_transform(names, tables, where)
    return tuple(
        _made(name, target, owned.get(name), where, places) for name, target in zip(names, targets, strict=True)
    )


def named_files(names: tuple[str, ...], tables: Mapping[str, Table], where: str) -> list[str]:
    """Return the names of the files in these transforms' settings, as written there; side sources do not count.

    Raise SettingsError for an unknown name, a table that belongs to no transform or is there twice, settings that do
    not fit, or a module or library that cannot be imported.
    """
    owned = _tables_by_transform(names, tables, where)
    targets = [(name, _target(name, f"{where}, transforms")) for name in names]
    made = (_settings(name, declaration_of(target), owned.get(name), f"{where}, {name}") for name, target in targets)
    return [file for settings in made for file in names_in(settings)]


def built_ins() -> dict[str, Callable[..., Any]]:
    """Return all built-in transforms by their names in a job file, sorted.

    Raise SettingsError if a library that one of their modules needs is missing.
    """
    for module in _modules_of_built_ins().values():
        importlib.import_module(module)
    return dict(sorted(BUILT_INS.items()))


def _built_in(name: str) -> Callable[..., Any] | None:
    """Return the built-in transform of this name, or None.

    Its module has the same name, so no other is imported. Raise SettingsError if a library that it needs is missing.
    """
    module = _modules_of_built_ins().get(name)
    if module is not None:
        importlib.import_module(module)
    return BUILT_INS.get(name)


@functools.cache
def _modules_of_built_ins() -> dict[str, str]:
    """Return the modules that may define built-in transforms, by the last part of their names."""
    # By the names of files, without importing them: a job of texts needs no library for sound.
    modules = pkgutil.walk_packages(transforms.__path__, f"{transforms.__name__}.")
    return {module.name.rpartition(".")[2]: module.name for module in modules}


def settings_of_built_ins() -> dict[str, type[Any]]:
    """Return the settings class of each built-in transform that has settings, by its name.

    Raise SettingsError if a library that one of their modules needs is missing.
    """
    declared = {name: declaration_of(target).settings for name, target in built_ins().items()}
    return {name: settings for name, settings in declared.items() if settings is not None}


# --- tables ---


def table_names(names: Iterable[str]) -> set[str]:
    """Return the possible names of these transforms' tables: the full name, or the part after the colon."""
    return {part for name in names for part in (name, _short(name))}


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _tables_by_transform(names: tuple[str, ...], tables: Mapping[str, Table], where: str) -> dict[str, Table]:
    """Return each transform's table of settings; a transform without a table is left out.

    Raise SettingsError for a second one, for one that is no table, and for one that belongs to no transform or to
    several.
    """
    found: dict[str, Table] = {}
    for key, table in tables.items():
        name = _owner(key, names, where)
        if name in found:
            raise SettingsError(
                expected=f"one table for {name}",
                got=f'two, called "{_short(name)}" and "{name}"',
                where=where,
                remedy="Put its settings into one of them.",
            )
        if not isinstance(table, dict):
            raise SettingsError(
                expected=f"a table of settings of {name}",
                got=repr(table),
                where=f"{where}, {key}",
                remedy="Write its settings below a heading of their own, [streams.<name>.<transform>].",
            )
        found[name] = table
    return found


def _owner(key: str, names: tuple[str, ...], where: str) -> str:
    """Return the transform that a table belongs to; raise SettingsError if there is none, or more than one."""
    owners = [key] if key in names else [name for name in dict.fromkeys(names) if _short(name) == key]
    if len(owners) == 1:
        return owners[0]
    if owners:
        raise SettingsError(
            expected="a table of one transform",
            got=f'"{key}", which may be {" or ".join(owners)}',
            where=where,
            remedy=f'Write the full name in quotes: "{owners[0]}".',
        )
    raise SettingsError(
        expected="settings of a transform of this stream" + nearest(key, sorted(table_names(names))),
        got=f"the table {key}",
        where=where,
        remedy=f"Its transforms are {', '.join(names) or 'none'}.",
    )


# --- one transform ---


def _made(name: str, target: Callable[..., Any], table: Table | None, where: str, places: FilePlaces) -> NamedTransform:
    """Make one transform ready: read its settings, hash the files they name, construct it, and identify its code.

    Raise SettingsError if its settings do not fit, a file or package is missing, or it cannot be constructed; DataError
    if a source of recordings that settings name cannot be used. Errors of ours from its construction, of `own_code` and
    of such a source pass through, such as an OSError.
    """
    declaration, place = declaration_of(target), f"{where}, {name}"
    packages = _versions(declaration.packages, name, place)
    settings = with_paths(_settings(name, declaration, table, place), places)
    content = content_of_settings(settings, place)
    call = _ready(target, settings, content, name, place)
    outputs = getattr(call, "outputs", None)
    code = own_code(_modules(name, target)) if name not in BUILT_INS else None
    return NamedTransform(
        name=name,
        call=call,
        outputs=outputs if isinstance(outputs, Outputs) else declaration.outputs,
        identity=_identity(content, code),
        packages={**(code.packages if code else {}), **packages},
        compiled=code.compiled if code else (),
        processor_safe=declaration.processor_safe,
        refusing=None if declaration.draws else RefusingGenerator(name, where),
    )


def _target(name: str, where: str) -> Callable[..., Any]:
    """Return the function or class of a name.

    Raise SettingsError if there is none, or if its module, or a library that this needs, cannot be imported.
    """
    place, _, attribute = name.partition(":")
    if place and attribute:
        return import_named(name, "a function", where)
    found = _built_in(name)
    if found is None:
        known = built_ins()
        raise SettingsError(
            expected=f"{', '.join(known)} or module:function" + nearest(name, known),
            got=f'"{name}"',
            where=where,
            remedy="Name a built-in transform, or a function or class of a module that can be imported.",
        )
    return found


def _settings(name: str, declaration: Declaration, table: Table | None, where: str) -> _Settings:
    """Return the transform's settings from its table, or None if it declares none.

    Raise SettingsError if the table does not fit, or if there is one although the transform declares no settings.
    """
    if declaration.settings is not None:
        with _blaming_settings(name, where):
            made: _Settings = read_table(declaration.settings, table or {}, where)
            return made
    if table is not None:
        raise SettingsError(
            expected=f"no table for {name}, which declares no settings",
            got=f"one with {', '.join(table) or 'nothing in it'}",
            where=where,
            remedy="Declare them with @transform(settings=…), as docs/transforms.md shows, or remove the table.",
        )
    return None


def _ready(target: Callable[..., Any], settings: _Settings, content: str, name: str, where: str) -> Transform:
    """Return the callable for each sample: an instance of a class, or a function with its settings bound.

    Raise SettingsError if a class cannot be made from its settings, or its instances cannot be called. Errors of ours
    pass.
    """
    if isinstance(target, type):
        with _blaming_settings(name, where):
            instance = _instance(target, settings, content)
            if not callable(instance):
                raise TypeError("its instances cannot be called with (sample, rng)")
            return instance
    return functools.partial(target, settings=settings) if settings is not None else target


# `_content` is part of the cache key only: a file that changed under the same name makes another instance.
@functools.cache
def _instance(kind: Callable[..., Any], settings: Hashable, _content: str) -> object:
    return kind(settings) if settings is not None else kind()


@contextlib.contextmanager
def _blaming_settings(name: str, where: str) -> Iterator[None]:
    """Turn errors of a transform's own code, while it reads settings or is constructed, into a SettingsError.

    Errors of ours pass, with the place added.
    """
    try:
        with placing(where):
            yield
    except StokerError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise SettingsError(
            expected=f"the transform {name} to be made from its settings",
            got=error_text(error),
            where=where,
            remedy="Mend its settings, or the transform.",
        ) from error


def _modules(name: str, target: Callable[..., Any]) -> list[str]:
    """Return the modules in which a user's transform was looked for and is defined."""
    place = name.partition(":")[0]
    return sorted({place, getattr(inspect.unwrap(target), "__module__", None) or place})


def _identity(content: str, code: OwnCode | None) -> str:
    if code is None:
        return content
    return fingerprint(code.sources, content) if content else code.sources


def _versions(packages: tuple[str, ...], name: str, where: str) -> dict[str, str]:
    """Return the installed versions of these packages by name; raise SettingsError if one is missing."""
    versions = {}
    for package in packages:
        try:
            versions[package] = version_of(package)
        except PackageNotFoundError:
            raise SettingsError(
                expected=f"the package {package}, which the bytes of {name} depend on",
                got="none of that name is installed",
                where=where,
                remedy=how_to_get(name)
                if name in BUILT_INS
                else f"Run pip install {package}, or mend packages=… in the transform's declaration.",
            ) from None
    return versions


def with_paths(settings: Any, places: FilePlaces) -> Any:
    """Return the settings with each file's path in place of its name, and each side source with its places.

    Return None if there are no settings.
    """
    if settings is None:
        return None
    values = _values(settings)
    placed = {name: _each_file(value, lambda file: _below(file, places)) for name, value in values.items()}
    return settings if placed == values else replace(settings, **placed)


def names_in(settings: Any) -> list[str]:
    """Return the names of the files in the settings, as written there; side sources do not count."""
    names: list[str] = []
    for value in _values(settings).values() if settings is not None else ():
        _each_file(value, lambda file: names.append(file) if isinstance(file, FileName) else file)
    return [str(name) for name in names]


def content_of_settings(settings: Any, where: str) -> str:
    """Return all settings as text, with each file's hash in place of its path; "" if there are none.

    A setting that is None adds nothing, so that a setting added later does not change the content of earlier ones; one
    declared with `means` adds that value. Raise SettingsError if a file cannot be read or a side source's settings are
    wrong, DataError if a side source cannot be used; other errors of a side source pass.
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

    Raise SettingsError if the file cannot be read or the source's settings are wrong, DataError if the source cannot be
    used; other errors of the source pass.
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
