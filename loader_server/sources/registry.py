"""The sources by their names in a job file, and how any process makes one.

Rules: names lead to dotted names, and a module is imported only when it is used, so that a format may need a library
that others do without; other packages add theirs as entry points of the group `stoker.sources`. A name with a colon is
a user's own class: a `Source`, or a map-style data set.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader_server.named_objects import import_named
from loader_server.sources.source import OfJob, Source
from shared.errors import SettingsError
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.sources.files.file_facts import CacheSettings

__all__ = ["SOURCES", "SourceSpec", "dotted_name", "settings_of_sources", "source_class"]

#: The sources of this package. A new one is added here.
SOURCES: dict[str, str] = {
    "manifest": "loader_server.sources.manifest.source:ManifestSource",
    "files": "loader_server.sources.manifest.named_files:FilesSource",
    "hdf5": "loader_server.sources.hdf5.source:Hdf5Source",
    "kaldi": "loader_server.sources.speech.kaldi:KaldiSource",
    "lhotse": "loader_server.sources.cuts.source:LhotseSource",
    "webdataset": "loader_server.sources.records.webdataset:WebDatasetSource",
    "tfrecord": "loader_server.sources.records.tfrecord:TFRecordSource",
    "lines": "loader_server.sources.text_files.line_source:LinesSource",
    "parallel": "loader_server.sources.text_files.parallel:ParallelSource",
    "jsonl": "loader_server.sources.text_files.jsonl:JsonLinesSource",
    "parquet": "loader_server.sources.arrays.arrow:ParquetSource",
    "arrow": "loader_server.sources.arrays.arrow:ArrowSource",
    "numpy": "loader_server.sources.arrays.numpy_arrays:NumpySource",
    "tfds": "loader_server.sources.records.tfds:TfdsSource",
    "array_record": "loader_server.sources.records.array_record:ArrayRecordSource",
    "pipeline": "loader_server.sources.pipeline.source:PipelineSource",
    "graph": "loader_server.sources.pipeline.graph_source:GraphSource",
    "synthetic": "loader_server.sources.synthetic:SyntheticSource",
}

_ENTRY_POINTS = "stoker.sources"

#: The attributes that every source named in a job file has to define itself.
_OF_EACH = ("Settings", "fields", "survey", "probe", "decode")

#: How a job file names a class that is not ours, and what opens it.
_OWN_CLASS = "package.module:Class"
_MAP_STYLE = "loader_server.sources.map_style:MapStyleSource"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """All that a process needs to make a source.

    `name` is the source's name in the job file, `dotted` the dotted name that it leads to, and `where` the place where
    it is named, for messages.
    """

    name: str
    dotted: str
    settings: Any
    base: Path
    where: str = ""
    #: The cache of remote files, if one is set.
    cache: CacheSettings | None = None
    of_job: OfJob = field(default_factory=OfJob)

    @property
    def kind(self) -> type[Source]:
        """Return the source's class, importing its module; an error of that passes, as does an AttributeError."""
        return _class_at(self.dotted)

    def make(self) -> Source:
        """Return a new instance with its facts of the job and its cache; nothing is opened yet.

        An error of importing the source's module passes, and what its constructor raises.
        """
        made = self.kind(self.settings, self.base)
        # Set and not passed: a user's own source has the constructor of its base class, with settings and folder.
        made.of_job = self.of_job
        made.files.state = self.of_job.state
        if self.cache is not None:
            made.files.cache = self.cache
        return made


def dotted_name(name: str, where: str) -> str:
    """Return the dotted name of a source's class: one of this package, of an entry point, or a user's own.

    A user's class that is no Source gives the name of the map-style source. Raise a SettingsError for an unknown name,
    or if a user's class cannot be imported. The class of an entry point is not imported here.
    """
    if name in SOURCES:  # first, because asking for entry points reads the metadata of every installed package
        return SOURCES[name]
    others = {point.name: point.value for point in importlib.metadata.entry_points(group=_ENTRY_POINTS)}
    if name in others:
        return others[name]
    if ":" in name.strip(":"):
        own = import_named(name, "a class", f"{where}, source")
        return name if isinstance(own, type) and issubclass(own, Source) else _MAP_STYLE
    known = {**others, **SOURCES}
    names = " or ".join(f'"{known_name}"' for known_name in (*known, _OWN_CLASS))
    raise SettingsError(
        expected=f"source = {names}{nearest(name, known)}",
        got=f'"{name}"',
        where=where,
        remedy="Name the kind of source.",
    )


def source_class(name: str, where: str) -> type[Source]:
    """Return the class of a source by its name in the job file.

    Raise a SettingsError if the name is unknown, a user's class cannot be imported, the class lacks an attribute that
    each source defines itself, or it sets `gathers` without a `gather` of its own. An error of importing the source's
    module passes, such as a SettingsError for a library that is missing, or an AttributeError if the class is not
    there.
    """
    source = _class_at(dotted_name(name, where))
    # Looked at when the job file is read: a class without a method would fail in the middle of indexing.
    missing = [name for name in _OF_EACH if getattr(source, name, None) is getattr(Source, name, None)]
    if missing:
        raise SettingsError(
            expected=f"a source with its own {', '.join(_OF_EACH)}",
            got=f"{source.__name__} without {', '.join(missing)}",
            where=f'{where}, source = "{name}"',
            remedy="Write what is missing: docs/sources.md shows a whole source.",
        )
    # `gathers` may be a property or a plain value, so it is compared without making an instance.
    if source.gathers not in (Source.gathers, False) and source.gather is Source.gather:
        raise SettingsError(
            expected="a source that writes whole batches, as its gathers promises",
            got=f"{source.__name__} without gather",
            where=f'{where}, source = "{name}"',
            remedy="Write gather(samples, out), or leave gathers out: then samples are read and decoded one by one.",
        )
    return source


def settings_of_sources() -> dict[str, type[Any]]:
    """Return the settings class of each source of this package, by its name in a job file.

    That of map-style sources stands under "package.module:Class". An error of importing their modules passes, such as a
    SettingsError for a library that is missing.
    """
    return {name: _class_at(dotted).Settings for name, dotted in {**SOURCES, _OWN_CLASS: _MAP_STYLE}.items()}


def _class_at(dotted: str) -> type[Source]:
    module, _, name = dotted.partition(":")
    kind: type[Source] = getattr(importlib.import_module(module), name)
    return kind
