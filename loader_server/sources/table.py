"""Which sources there are, by the name that a job file says, and how any process makes one.

Rules: names lead to dotted names, and a module is imported only for those who use it, so that a format may need a
library that others do without; other packages add theirs as entry points of the group `stoker.sources`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.config import nearest
from shared.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.source import Source

__all__ = ["SOURCES", "SourceSpec", "dotted_name", "source_class"]

#: The sources of this package. A new one is added here.
SOURCES: dict[str, str] = {
    "lines": "loader_server.sources.lines:LinesSource",
    "manifest": "loader_server.sources.manifest.source:ManifestSource",
    "synthetic": "loader_server.sources.synthetic:SyntheticSource",
}

_ENTRY_POINTS = "stoker.sources"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """All that a process has to know to make a source: `name` as the job file has it, `dotted` what it leads to."""

    name: str
    dotted: str
    settings: Any
    base: Path

    def make(self) -> Source:
        """A source of one's own; nothing is opened yet."""
        return _class_at(self.dotted)(self.settings, self.base)


def dotted_name(name: str, where: str) -> str:
    """Where the class of a source is; SettingsError for a name that nobody knows."""
    others = {point.name: point.value for point in importlib.metadata.entry_points(group=_ENTRY_POINTS)}
    known = {**others, **SOURCES}
    if name in known:
        return known[name]
    raise SettingsError(
        expected="source = " + " or ".join(f'"{one}"' for one in known) + nearest(name, known),
        got=f'"{name}"',
        where=where,
        remedy="Name the kind of source.",
    )


def source_class(name: str, where: str) -> type[Source]:
    """The class of a source by its name in the job file."""
    return _class_at(dotted_name(name, where))


def _class_at(dotted: str) -> type[Source]:
    module, _, name = dotted.partition(":")
    found: type[Source] = getattr(importlib.import_module(module), name)
    return found
