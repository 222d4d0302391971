"""A stream of a job, opened: its sources, its transforms and its plan, from the job file and the index.

Coordinator, workers and commands all open a stream here and get the same digest, so that a batch number means the same
to all. Rules: nothing is written here but the plan's cache; no sockets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.batches.batch_keys import marks_of_packed, refuse_wrong_keys
from loader_server.batches.batch_strings import BatchStrings
from loader_server.index.folder import open_index
from loader_server.index.joined import OpenedSource, SourceSet
from loader_server.index.string_columns import column_of_strings
from loader_server.installed import processor_features, version_of
from loader_server.job_file import JobFile
from loader_server.own_code import OwnCode, own_code
from loader_server.plan_keeper import PlanKeeper
from loader_server.planning import LEFT_OUT, PLANNER_VERSION, OrdinalPlan, Plan
from loader_server.planning.settings import NO_KEY
from loader_server.processor.native_code import native_names
from loader_server.sources.blame import undecoded
from loader_server.sources.chunks.source import ChunkedSource
from loader_server.sources.pictures import DecodesPictures
from loader_server.sources.pipeline.base_samples import BaseSamples
from loader_server.sources.source import decoded
from loader_server.sources.whole_source import WholeSource
from loader_server.transforms.chain import BYTES_VERSION
from loader_server.transforms.padding import padding_of, words_of, zeros_for_tokens
from shared.errors import SettingsError, StokerError
from shared.hashing import fingerprint
from shared.settings.tables import placing
from shared.wire.batch_layout import RESET, BucketShape, fields_of_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.job_file import StreamRecipe
    from loader_server.sources.chunks.cutting import ChunkRule
    from loader_server.sources.files.presence import MissingFiles
    from loader_server.sources.registry import SourceSpec
    from loader_server.sources.source import OfJob, Source
    from loader_server.transforms.chain import Chain

__all__ = ["Stream", "open_base", "open_source", "open_sources", "sources_of"]

#: Longer identities are hashed, because a message has no room for them.
_LONGEST_IDENTITY = 4000
#: Libraries whose native code a processor level may not reach, by the names that sources' `versions` have.
_UNPROVED = ("tensorflow", "torch")


class _Lengths:
    """The planner's view of the samples: lengths after the transforms.

    Making it raises what `SourceSet.refuse_unknown` raises, if there is a filter.
    """

    def __init__(self, joined: SourceSet, chain: Chain, recipe: StreamRecipe, sources: tuple[int, ...]) -> None:
        self._joined = joined
        self._chain = chain
        self._bucketed = recipe.settings.length
        self._filter = rule = recipe.filter
        if rule is not None:
            joined.refuse_unknown(rule, chain)
        self.keys = tuple(key for field in chain.fields for key in field.length_keys)
        #: Segments, split also where a source of a mixture begins.
        self.segments = np.union1d(joined.segments, np.array(sources, np.int64))
        # Settings that shape lengths are part of every batch's identity. Those that change only values are not, so that
        # a run with a mended augmentation can go on from its checkpoint.
        filtered = () if rule is None else (f"filter {rule.expression}",)
        self.fingerprint = fingerprint(joined.fingerprint, repr(chain.fields), *chain.shaping, *filtered)

    def lengths(self, key: str, start: int, stop: int) -> NDArray[np.int64]:
        lengths = (
            np.ones(stop - start, np.int64) if key == NO_KEY else self._joined.lengths(self._chain, key, start, stop)
        )
        if self._filter is None or key != self._bucketed:
            return lengths
        return np.where(self._joined.passing(self._filter, self._chain, start, stop), lengths, LEFT_OUT)

    def begins(self, start: int, stop: int) -> NDArray[np.bool_]:
        return self._joined.begins(start, stop)


class Stream:
    """An open stream: `source` to read, `chain` to transform, `plan` to know which batch is which.

    Making it raises a DataError if there is no index that fits or no sample is left to plan, a SettingsError if
    settings do not fit the data or a package is not installed, or a KeyError if the job has no such stream. Other
    errors of sources and transforms pass through, such as an OSError. Meanwhile `progress` is called with done and
    total.
    """

    def __init__(self, job: JobFile, name: str, progress: Callable[[int, int], None] | None = None) -> None:
        recipe = job.recipes[name]
        self.name = recipe.name
        self.settings = recipe.settings
        self.seed = job.settings.seed
        self.float32 = job.settings.float32
        #: Whether samples with values that are not finite are masked.
        self.masks_not_finite = job.settings.not_finite == "mask"
        self._level = job.settings.processor
        self._joined = joined = open_sources(job, recipe)
        self.samples = joined.samples
        self.bad_rows = joined.bad
        self.source: Source = joined.source
        self.chain = joined.bound(recipe.chain(self.source.fields))
        whole = self.source if isinstance(self.source, WholeSource) else None
        #: The number of shards that whole batches come from; 0 if batches are made of samples.
        self.producers = whole.producers if whole is not None else 0
        #: The fields of a sample of the data set that a user's pipeline reads.
        self.base_fields = whole.base_fields if whole is not None else ()
        self.plan = self._make_plan(job, recipe, progress) if whole is None else _ordinals(whole, joined.fingerprint)
        self.packed = recipe.plan.packing is not None
        #: Whether rows carry state from batch to batch.
        self.carries = recipe.plan.carry
        #: The strings that come with batches.
        self.strings = BatchStrings.of(recipe, joined, job.index_folder(recipe.name))
        #: The fields of a batch.
        self.fields = fields_of_batch(self.chain.fields) + (
            marks_of_packed(recipe, self.chain.fields) if self.packed else ()
        )
        self.fields += ((RESET,) if self.carries else ()) + self.strings.fields
        #: The shapes of batches.
        self.shapes = tuple(self.shape(bucket) for bucket in self.plan.buckets)
        #: What fills the cells of each key that hold no sample; a key that is not here has 0 there.
        self.padding = padding_of(
            recipe.settings.padding, self.chain.fields, self.chain.steps, self.float32, recipe.where
        )
        #: Keys with the transform and id of a padding token, which batches have 0 instead of without anybody's choice.
        self.padded_with_zeros = zeros_for_tokens(self.chain.steps, recipe.settings.padding)
        #: A hash of the plan and the element spec: batches of equal digest and number are the same batch.
        words = (*words_of(self.padding), *self.strings.words)
        self.digest = fingerprint(self.plan.digest, repr(self.fields), repr(self.shapes), *words)

    @property
    def sources(self) -> tuple[OpenedSource, ...]:
        """Return the open sources, in the order of the job file."""
        return self._joined.opened

    @property
    def part_names(self) -> tuple[str, ...]:
        """Return a name for each part that `weights` may weigh: the file that its first sample is in.

        Parts are the sources of the stream, or the files of a single source. What the source raises passes through.
        """
        return self._joined.part_names

    def _make_plan(self, job: JobFile, recipe: StreamRecipe, progress: Callable[[int, int], None] | None) -> Plan:
        joined, fields = self._joined, self.chain.fields
        joined.refuse_lacking(recipe.settings.length, self.chain)
        sources = _parts(joined, recipe) if recipe.plan.weights else (0,)
        refuse_wrong_keys(recipe, fields)
        self.table = _Lengths(joined, self.chain, recipe, sources)
        # A width has no time, whatever the steps of its key are.
        rates = {key: field.per_second if key == field.key else None for field in fields for key in field.length_keys}
        with placing(recipe.where):
            return Plan.make(
                self.table,
                recipe.plan,
                key=recipe.settings.length,
                seed=self.seed,
                progress=progress,
                per_second=rates if recipe.settings.length else {**rates, NO_KEY: None},
                keeper=PlanKeeper(job.index_folder(recipe.name)),
                sources=sources,
            )

    def shape(self, planned: BucketShape) -> BucketShape:
        """Return a planned shape with the most bytes of strings; in a packed stream with the lengths of all fields.

        The marks of packed rows are as long as the rows. Raise a KeyError if a packed shape lacks the bucketed key, and
        a SettingsError if there might be too many strings for one tensor.
        """
        if not self.packed:
            return self.strings.roomy(planned, planned.rows)
        length = planned.lengths[self.settings.length]
        marks = dict.fromkeys((field.key for field in self.fields if field.padded), length)
        # A row holds no more samples than if all were as short as the shortest.
        most = planned.rows * (length // self.plan.shortest)
        return self.strings.roomy(BucketShape(rows=planned.rows, lengths=marks), most)

    @cached_property
    def unproved_code(self) -> dict[str, list[str]]:
        """Return native code that the job's processor level may not reach, by the transform or source that uses it.

        It is empty without a level. Errors of reading the code of the user's own source pass through, such as an
        OSError, and importlib's PackageNotFoundError if a package was just removed.
        """
        if not self._level:
            return {}
        code = _foreign_code(self.source.modules)
        of_source = [] if code is None else native_names(code.packages, code.compiled)
        # A pipeline runs whatever TensorFlow has, also a graph that a trainer sent, which has no code here; and Lhotse
        # computes by PyTorch.
        for library in _UNPROVED:
            if library in self.source.versions and not any(name.startswith(library) for name in of_source):
                of_source.append(library)
        users = {step.name: step.native_code for step in self.chain.steps}
        users[f"the source of stream {self.name}"] = of_source
        return {user: native for user, native in users.items() if native}

    @property
    def _processor(self) -> str:
        """Return what the processor has to have in common on all machines: the job's level, or all features.

        With native code that the level may not reach it is both. Errors of `unproved_code` pass through.
        """
        if self._level and not self.unproved_code:
            return self._level
        return f"{self._level} {processor_features()}".strip()

    @cached_property
    def builder(self) -> str:
        """Return the fingerprint of everything that shapes the bytes; it is equal on all workers of a job.

        Errors of `unproved_code`, and of reading the code of the user's own source, pass through, such as an OSError.
        """
        masked = ("not_finite masked",) if self.masks_not_finite else ()
        words = (self.digest, self.chain.fingerprint, self.float32, self._processor, *self._decoding)
        return fingerprint(*words, *masked)

    def builder_parts(self) -> dict[str, str]:
        """Return the parts of the builder fingerprint, by names that people know.

        Values are hashes, except those of packages, settings, versions and the processor. The errors of `builder` pass
        through, such as an OSError.
        """
        of_stream = f"of stream {self.name}"
        code = _foreign_code(self.source.modules)
        transforms = {
            f"transform {step.name} {of_stream} (its settings or code)": step.identity for step in self.chain.steps
        }
        packages = self.chain.packages | dict(self.source.versions) | (dict(code.packages) if code is not None else {})
        return {
            f"index {of_stream}": self._joined.fingerprint,
            f"plan {of_stream} (its settings)": self.digest,
            **transforms,
            f"all transforms {of_stream}": self.chain.fingerprint,
            f"code of the source {of_stream}": code.sources if code is not None else "",
            "setting float32": self.float32,
            "setting not_finite": "mask" if self.masks_not_finite else "keep",
            "processor": self._processor,
            "version of Stoker's bytes": str(BYTES_VERSION),
            "version of Stoker's plans": str(PLANNER_VERSION),
            "release of Stoker": _release(),
            **{f"package {name}": version for name, version in packages.items()},
        }

    @property
    def steady(self) -> str:
        """Return the fingerprint of everything that shapes samples before the first transform that draws.

        The content of their files is left out; a sample's identity covers that. The errors of `builder` pass through.
        """
        of_sources = (self._joined.fingerprint, repr(self.chain.raw), *self._decoding)
        return fingerprint(self.chain.steady_fingerprint, self._processor, *of_sources)

    @property
    def shared(self) -> str:
        """Return the fingerprint of everything that shapes batches, but for their number and their samples' content.

        It is equal in streams of two jobs that may share batches. The errors of `builder` pass through.
        """
        return fingerprint(self._joined.made_from, self.builder)

    @property
    def _decoding(self) -> tuple[str, ...]:
        code = _foreign_code(self.source.modules)
        words = () if code is None else (code.sources, repr(sorted(code.packages.items())))
        return (repr(sorted(self.source.versions.items())), *words)

    @property
    def opened(self) -> str:
        """Return the fingerprint of what is open here, this very index included: an index made anew has another.

        The errors of `builder` pass through.
        """
        return fingerprint(self._joined.made, self.builder)

    def values(self, epoch: int, sample: int, raw: bytes) -> dict[str, NDArray[np.generic]]:
        """Return a decoded and transformed sample; raise a SampleError if complete bytes cannot be used.

        Raise a ReadError if the machine failed, or a transform cannot read what it needs, and an OverflowError or
        ValueError for a plain number that a field's dtype cannot hold; a MemoryError and other errors of ours pass
        through.
        """
        return self.chain.apply(self.raw_values(sample, raw), seed=self.seed, epoch=epoch, number=sample)

    def raw_values(self, sample: int, raw: bytes) -> dict[str, Any]:
        """Return a decoded sample for the chain, with a Picture in place of an image that its first transform takes.

        Raise a SampleError if complete bytes cannot be used, and a ReadError if the machine failed; a MemoryError and
        other errors of ours pass through.
        """
        key = self.chain.picture_key
        if not key or not isinstance(self.source, DecodesPictures):
            return decoded(self.source, sample, raw)
        try:
            return self.source.decode_picture(sample, raw, key)
        except (StokerError, MemoryError):
            raise
        except BaseException as error:  # a decoder may raise anything, as in `decoded`
            raise undecoded(error, self.source.name(sample)) from error

    def raw_lengths(self, sample: int) -> dict[str, int]:
        """Return the lengths of a sample before the transforms by key, as the index has them.

        The number must be in range, which is not checked.
        """
        return self._joined.raw_lengths(sample)

    def find_missing(self, time_s: float) -> MissingFiles | None:
        """Return which files are missing on this machine, from the source that lacks the largest part of its files.

        Return None if no missing file was found; each source is looked at for at most `time_s`.
        """
        return self._joined.find_missing(time_s)

    def identity(self, sample: int) -> str:
        """Return the source's identity of the sample, which names a culprit; a hash of it if it is too long.

        The number must be in range, which not every source checks. What the source raises passes through.
        """
        own = self.source.identity(sample)
        return own if len(own) <= _LONGEST_IDENTITY else fingerprint(own.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the sources, all of a mixture as well. What a source raises passes through."""
        self.source.close()


def _ordinals(source: WholeSource, index: str) -> OrdinalPlan:
    """Return the plan of whole batches, which has nothing but their numbers."""
    return OrdinalPlan(producers=source.producers, elements=source.elements, largest=source.largest, made_from=(index,))


def _release() -> str:
    """Return the release of our package, or "not installed"; it shapes no bytes, but tells people what to install."""
    try:
        return version_of("stoker")
    except PackageNotFoundError:
        return "not installed"


def _foreign_code(modules: Sequence[str]) -> OwnCode | None:
    """Return the code of the source that is not ours; None if all of its modules are ours.

    The chain knows the version of our own. Raise what `own_code` raises.
    """
    foreign = [name for name in modules if name.partition(".")[0] != __name__.partition(".")[0]]
    return own_code(foreign) if foreign else None


def sources_of(job: JobFile, recipe: StreamRecipe) -> list[tuple[SourceSpec, Path]]:
    """Return the sources of a stream, and the folder of the index of each.

    Only a source of whole batches gets `open_base`: processes that probe others would have to import this module to
    unpickle it.
    """
    specs = recipe.sources
    if recipe.whole:
        specs = tuple(replace(spec, of_job=replace(spec.of_job, open_base=open_base)) for spec in specs)
    return list(zip(specs, job.index_folders(recipe), strict=True))


def open_base(of_job: OfJob, name: str) -> BaseSamples:
    """Open another stream of the job for a pipeline to read.

    Raise a SettingsError if it is no stream of samples, if the job file has a mistake, if a package is not installed,
    or if its settings do not fit its data; raise a DataError if it has no index, or one of other data or settings, or
    no samples. What making a Stream raises besides passes through.
    """
    assert of_job.path is not None
    job = JobFile(of_job.path)
    if name not in job.recipes or job.recipes[name].whole:
        raise SettingsError(
            expected="another stream of the job, one of samples",
            got=f'base = "{name}"',
            where=of_job.table,
            remedy="Name a stream that has a source of its own, such as lines or tfrecord.",
        )
    stream = Stream(job, name)
    return BaseSamples(stream, stream.chain.fields)


def open_sources(job: JobFile, recipe: StreamRecipe) -> SourceSet:
    """Open the sources of a stream; raise a DataError if one has no index, or one of other data or settings.

    Raise a DataError too if a field differs between several sources, and a SettingsError if recordings cannot be cut by
    the rule. What opening a source raises besides passes through.
    """
    cut = recipe.chunks
    return SourceSet(
        [open_source(spec, folder, cut) for spec, folder in sources_of(job, recipe)], cut.summary if cut else ""
    )


def open_source(spec: SourceSpec, folder: Path, cut: ChunkRule | None = None) -> OpenedSource:
    """Open one source from its index, with recordings cut by this rule, if any.

    Raise a DataError if there is no index, or one that is damaged, or was made of other data, with other settings,
    another size limit, or without columns that are needed now; raise a SettingsError if recordings cannot be cut by the
    rule. What making or opening the source raises besides passes through, such as an OSError.
    """
    index = open_index(folder)
    index.refuse_other_source(spec.name, spec.settings)
    index.refuse_other_limit(spec.of_job.largest_indexed)
    source = spec.make()
    index.refuse_lacking(source.content_columns | {column_of_strings(key) for key in spec.of_job.strings})
    source.open(index.indexed)
    if cut is not None:
        source = ChunkedSource(source, cut, spec.where)
    return OpenedSource(where=spec.where, source=source, index=index)


def _parts(joined: SourceSet, recipe: StreamRecipe) -> tuple[int, ...]:
    """Return the sample numbers at which the parts of a mixture start.

    Raise a SettingsError if there is not one weight for each part.
    """
    if len(joined.parts) != len(recipe.plan.weights):
        raise SettingsError(
            expected=f"one weight for each of the {len(joined.parts)} sources or paths that have samples",
            got=f"{len(recipe.plan.weights)} weights",
            where=f"{recipe.where}, weights",
            remedy="Write as many weights as paths, or as sources.",
        )
    return joined.parts
