"""The code of a user's own source or transform: its module, modules beside it that it imports, and installed packages.

Rules: an installed module is identified by the version of its package, any other by its source; imports are read from
the sources and nothing is run, so all processes find the same, whatever they have imported so far. A module that is
imported under a name computed at run time is not found. Must not know chains.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
import sysconfig
from dataclasses import dataclass
from importlib.abc import PathEntryFinder
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.installed import metadata_field, version_of
from shared.hashing import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec

__all__ = ["OwnCode", "own_code", "own_files"]

#: Our own packages, which chains identify by the version of their bytes.
_OURS = frozenset(("loader_server", "shared", "trainer_client"))
#: Folders that package managers install into.
_INSTALLED = frozenset(("site-packages", "dist-packages"))
#: The first part of each path in a package's RECORD, up to a suffix: its top-level modules.
_RECORDED = re.compile(r'^"?([^/.,"\n]+)[/.]', re.MULTILINE)
_STANDARD_LIBRARY = frozenset(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """A fingerprint of all sources, and the versions of the installed packages that they import."""

    sources: str
    packages: Mapping[str, str]
    #: Those of the modules that are compiled, sorted.
    compiled: tuple[str, ...] = ()


def own_code(modules: Sequence[str]) -> OwnCode:
    """Return the code behind these modules, which are identified by source even if they are installed.

    Modules that are not found, built in, our own or of the standard library are left out. Raise OSError if a source
    cannot be read, or importlib's PackageNotFoundError if a package was just removed.
    """
    own, packages = _walk(modules)
    return OwnCode(
        sources=fingerprint(*(own[name].source for name in sorted(own))),
        packages=packages,
        compiled=tuple(name for name in sorted(own) if own[name].file.suffix != ".py"),
    )


def own_files(modules: Iterable[str], folder: Path) -> dict[str, Path]:
    """Return the files of these modules and of the modules that they import, as far as they lie in this folder.

    The keys are their paths below a folder that modules are imported from. Installed modules are left out. Raise
    OSError if a source cannot be read, or importlib's PackageNotFoundError if a package was just removed.
    """
    # With each package on the way, because importing a module runs the `__init__` of its packages.
    walked, _ = _walk(sorted({part for name in modules for part in _on_the_way(name)}))
    files = {name: walked[name].file.absolute() for name in sorted(walked)}
    own = {name: file for name, file in files.items() if file.is_relative_to(folder) and not _is_installed(file)}
    return {_place_of(name, file): file for name, file in own.items()}


def _place_of(name: str, file: Path) -> str:
    package = name if file.name.startswith("__init__.") else name.rpartition(".")[0]
    return "/".join((*filter(None, package.split(".")), file.name))


@dataclass(frozen=True, slots=True)
class _Module:
    file: Path
    source: bytes


def _walk(modules: Sequence[str]) -> tuple[dict[str, _Module], dict[str, str]]:
    """Return these modules and those that they import, if they count by source, and the versions of other packages.

    Modules that are not found, built in, our own or of the standard library are left out. A module that was named
    counts by source, and if it is installed by its version as well. Raise OSError if a source cannot be read, or
    importlib's PackageNotFoundError if a package was just removed.
    """
    own: dict[str, _Module] = {}
    packages: dict[str, str] = {}
    seen, waiting = set(modules), list(modules)
    while waiting:
        name = waiting.pop()
        top, spec = name.partition(".")[0], _find_spec(name)
        if spec is None or spec.origin is None or not spec.has_location:
            continue  # a folder without __init__.py, built in, or missing
        file = Path(spec.origin)
        if top in _OURS or _is_pythons(file) or not file.is_file():
            continue
        # An installed package counts by its version, unless it was named itself: then its source counts as well.
        if _is_installed(file):
            packages |= _versions(top)
            if name not in modules:
                continue
        own[name] = _Module(file, file.read_bytes())
        imported = set(_imported(own[name].source, spec))
        waiting += imported - seen
        seen |= imported
    return own, packages


def _is_installed(file: Path) -> bool:
    return bool(_INSTALLED & set(file.parts))


def _is_pythons(file: Path) -> bool:
    return bool(_STANDARD_LIBRARY & set(file.parents)) and not _is_installed(file)


def _find_spec(name: str) -> ModuleSpec | None:
    """Return where a module is, without running it or the packages that contain it; None if there is none.

    `importlib.util.find_spec` would import the packages, so they are searched one by one.
    """
    top, *inner = name.split(".")
    spec = _first(finder.find_spec(top, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None  # a name in a module, not a module in a package
        importers = filter(None, map(pkgutil.get_importer, spec.submodule_search_locations))
        path = f"{spec.name}.{part}"
        spec = _first(importer.find_spec(path) for importer in importers if isinstance(importer, PathEntryFinder))
    return spec


def _first(specs: Iterable[ModuleSpec | None]) -> ModuleSpec | None:
    """Return the first spec that is not None, or None."""
    return next((spec for spec in specs if spec is not None), None)


def _imported(source: bytes, spec: ModuleSpec) -> Iterator[str]:
    """Yield every module that a source may import: each package on the way, and names that may be modules."""
    for name in _named(source, spec.parent or ""):
        yield from _on_the_way(name)


def _on_the_way(name: str) -> Iterator[str]:
    """Yield each package that contains a module, and the module."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


@functools.lru_cache(maxsize=512)
def _named(source: bytes, package: str) -> frozenset[str]:
    """Return the names that a source may import; none if it cannot be parsed.

    It is cached: parsing takes most of the time here, and each stream and source asks.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()  # a compiled module, or not Python: only its bytes count
    return frozenset(_names_in(tree, package))


def _names_in(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            near = "." * node.level + (node.module or "")
            with contextlib.suppress(ImportError):  # above its package: fails at run time too
                module = importlib.util.resolve_name(near, package)
                yield from (f"{module}.{alias.name}" for alias in node.names)


def _versions(top: str) -> dict[str, str]:
    """Return the versions of the packages that an installed module belongs to, by name; empty if none is known.

    Raise importlib's PackageNotFoundError if one was removed since this process listed them.
    """
    names = [metadata_field(distribution, "Name") for distribution in _distributions().get(top, ())]
    return {name: version_of(name) for name in names}


@functools.cache
def _distributions() -> Mapping[str, Sequence[importlib.metadata.Distribution]]:
    """Return the installed distributions by their top-level modules, as they were at the first call.

    As `importlib.metadata.packages_distributions`, which parses the metadata and the list of files of every package,
    and so takes ten times as long: each process of a job would wait for it.
    """
    by_module: dict[str, list[importlib.metadata.Distribution]] = {}
    for distribution in importlib.metadata.distributions():
        for top in _top_level(distribution):
            by_module.setdefault(top, []).append(distribution)
    return by_module


def _top_level(distribution: importlib.metadata.Distribution) -> Iterable[str]:
    declared = (distribution.read_text("top_level.txt") or "").split()
    return declared or set(_RECORDED.findall(distribution.read_text("RECORD") or ""))
