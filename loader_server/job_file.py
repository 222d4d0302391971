"""A job file, read and checked: where its folders are, and what it says about each stream.

`loader_server/stream` opens a stream. Rules: nothing is opened or written, and no index is read.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loader_server.job_folder import JobFolder
from loader_server.planning import PlanSettings
from loader_server.planning.batch_size import refuse_wrong_size
from loader_server.processor.capping import refuse_unfit
from loader_server.sources.chunks.cutting import ChunkRule, ChunkSettings
from loader_server.sources.files.file_facts import CacheSettings, FilePlaces
from loader_server.sources.registry import SourceSpec, dotted_name, source_class
from loader_server.sources.row_filter import RowFilter
from loader_server.sources.side_source import SourceName
from loader_server.sources.source import OfJob
from loader_server.sources.whole_source import WholeSource
from loader_server.transforms.chain import Chain
from loader_server.transforms.find import table_names
from shared.errors import SettingsError
from shared.extras import MissingLibraryError
from shared.settings.job import StreamSettings
from shared.settings.tables import placing, read_tables
from shared.wire.payload import PayloadEncoding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from shared.settings.job import Job
    from shared.wire.batch_layout import Field

__all__ = ["JobFile", "Recipes", "StreamRecipe", "read_job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecipe:
    """The settings of a stream, read from the job file and checked; nothing is opened yet."""

    name: str
    where: str
    settings: StreamSettings
    plan: PlanSettings
    sources: tuple[SourceSpec, ...]
    tables: Mapping[str, Any]
    #: Where the files are that its transforms name.
    places: FilePlaces
    #: The filter of samples; None: all take part.
    filter: RowFilter | None = None
    #: Whether its source makes whole batches, perhaps of the samples of another stream.
    whole: bool = False
    #: The rule for cutting recordings; None: each is a sample.
    chunks: ChunkRule | None = None
    #: Whether a trainer sends the graph that makes its batches.
    sent: bool = False

    def chain(self, raw: tuple[Field, ...], before: str = "") -> Chain:
        """Return the chain of transforms over raw samples of these fields, or only those before the transform `before`.

        Raise a SettingsError if recordings are cut and a transform declares no outputs, if names, settings, fields or
        declarations of transforms do not fit, or a module, file or package is missing; raise a DataError if a source of
        recordings that a setting names cannot be used, and a ValueError if `before` is none of the transforms. Other
        errors of `Chain.make` pass.
        """
        names, tables = self.settings.transforms, self.tables
        if before:
            names = names[: names.index(before)]
            tables = {name: table for name, table in tables.items() if name in table_names(names)}
        chain = Chain.make(names, tables, self.where, raw, self.places)
        if self.chunks is not None and chain.measured:
            raise self.chunks.refuse_measured([step.name for step in chain.steps if step.outputs is None])
        return chain


class Recipes(Mapping[str, StreamRecipe]):
    """The recipes of all streams, read at once, so that each mistake is found at once.

    A stream whose source needs a package that is not installed here is an error only when that stream is asked for.
    Making it raises a SettingsError for the first mistake; other errors of `read` pass through.
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], StreamRecipe]) -> None:
        self._read: dict[str, StreamRecipe | MissingLibraryError] = {}
        for name in names:
            try:
                self._read[name] = read(name)
            except MissingLibraryError as error:
                self._read[name] = error

    def __getitem__(self, name: str) -> StreamRecipe:
        """Return the stream's recipe; raise a MissingLibraryError if its source needs a package that is not installed.

        Raise a KeyError if the job has no such stream.
        """
        recipe = self._read[name]
        if isinstance(recipe, MissingLibraryError):
            raise recipe
        return recipe

    def __contains__(self, name: object) -> bool:
        return name in self._read

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def readable(self) -> Iterator[tuple[str, StreamRecipe]]:
        """Yield the streams whose packages are installed, each with its recipe; the others are left out."""
        for name, recipe in self._read.items():
            if isinstance(recipe, StreamRecipe):
                yield name, recipe


class JobFile(JobFolder):
    """A job file whose streams are read as well.

    Making it raises SettingsError if the file cannot be read or has a mistake, or if this process does not keep to the
    job's processor level. A stream whose package is not installed is an error only once its recipe is asked for. Errors
    of importing a source's module pass through.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        if self.settings.processor:
            refuse_unfit(self.settings.processor, f"{self.path}, [job], processor")
        # Before the recipes are read: a user's own source is imported to check it. A job without one imports nothing.
        if any(":" in name for name in _names_of_code(self.job)):
            self.make_importable()
        self.recipes = Recipes(self.job.streams, self._recipe)
        if self.accepting and not self.settings.accept_graphs:
            raise SettingsError(
                expected="accept_graphs = true in [job], as graphs that trainers send can read and write files here",
                got="false",
                where=f"{self.path}, [streams.{self.accepting[0]}]",
                remedy="Write it if everyone with a trainer's key may do that; or give the stream your own pipeline.",
            )

    @property
    def payload_encoding(self) -> PayloadEncoding:
        """Return how batches are encoded when they go by TCP: how float32 is sent, and the compression."""
        return PayloadEncoding(float32=self.settings.float32, compression=self.settings.compression)

    @cached_property
    def cache(self) -> CacheSettings:
        """Return folder and size limit of the cache of remote files, which the whole job shares.

        Without a setting it is the folder `remote` in the state folder of all jobs.
        """
        folder = self.settings.remote_cache or f"{self.settings.state}/remote"
        return CacheSettings(folder=self.base / folder, bytes=self.settings.remote_cache_bytes)

    @property
    def feature_cache(self) -> CacheSettings:
        """Return folder and size limit of the cache of built samples.

        Without a setting it is the folder `features` in the state folder of all jobs.
        """
        folder = self.settings.feature_cache or f"{self.settings.state}/features"
        return CacheSettings(folder=self.base / folder, bytes=self.settings.feature_cache_bytes)

    @property
    def _places(self) -> FilePlaces:
        fetched = tuple(sorted(self.joined.named.items())) if self.joined is not None else ()
        return FilePlaces(self.base, self.cache, fetched)

    def make_importable(self) -> None:
        """Put the job file's folder on sys.path, before the current folder, so that it can name modules beside it.

        On a host that joined, it is the data folder that stands for the job file's; a folder of fetched modules, if
        there is any, comes before both. A folder that is there already is not moved.
        """
        fetched = [self.joined.code] if self.joined is not None and self.joined.code else []
        # Each is put in front of those before it, so the last one is searched first.
        for folder in (str(self.base), *fetched):
            if folder not in sys.path:
                sys.path.insert(0, folder)

    def modules(self) -> set[str]:
        """Return the modules that the streams name as sources, transforms or pipelines.

        Other words of the same form may be among them; without any the set is empty.
        """
        return {word.partition(":")[0] for word in _words_in(self.job.streams) if _NAMED_OBJECT.fullmatch(word)}

    def index_folder(self, name: str) -> Path:
        """Return the folder of a stream's index.

        An index of a graph that a trainer sends is always in our own state folder, never among what a host fetched.
        """
        return (self.state if name in self.accepting else self.index_root) / f"index-{name}"

    def index_folders(self, recipe: StreamRecipe) -> list[Path]:
        """Return the folder of the index of each of a stream's sources, in their order.

        A single source's is the folder of the stream's index itself; those of several are source-1, source-2 … in it.
        """
        folder = self.index_folder(recipe.name)
        if len(recipe.sources) == 1:
            return [folder]
        return [folder / f"source-{place}" for place in range(1, len(recipe.sources) + 1)]

    def refuse_unknown(self, name: str) -> None:
        """Raise SettingsError for a stream that the job does not have."""
        if name not in self.recipes:
            raise SettingsError(
                expected="one of the streams " + ", ".join(self.recipes),
                got=name or "none",
                where=f"{self.path}, --stream",
                remedy="Name one of these.",
            )

    @property
    def accepting(self) -> tuple[str, ...]:
        """Return the streams whose graphs trainers send, without those whose packages are not installed."""
        return tuple(name for name, recipe in self.recipes.readable() if recipe.sent)

    def graph_path(self, name: str) -> Path:
        """Return the path of the graph that a trainer sends for a stream; nothing need be there yet.

        The stream must be one of `accepting`, which is not checked.
        """
        return self.recipes[name].sources[0].of_job.graph

    def is_awaited(self, name: str) -> bool:
        """Return whether a trainer still has to send the stream's graph; False for a stream that needs none."""
        return name in self.accepting and not self.graph_path(name).exists()

    def is_there(self, name: str) -> bool:
        """Return whether the stream can be opened now: not if its graph is awaited or not indexed yet.

        Any other name always counts as there, even without an index. MissingLibraryError of `is_indexed` passes
        through.
        """
        return name not in self.accepting or (self.graph_path(name).exists() and self.is_indexed(name))

    def versions_of_sent(self) -> dict[str, str]:
        """Return the versions that shape the batches of streams whose graphs trainers send, as a string by stream.

        The string is the repr of a sorted list of names with versions. Return an empty table without such streams.
        Errors of making a source pass through.
        """
        specs = {name: self.recipes[name].sources[0] for name in self.accepting}
        return {name: repr(sorted(spec.make().versions.items())) for name, spec in specs.items()}

    def is_indexed(self, name: str) -> bool:
        """Return whether each of a stream's sources has an index, of whatever data and settings.

        Raise a MissingLibraryError if the stream needs a package that is not installed, or a KeyError if the job has no
        such stream.
        """
        return all((folder / "meta.json").exists() for folder in self.index_folders(self.recipes[name]))

    def _recipe(self, name: str) -> StreamRecipe:
        """Return a stream's recipe; raise SettingsError for a mistake, MissingLibraryError if it needs a package.

        A filter, chunks and a source's table are read and checked here; nothing is opened. Errors of importing a
        source's module, and of its parsers of settings, pass through.
        """
        table, where = self.job.streams[name], f"{self.path}, [streams.{name}]"
        # A mixture's sources have tables of their own, so the stream itself has no settings of a source.
        kind = None if table.get("sources") else source_class(str(table.get("source", "no source")), where)
        whole = kind if kind is not None and issubclass(kind, WholeSource) else None
        if whole is not None:
            _refuse_planning(table, whole.Settings, where)
            table = {**table, **_NOT_PLANNED}
        classes = (StreamSettings, ChunkSettings, PlanSettings, *(() if kind is None else (kind.Settings,)))
        flat, tables, named = _divided(table, _names_in(*classes))
        settings, chunks, plan, *of_source = read_tables(classes, flat, where, also_known=named)
        _refuse_both_forms(settings, where)
        with placing(where):
            refuse_wrong_size(plan, settings.length)
        of_job = self._of_job(name, cuts=chunks.chunk is not None, strings=settings.strings)
        sources = self._sources(of_job, settings, of_source, where)
        if settings.evaluation:
            _refuse_changing(plan, where)
        return StreamRecipe(
            name=name,
            where=where,
            settings=settings,
            plan=plan,
            sources=sources,
            tables=tables,
            places=self._places,
            filter=RowFilter.read(settings.filter, where) if settings.filter else None,
            whole=whole is not None,
            chunks=ChunkRule.read(chunks, settings, plan, where),
            sent=whole is not None and whole.sent,
        )

    def _sources(
        self, of_job: OfJob, settings: StreamSettings, of_source: Sequence[Any], where: str
    ) -> tuple[SourceSpec, ...]:
        """Return the stream's one source, whose settings were read already, or each of several.

        Raise MissingLibraryError if one of several needs a package that is not installed, and SettingsError if one
        makes whole batches, is unknown, or has a mistake in its settings. Other errors of `source_class` pass.
        """
        if not settings.sources:
            return (self._spec(settings.source, of_source[0], where, of_job),)
        specs = []
        for place, table in enumerate(settings.sources, 1):
            name, table_name = str(table.get("source", "no source")), f"{where}, sources, number {place}"
            kind = source_class(name, table_name)
            if issubclass(kind, WholeSource):
                raise SettingsError(
                    expected="sources of samples, as they are mixed sample by sample",
                    got=f'"{name}", which makes whole batches',
                    where=table_name,
                    remedy="Make it a stream of its own.",
                )
            _, own = read_tables((SourceName, kind.Settings), table, table_name)
            specs.append(self._spec(name, own, f"{table_name} ({name})", of_job))
        return tuple(specs)

    def _spec(self, name: str, settings: Any, where: str, of_job: OfJob) -> SourceSpec:
        return SourceSpec(
            name=name,
            dotted=dotted_name(name, where),
            settings=settings,
            base=self.base,
            where=where,
            cache=self.cache,
            of_job=of_job,
        )

    def _of_job(self, stream: str, *, cuts: bool, strings: Sequence[tuple[str, str]]) -> OfJob:
        """Return what the sources of a stream may need to know.

        `cuts` is set if its recordings are cut; `strings` are names in batches and the source's keys.
        """
        return OfJob(
            stream=stream,
            seed=self.settings.seed,
            path=self.path.resolve(),
            state=self.state,
            largest_sample=self.settings.largest_sample,
            cuts=cuts,
            strings=tuple(sorted({key for _, key in strings})),
        )


def read_job(path: str | Path) -> JobFile:
    """Return a job file, and let it name modules that lie beside it.

    Raise SettingsError if the file cannot be read, for a mistake in it, or if this process does not keep to the job's
    processor level; errors of importing a source's module pass through.
    """
    job = JobFile(path)
    job.make_importable()
    return job


#: An object's name as job files write it: package.module:name.
_NAMED_OBJECT = re.compile(r"\w+(\.\w+)*:\w+")


def _words_in(value: object) -> Iterator[str]:
    """Yield all strings among the values of nested tables and lists; keys are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _words_in(inner)


def _names_of_code(job: Job) -> list[str]:
    """Return all names that the streams give as sources and pipelines, right or wrong; "None" for each left out."""
    # Nothing is checked yet, so there may be a value of any type in any place.
    mixtures = (table.get("sources") for table in job.streams.values())
    sources = (source for mixture in mixtures if isinstance(mixture, list) for source in mixture)
    tables = (*job.streams.values(), *(source for source in sources if isinstance(source, dict)))
    return [str(table.get(key)) for table in tables for key in ("source", "pipeline")]


#: Stand-ins for required settings that a stream of whole batches does not have; they are never used.
_NOT_PLANNED = {"length": "-", "budget": "1 steps"}


def _names_in(*classes: type[Any]) -> set[str]:
    """Return the names of all settings in these classes."""
    return {field.name for settings in classes for field in dataclasses.fields(settings)}


def _refuse_planning(table: Mapping[str, Any], own: type[Any], where: str) -> None:
    """Raise a SettingsError for settings about samples and their batches if the source makes whole batches.

    Settings of that name that the source has itself, as `own` lists them, are allowed.
    """
    planning = {"length", "transforms", "filter", "padding", "strings"} | _names_in(ChunkSettings, PlanSettings)
    for key in sorted(table.keys() & planning - _names_in(own)):
        raise SettingsError(
            expected="no setting for batches or transforms, because the pipeline itself makes whole batches",
            got=f'"{key}"',
            where=where,
            remedy="Leave it out, or give it to the stream that the pipeline reads (base).",
        )


def _divided(table: Mapping[str, Any], own: set[str]) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Return a stream's own settings, the tables of its transforms, and the names that such tables may have.

    Every table that is not an own setting counts as a transform's, even under an unknown name, and so does any value
    under the name of a transform.
    """
    # A key of our own settings is never a transform's table, even if a transform has the same name.
    named = tuple(sorted(_named_transforms(table) - own))
    tables = {key: table[key] for key in table if key not in own and (isinstance(table[key], dict) or key in named)}
    return {key: value for key, value in table.items() if key not in tables}, tables, named


def _refuse_both_forms(settings: StreamSettings, where: str) -> None:
    """Raise a SettingsError if a stream names one source as well as several."""
    if settings.source and settings.sources:
        raise SettingsError(
            expected="source or sources",
            got="both",
            where=where,
            remedy="Make the one another table of [[streams.<name>.sources]].",
        )


def _named_transforms(table: Mapping[str, Any]) -> set[str]:
    """Return the names that a stream's tables of transforms may have; none if the list of transforms is malformed."""
    names = table.get("transforms", ())
    return table_names(map(str, names)) if isinstance(names, list) else set()


def _refuse_changing(plan: PlanSettings, where: str) -> None:
    """Raise a SettingsError if an evaluation stream, which repeats one epoch, has settings of later epochs.

    These are `epoch_parts` above 1, and a `max_length` for each of several epochs.
    """
    if plan.epoch_parts > 1:
        raise SettingsError(
            expected="an evaluation stream without parts, as it gives the same epoch each time",
            got=f"epoch_parts = {plan.epoch_parts}",
            where=where,
            remedy="Leave epoch_parts out; to evaluate on less, name less data.",
        )
    if len(plan.max_lengths) > 1:
        raise SettingsError(
            expected="one max_length for an evaluation stream, as it gives the same epoch each time",
            got=f"one for each of {len(plan.max_lengths)} epochs",
            where=where,
            remedy='Write max_length = "16 s", for example, or leave it out.',
        )
