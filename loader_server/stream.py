"""A stream of a job, opened: its sources, its transforms and its plan, from the job file and the index.

Everybody who needs a stream (coordinator, workers, commands) opens it here and gets the same digest, so that a batch
number means the same to all. Rules: nothing is written here but the plan's cache; no sockets.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.machine.processor import processor_features
from loader_server.plan_keeper import PlanKeeper
from loader_server.planning import LEFT_OUT, OrdinalPlan, Plan, PlanSettings
from loader_server.sources.chunks.settings import ChunkRule, ChunkSettings
from loader_server.sources.chunks.source import ChunkedSource
from loader_server.sources.files.facts import CacheSettings, FilePlaces
from loader_server.sources.index.folder import open_index
from loader_server.sources.joined import OpenedSource, SourceSet
from loader_server.sources.row_filter import RowFilter
from loader_server.sources.side_source import SourceName
from loader_server.sources.source import OfJob
from loader_server.sources.table import SourceSpec, dotted_name, source_class
from loader_server.sources.whole_source import WholeSource
from loader_server.transforms.chain import Chain
from loader_server.transforms.find import table_names
from loader_server.transforms.own_code import own_code
from shared.config import Job, StreamSettings, parse_job, read_tables
from shared.errors import SettingsError
from shared.hashing import fingerprint
from shared.wire.layout import RESET, BucketShape, Field, fields_of_batch
from shared.wire.payload import PayloadEncoding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.source import Source
    from shared.config import JobSettings

__all__ = ["JobFile", "Stream", "StreamRecipe", "open_sources"]

#: More does not cross.
_LONGEST_IDENTITY = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecipe:
    """What the job file says of a stream, read and checked; nothing is opened yet."""

    name: str
    where: str
    settings: StreamSettings
    plan: PlanSettings
    sources: tuple[SourceSpec, ...]
    tables: Mapping[str, Any]
    #: Where the files are that its transforms name.
    places: FilePlaces
    #: Which samples take part; None: all.
    filter: RowFilter | None = None
    #: Whether its source makes whole batches, perhaps of the samples of another stream.
    whole: bool = False
    #: How its recordings are cut; None: each is a sample.
    chunks: ChunkRule | None = None
    #: Whether a trainer sends what makes them.
    sent: bool = False

    def chain(self, raw: tuple[Field, ...], before: str = "") -> Chain:
        """Its transforms, over raw samples of these fields; or only those before one of them."""
        names, tables = self.settings.transforms, self.tables
        if before:
            names = names[: names.index(before)]
            tables = {name: table for name, table in tables.items() if name in table_names(names)}
        chain = Chain.make(names, tables, self.where, raw, self.places)
        if self.chunks is not None and chain.measured:
            raise self.chunks.refuse_measured([step.name for step in chain.steps if step.outputs is None])
        return chain


class JobFile:
    """A job file and the folder that its relative paths start from."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            toml = self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                expected="a job file", got=str(error), where=str(path), remedy="Name an existing job.toml."
            ) from None
        self.job: Job = parse_job(toml, str(path))
        self.base = self.path.resolve().parent
        if any(":" in name for name in _names_of_code(self.job)):
            self.make_importable()
        self.recipes = {name: self._recipe(name) for name in self.job.streams}
        if self.accepting and not self.settings.accept_graphs:
            raise SettingsError(
                expected="accept_graphs = true in [job], as graphs that trainers send can read and write files here",
                got="false",
                where=f"{self.path}, [streams.{self.accepting[0]}]",
                remedy="Write it if all who hold a trainer's key may do that; or make the stream a pipeline of yours.",
            )

    @property
    def settings(self) -> JobSettings:
        """The table [job]."""
        return self.job.settings

    @property
    def payload_encoding(self) -> PayloadEncoding:
        """How batches go by TCP."""
        return PayloadEncoding(float32=self.settings.float32, compression=self.settings.compression)

    @property
    def state(self) -> Path:
        """Where index, journal and quarantine log live."""
        return self.base / self.settings.state / self.settings.name

    @property
    def targets_folder(self) -> Path:
        """Where its processes say where their metrics are."""
        return self.state / "targets"

    @property
    def keys(self) -> Path | None:
        """The folder with keys, if the job has one."""
        return self.base / self.settings.keys if self.settings.keys else None

    @cached_property
    def cache(self) -> CacheSettings:
        """Where remote files are kept; all of the job's are counted together."""
        folder = self.settings.remote_cache or f"{self.settings.state}/remote"
        return CacheSettings(folder=self.base / folder, bytes=self.settings.remote_cache_bytes)

    @property
    def feature_cache(self) -> CacheSettings:
        """Where built samples are kept."""
        folder = self.settings.feature_cache or f"{self.settings.state}/features"
        return CacheSettings(folder=self.base / folder, bytes=self.settings.feature_cache_bytes)

    def make_importable(self) -> None:
        """Let the job file name modules that lie beside it."""
        if str(self.base) not in sys.path:
            sys.path.insert(1, str(self.base))

    def index_folder(self, name: str) -> Path:
        """Where a stream's index lives."""
        return self.state / f"index-{name}"

    def sources(self, recipe: StreamRecipe) -> list[tuple[SourceSpec, Path]]:
        """The sources of a stream, and where the index of each lives."""
        folder = self.index_folder(recipe.name)
        if len(recipe.sources) == 1:
            return [(recipe.sources[0], folder)]
        return [(spec, folder / f"source-{place}") for place, spec in enumerate(recipe.sources, 1)]

    @property
    def accepting(self) -> tuple[str, ...]:
        """The streams whose data sets trainers send."""
        return tuple(name for name, recipe in self.recipes.items() if recipe.sent)

    def graph_path(self, name: str) -> Path:
        """Where the graph lies that a trainer sent for a stream."""
        return self.recipes[name].sources[0].of_job.graph

    def is_awaited(self, name: str) -> bool:
        """Whether a trainer still has to send what a stream is made of."""
        return self.recipes[name].sent and not self.graph_path(name).exists()

    def is_there(self, name: str) -> bool:
        """Whether a stream can be opened now, or else is an error."""
        return not self.recipes[name].sent or (self.graph_path(name).exists() and self.is_indexed(name))

    def versions_of_sent(self) -> dict[str, str]:
        """What decides the bytes of batches that graphs make, apart from the graph, by stream."""
        made = {name: self.recipes[name].sources[0].make() for name in self.accepting}
        return {name: repr(sorted(source.versions.items())) for name, source in made.items()}

    def is_indexed(self, name: str) -> bool:
        """Whether each of a stream's sources has an index."""
        return all((folder / "meta.json").exists() for _, folder in self.sources(self.recipes[name]))

    def open(self, name: str, progress: Callable[[int, int], None] | None = None) -> Stream:
        """Open a stream; its index has to be there."""
        return Stream(self, self.recipes[name], progress)

    def _recipe(self, name: str) -> StreamRecipe:
        table, where = self.job.streams[name], f"{self.path}, [streams.{name}]"
        kinds = () if table.get("sources") else (source_class(str(table.get("source", "no source")), where),)
        if kinds and issubclass(kinds[0], WholeSource):
            _refuse_planning(table, kinds[0].Settings, where)
            table = {**table, **_NOT_PLANNED}
        single = tuple(kind.Settings for kind in kinds)
        classes = (StreamSettings, ChunkSettings, PlanSettings, *single)
        own = {field.name for one in classes for field in dataclasses.fields(one)}
        named = tuple(sorted(_named_transforms(table) - own))
        tables = {key: table[key] for key in table if key not in own and (isinstance(table[key], dict) or key in named)}
        flat = {key: value for key, value in table.items() if key not in tables}
        settings, chunks, plan, *asked = read_tables(classes, flat, where, also_known=named)
        _refuse_both_forms(settings, where)
        sources = self._sources(name, settings, asked, where)
        if settings.evaluation and plan.epoch_parts > 1:
            raise SettingsError(
                expected="an evaluation stream without parts, as it gives the same epoch each time",
                got=f"epoch_parts = {plan.epoch_parts}",
                where=where,
                remedy="Leave epoch_parts out; to evaluate on less, name less data.",
            )
        rule = RowFilter.read(settings.filter, where) if settings.filter else None
        return StreamRecipe(
            name=name,
            where=where,
            settings=settings,
            plan=plan,
            sources=sources,
            tables=tables,
            places=FilePlaces(self.base, self.cache),
            filter=rule,
            whole=any(issubclass(kind, WholeSource) for kind in kinds),
            chunks=ChunkRule.read(chunks, settings, plan, where),
            sent=any(issubclass(kind, WholeSource) and kind.sent for kind in kinds),
        )

    def _sources(
        self, stream: str, settings: StreamSettings, asked: Sequence[Any], where: str
    ) -> tuple[SourceSpec, ...]:
        """The one source, whose settings were asked for, or each of several."""
        if not settings.sources:
            return (self._spec(settings.source, asked[0], where, stream),)
        found = []
        for place, table in enumerate(settings.sources, 1):
            name, here = str(table.get("source", "no source")), f"{where}, sources, number {place}"
            kind = source_class(name, here)
            if issubclass(kind, WholeSource):
                raise SettingsError(
                    expected="sources of samples, as they are mixed sample by sample",
                    got=f'"{name}", which makes whole batches',
                    where=here,
                    remedy="Make it a stream of its own.",
                )
            _, own = read_tables((SourceName, kind.Settings), table, here)
            found.append(self._spec(name, own, f"{here} ({name})", stream))
        return tuple(found)

    def _spec(self, name: str, settings: Any, where: str, stream: str) -> SourceSpec:  # noqa: ANN401 - each source has its own
        dotted = dotted_name(name, where)
        return SourceSpec(
            name=name,
            dotted=dotted,
            settings=settings,
            base=self.base,
            where=where,
            cache=self.cache,
            of_job=OfJob(stream=stream, seed=self.settings.seed, path=self.path.resolve(), state=self.state),
        )


def _names_of_code(job: Job) -> list[str]:
    """All that the streams call their sources and pipelines, right or wrong."""
    lists = (table.get("sources") for table in job.streams.values())
    several = (one for found in lists if isinstance(found, list) for one in found if isinstance(one, dict))
    tables = (*job.streams.values(), *several)
    return [str(table.get(key)) for table in tables for key in ("source", "pipeline")]


#: Stands for what a stream need not say whose batches are made whole; nobody looks at it.
_NOT_PLANNED = {"length": "-", "budget": "1 steps"}


def _refuse_planning(table: Mapping[str, Any], own: type[Any], where: str) -> None:
    """Refuse settings that make batches of samples where the source makes whole ones."""
    planning = {"length", "transforms", "filter"}
    planning |= {field.name for kind in (ChunkSettings, PlanSettings) for field in dataclasses.fields(kind)}
    for key in sorted(table.keys() & planning - {field.name for field in dataclasses.fields(own)}):
        raise SettingsError(
            expected="no setting of batches or transforms, as the pipeline itself makes whole batches",
            got=f'"{key}"',
            where=where,
            remedy="Leave it out, or give it to the stream that the pipeline reads (base).",
        )


def _refuse_both_forms(settings: StreamSettings, where: str) -> None:
    if settings.source and settings.sources:
        raise SettingsError(
            expected="source or sources",
            got="both",
            where=where,
            remedy="Make the one another table of [[streams.<name>.sources]].",
        )


def _named_transforms(table: Mapping[str, Any]) -> set[str]:
    """What the sub-tables of a stream's transforms may be called; nothing, where its list of them is none."""
    names = table.get("transforms", ())
    return table_names(map(str, names)) if isinstance(names, list) else set()


class _Lengths:
    """The planner's view of the samples: lengths after the transforms."""

    def __init__(self, joined: SourceSet, chain: Chain, recipe: StreamRecipe, sources: tuple[int, ...]) -> None:
        self._joined = joined
        self._chain = chain
        self._bucketed = recipe.settings.length
        self._filter = rule = recipe.filter
        if rule is not None:
            joined.refuse_unknown(rule, chain)
        self.keys = tuple(field.key for field in chain.fields if field.padded)
        #: Sources that are mixed travel in segments of their own.
        self.segments = np.union1d(joined.segments, np.array(sources, np.int64))
        # What shapes lengths is part of every batch's identity; what only changes values is not, so that a mended
        # augmentation can go on from a checkpoint.
        filtered = () if rule is None else (f"filter {rule.said}",)
        self.fingerprint = fingerprint(joined.fingerprint, repr(chain.fields), *chain.shaping, *filtered)

    def lengths(self, key: str, start: int, stop: int) -> NDArray[np.int64]:
        lengths = self._joined.lengths(self._chain, key, start, stop)
        if self._filter is None or key != self._bucketed:
            return lengths
        return np.where(self._joined.passing(self._filter, self._chain, start, stop), lengths, LEFT_OUT)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        return self._joined.begins(start, stop)


class Stream:
    """An open stream: `source` to read, `chain` to transform, `plan` to know which batch is which."""

    def __init__(self, job: JobFile, recipe: StreamRecipe, progress: Callable[[int, int], None] | None) -> None:
        self.name = recipe.name
        self.settings = recipe.settings
        self.seed = job.settings.seed
        self.float32 = job.settings.float32
        self._joined = joined = open_sources(job, recipe)
        self.samples = joined.samples
        self.bad_rows = joined.bad
        self.source: Source = joined.source
        self.chain = joined.bound(recipe.chain(self.source.fields))
        whole = self.source if isinstance(self.source, WholeSource) else None
        #: How many shards its batches come from, if they are made whole; else 0.
        self.producers = whole.producers if whole is not None else 0
        #: What a sample of the data set below a user's pipeline holds.
        self.base_fields = whole.base_fields if whole is not None else ()
        self.plan = self._planned(job, recipe, progress) if whole is None else _ordinals(whole, joined.fingerprint)
        self.packed = recipe.plan.packing is not None
        #: Whether rows carry state from batch to batch.
        self.carries = recipe.plan.carry
        #: What a batch carries.
        self.fields = fields_of_batch(self.chain.fields) + (_marks(recipe, self.chain.fields) if self.packed else ())
        self.fields += (RESET,) if self.carries else ()
        #: The shapes that batches come in.
        self.shapes = tuple(self.shape(bucket) for bucket in self.plan.buckets)
        #: Names the plan and the element spec: batches of equal digest and number are the same batch.
        self.digest = fingerprint(self.plan.digest, repr(self.fields), repr(self.shapes))

    def _planned(self, job: JobFile, recipe: StreamRecipe, progress: Callable[[int, int], None] | None) -> Plan:
        joined, fields = self._joined, self.chain.fields
        joined.refuse_lacking(recipe.settings.length, self.chain)
        sources = _parts(joined, recipe) if recipe.plan.weights else (0,)
        refuse_wrong_keys(recipe, fields)
        self.table = _Lengths(joined, self.chain, recipe, sources)
        return Plan.make(
            self.table,
            recipe.plan,
            key=recipe.settings.length,
            seed=self.seed,
            progress=progress,
            per_second={field.key: field.per_second for field in fields if field.padded},
            keeper=PlanKeeper(job.index_folder(recipe.name)),
            sources=sources,
        )

    def shape(self, planned: BucketShape) -> BucketShape:
        """A planned shape with the lengths of all padded fields: marks of packed rows are as long as the rows."""
        if not self.packed:
            return planned
        length = planned.lengths[self.settings.length]
        marks = dict.fromkeys((field.key for field in self.fields if field.padded), length)
        return BucketShape(rows=planned.rows, lengths=marks)

    @cached_property
    def builder(self) -> str:
        """The fingerprint of all that shapes the bytes; equal on all workers of a job."""
        return fingerprint(self.digest, self.chain.fingerprint, self.float32, processor_features(), *self._decoding)

    @property
    def steady(self) -> str:
        """The fingerprint of all that shapes samples before a transform draws, their files' content aside."""
        of_sources = (self._joined.fingerprint, repr(self.chain.raw), *self._decoding)
        return fingerprint(self.chain.steady_fingerprint, processor_features(), *of_sources)

    @property
    def _decoding(self) -> tuple[str, ...]:
        return (repr(sorted(self.source.versions.items())), *_foreign_code(self.source.modules))

    @property
    def opened(self) -> str:
        """The fingerprint of what is open here, this very index included: one that is made anew has another."""
        return fingerprint(self._joined.made, self.builder)

    def raw_lengths(self, sample: int) -> dict[str, int]:
        """What the index says of a sample before the transforms."""
        return self._joined.raw_lengths(sample)

    def identity(self, sample: int) -> str:
        """What a conviction names: what the source knows the sample by."""
        own = self.source.identity(sample)
        return own if len(own) <= _LONGEST_IDENTITY else fingerprint(own.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Give back what is open."""
        self.source.close()


def _ordinals(source: WholeSource, index: str) -> OrdinalPlan:
    """The number of each of its batches is all that there is to plan."""
    return OrdinalPlan(producers=source.producers, elements=source.elements, largest=source.largest, made_from=(index,))


def _foreign_code(modules: Sequence[str]) -> tuple[str, ...]:
    """What a source is made of that is none of ours; ours goes by the version of its bytes, which the chain knows."""
    foreign = [name for name in modules if name.partition(".")[0] != __name__.partition(".")[0]]
    code = own_code(foreign)
    return (code.sources, repr(sorted(code.packages.items()))) if foreign else ()


def _marks(recipe: StreamRecipe, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """What tells the samples of a packed row apart: ids 1, 2, … (0 is padding), and positions within the sample."""
    key = recipe.settings.length
    if [field.key for field in fields] != [key]:
        raise SettingsError(
            expected=f'"{key}" alone, as rows are packed',
            got=", ".join(field.key for field in fields),
            where=f"{recipe.where}, packing",
            remedy="Leave out the other outputs, or leave out packing.",
        )
    return tuple(Field(key=f"{key}_{mark}", dtype="int32", shape=(None,)) for mark in ("segment", "position"))


def open_sources(job: JobFile, recipe: StreamRecipe) -> SourceSet:
    """Open the sources of a stream; their indexes have to be there."""
    cut = recipe.chunks
    return SourceSet([_opened(spec, folder, cut) for spec, folder in job.sources(recipe)], cut.said if cut else "")


def _opened(spec: SourceSpec, folder: Path, cut: ChunkRule | None) -> OpenedSource:
    index = open_index(folder)
    index.refuse_other_source(spec.name, spec.settings)
    source = spec.make()
    source.open(index.indexed)
    if cut is not None:
        source = ChunkedSource(source, cut, spec.where)
    return OpenedSource(where=spec.where, source=source, index=index)


def _parts(joined: SourceSet, recipe: StreamRecipe) -> tuple[int, ...]:
    """The sample numbers at which the parts of a mixture start."""
    if len(joined.parts) != len(recipe.plan.weights):
        raise SettingsError(
            expected=f"one weight for each of the {len(joined.parts)} sources or paths that have samples",
            got=f"{len(recipe.plan.weights)} weights",
            where=f"{recipe.where}, weights",
            remedy="Write as many weights as paths, or as sources.",
        )
    return joined.parts


def refuse_wrong_keys(recipe: StreamRecipe, fields: tuple[Field, ...]) -> None:
    """Refuse outputs that have the names of others, and a `length` of which there is none."""
    made = [field.key for field in (*fields_of_batch(fields), RESET)]
    twice = sorted({key for key in made if made.count(key) > 1})
    if twice:
        raise SettingsError(
            expected="outputs that are not called weight, tag, reset or <key>_length, which batches have",
            got=", ".join(twice),
            where=f"{recipe.where}, transforms",
            remedy="Give the output another name.",
        )
    padded = [field.key for field in fields if field.padded]
    if recipe.settings.length not in padded:
        raise SettingsError(
            expected="length = " + (" or ".join(f'"{key}"' for key in padded) or "a key with a padded axis"),
            got=f'"{recipe.settings.length}"',
            where=f"{recipe.where}, length",
            remedy="It names the key whose length decides the bucket; the transforms say which keys there are.",
        )
