"""The statistics that `normalise` uses, made over all samples of a stream as the transforms before it leave them.

Rules: the samples are divided into pieces and merged in order, so the numbers are the same with any number of
processes; of a piece only its moments are kept, so memory does not grow with the data. A file is written whole or not
at all. Samples that cannot be used are left out and counted. Random numbers are those of epoch 0.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from loader_server.commands.progress import progress_bar
from loader_server.index.make import IndexRequest, make_index, unchanged_index
from loader_server.index.pool import run_in_order, usable_processes
from loader_server.job_file import JobFile
from loader_server.sources.files.retried_reads import read_patiently
from loader_server.sources.source import decoded
from loader_server.stream import open_sources, sources_of
from loader_server.transforms.normalise import Moments, NormaliseSettings, statistics_text
from shared.errors import DataError, SampleError, SettingsError
from shared.settings.tables import read_table
from shared.stores.own_files import refuse_closed, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.job_file import StreamRecipe
    from loader_server.transforms.chain import Chain

__all__ = ["StatisticsReport", "make_statistics"]

_NAME = "normalise"
_PIECE_SAMPLES = 64
#: Below this many pieces, one process is done before others have started.
_PIECES_THAT_PAY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsReport:
    """The result; `bad` counts the samples that were left out, by reason."""

    path: Path
    stream: str
    samples: int
    steps: int
    bad: dict[str, int]


@dataclass(slots=True)
class _Gathered:
    """The moments of some samples, how many these are, and how many others were left out, by reason."""

    samples: int = 0
    moments: Moments | None = None
    bad: Counter[str] = field(default_factory=Counter)

    def add(self, later: _Gathered) -> None:
        """Add the samples that come next, with their moments and counts: another order would round differently."""
        self.samples += later.samples
        self.bad += later.bad
        self.moments = _merged(self.moments, later.moments)


def make_statistics(job: JobFile, names: Sequence[str], *, processes: int = 0) -> list[StatisticsReport]:
    """Write the statistics of each `normalise` of these streams; return a report for each file, maybe none.

    If several streams name one file, only the job's first one makes it; streams without one, unknown, or that lack a
    package are passed over. Raises DataError for a stream without a usable sample or whose data cannot be indexed or
    read, SettingsError if the key is no array, settings are wrong or a folder is closed, MachineError, MemoryError or
    OSError if disk or memory are full, and BrokenProcessPool if a process died. Other errors of the sources pass.
    """
    first: dict[str, str] = {}
    for name, recipe in job.recipes.readable():
        settings = _settings_of(recipe)
        if settings is not None and settings.statistics is not None:
            first.setdefault(settings.statistics, name)
    return [_make(job, name, job.base / path, processes) for path, name in first.items() if name in names]


def _settings_of(recipe: StreamRecipe) -> NormaliseSettings | None:
    if _NAME not in recipe.settings.transforms:
        return None
    return read_table(NormaliseSettings, recipe.tables.get(_NAME, {}), f"{recipe.where}, {_NAME}")


def _make(job: JobFile, name: str, path: Path, processes: int) -> StatisticsReport:
    """Write one statistics file, and the index if that is missing; return the report.

    Raise DataError if no sample can be used, or data cannot be indexed or read; raise SettingsError if a folder is
    closed, settings are wrong or the key is no array, MachineError, MemoryError or OSError if disk or memory are full,
    and BrokenProcessPool if a process died. Other errors of the sources pass through.
    """
    refuse_closed(path.parent, where=f"{job.recipes[name].where}, {_NAME}, statistics")
    _make_columns(job, job.recipes[name], processes)
    gatherer, total = _Gatherer(job, name), _Gathered()
    with progress_bar(f"statistics {name}") as progress:
        for part in _parts(gatherer, processes):
            total.add(part)
            progress(total.samples + total.bad.total(), gatherer.samples)
    if total.moments is None:
        raise DataError(
            expected="at least one sample with a step",
            got=f"none of {gatherer.samples}: {dict(total.bad)}",
            where=f"{job.recipes[name].where}, {_NAME}",
            remedy="Correct the transforms before it, or the data.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(statistics_text(gatherer.chain.steady_recipe, total.moments).encode())
    return StatisticsReport(
        path=path,
        stream=name,
        samples=total.samples,
        steps=total.moments.steps,
        bad=dict(sorted(total.bad.items())),
    )


def _make_columns(job: JobFile, recipe: StreamRecipe, processes: int) -> None:
    """Make the index by which samples are read, if it is missing or outdated.

    Lengths are measured later, if they have to be. Raise DataError if the data are refused, SettingsError if the
    index's folder is closed, and MachineError if there is no room. Other errors of the source pass through.
    """
    for spec, folder in sources_of(job, recipe):
        with progress_bar(f"index {recipe.name}") as progress:
            request = IndexRequest(folder=folder, spec=spec, source=spec.make(), processes=processes, progress=progress)
            if unchanged_index(request) is None:
                job.refuse_closed(folder)
                make_index(request)


def _merged(earlier: Moments | None, later: Moments | None) -> Moments | None:
    return earlier.merged(later) if earlier and later else earlier or later


class _Gatherer:
    """Reader of one stream's samples, up to `normalise`.

    Making it opens the sources, and raises what `open_sources` raises.
    """

    def __init__(self, job: JobFile, name: str) -> None:
        self.job = job
        self.recipe = job.recipes[name]
        settings = _settings_of(self.recipe)
        assert settings is not None, "only streams that ask for statistics are looked at"
        self._key = settings.key
        self._joined = open_sources(job, self.recipe)

    @property
    def samples(self) -> int:
        """Return how many samples the stream's sources have, also those that turn out to be unusable."""
        return self._joined.samples

    @cached_property
    def chain(self) -> Chain:
        """Return the transforms before `normalise`; raise what `StreamRecipe.chain` raises for wrong settings."""
        return self.recipe.chain(self._joined.source.fields, before=_NAME)

    def gather(self, piece: range) -> _Gathered:
        """Return the moments of these samples; those that cannot be used are counted, those without a step add none.

        Raise ReadError if a sample cannot be read, SettingsError if the key is no array, MemoryError if memory ran out.
        Other errors of the source's `read`, and of making the `chain`, pass through.
        """
        moments, bad = None, Counter[str]()
        for sample, raw in zip(piece, read_patiently(self._joined.source.read, piece, bool), strict=True):
            try:
                values = self._values(sample, raw)
            except SampleError as error:
                bad[error.reason] += 1
                continue
            moments = _merged(moments, Moments.of(values) if len(values) else None)
        return _Gathered(len(piece) - bad.total(), moments, bad)

    def _values(self, sample: int, raw: bytes) -> NDArray[np.generic]:
        """Return the key's array after transforms; raise SampleError for a bad sample, SettingsError for no array.

        Raise ReadError if the machine failed, MemoryError if memory ran out. Errors of making `chain` pass through.
        """
        made = decoded(self._joined.source, sample, raw)
        for _, stage in self.chain.stages(made, (self.job.settings.seed, 0, sample)):
            made = stage
        values = made.get(self._key)
        if not isinstance(values, np.ndarray) or not values.ndim:
            raise SettingsError(
                expected=f'"{self._key}" as an array of steps, for its statistics',
                got=type(values).__name__,
                where=f"{self.recipe.where}, {_NAME}",
                remedy="Name another key, or put the transform that makes features before normalise.",
            )
        return values


def _parts(gatherer: _Gatherer, processes: int) -> Iterator[_Gathered]:
    """Yield the moments of each piece, in order, with any number of processes; 0 for as many as pay.

    Raise what `gather` raises, with several processes also what opening job and sources does, and BrokenProcessPool if
    one died.
    """
    starts = range(0, gatherer.samples, _PIECE_SAMPLES)
    pieces = (range(start, min(start + _PIECE_SAMPLES, gatherer.samples)) for start in starts)
    processes = usable_processes(processes or (os.cpu_count() or 1 if len(starts) >= _PIECES_THAT_PAY else 1))
    if processes == 1:
        return map(gatherer.gather, pieces)
    return run_in_order(partial(_gather_of, gatherer.job.path, gatherer.recipe.name), pieces, processes)


def _gather_of(path: Path, name: str) -> Callable[[range], _Gathered]:
    return _Gatherer(JobFile(path), name).gather
