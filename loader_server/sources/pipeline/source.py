"""The source `pipeline`: a user's `dataset_pipeline(context) -> tf.data.Dataset`, whose elements are the batches.

Rules: the function is imported only where shards are run: in workers, and in separate processes while indexing.
`sharded_source` says how shards become batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from loader_server.named_objects import import_named
from loader_server.own_code import own_code
from loader_server.sources.pipeline.shard_run import PipelineOrder
from loader_server.sources.pipeline.sharded_source import ShardedSource, ShardSettings
from loader_server.sources.remote.urls import is_url
from shared.errors import SettingsError
from shared.hashing import fingerprint
from shared.pipelines.context import default_pipeline
from shared.settings.parsers import setting, text, texts, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from loader_server.sources.pipeline.base_samples import BaseSamples
    from loader_server.sources.source import Inventory
    from shared.wire.batch_layout import Field

__all__ = ["PipelineSettings", "PipelineSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(ShardSettings):
    """Further settings of a stream with source = "pipeline"."""

    pipeline: str = setting(
        text, "package.module:function; left out, the samples of `base` in padded batches", default=""
    )
    base: str = setting(text, "another stream of the job, whose samples are context.base_dataset", default="")
    paths: tuple[str, ...] = setting(
        texts, "the files that the function reads, as context.paths; a change of them is noticed", default=()
    )
    max_rows: int = setting(whole(1), "context.default_max_rows", default=32)


class PipelineSource(ShardedSource):
    """Source of batches that a user's function makes, shard by shard."""

    Settings = PipelineSettings
    settings: PipelineSettings

    @property
    def base_fields(self) -> tuple[Field, ...]:
        """Return the fields of the base stream's samples; none without a base.

        Raise a SettingsError if the base is no stream of samples, the job file has a mistake, or a package is missing,
        or a DataError if it has no index that fits, or no samples.
        """
        return self._base.fields if self._base is not None else ()

    @cached_property
    def _base(self) -> BaseSamples | None:
        """Return the samples of the base stream, opened by the first call, or None without a base.

        Raise a SettingsError if it is no stream of samples, the job file has a mistake, a package is missing or its
        settings do not fit its data, or a DataError if it has no index that fits, or no samples.
        """
        if not self.settings.base:
            return None
        assert self.of_job.open_base is not None, "specs of a job's streams come from sources_of"
        return self.of_job.open_base(self.of_job, self.settings.base)

    @property
    def where(self) -> str:
        """Return the function's name in messages, or "the default pipeline"."""
        return self.settings.pipeline or "the default pipeline"

    # --- while an index is made ---

    def stamp(self) -> str:
        """Return a text that changes with code, seed, base and `paths`.

        Return "" without `base` and `paths`: the function then reads something that cannot be watched. Raise a
        DataError if a path stands for no file or the base cannot be opened, a ReadError if a store cannot be asked, or
        a SettingsError if the base is no stream of samples or the job file has a mistake. Other errors of `made_of` and
        `_found_paths` pass through.
        """
        # The function may read anything, so that without these nothing says that its data are the same.
        if not self.settings.base and not self.settings.paths:
            return ""
        return fingerprint(self.made_of, self.files.stamp(self._found_paths()))

    def _found_paths(self) -> list[str]:
        """Return the files that `paths` stands for, each as often as it is named; none without `paths`.

        Raise a DataError if a pattern or a folder stands for no file or a URL is unusable; a ReadError if a store
        cannot be asked; a SettingsError if its library is missing or braces stand for too many names.
        """
        return self.files.found(self.settings.paths, once=False) if self.settings.paths else []

    @property
    def made_of(self) -> str:
        """Return a fingerprint of the code, the seed and the base: elements change if one of these does.

        Raise a SettingsError if the base is no stream of samples or the job file has a mistake, or a DataError if it
        has no index that fits, or no samples. OSError and PackageNotFoundError of `own_code` pass through.
        """
        code = own_code(self.modules)
        return fingerprint(
            code.sources,
            repr(sorted(code.packages.items())),
            str(self.of_job.seed),
            self._base.opened if self._base is not None else "",
        )

    def survey(self) -> Inventory:
        """Return one piece for each shard; raise a SettingsError if there is neither a function nor a base.

        Raise a DataError if a path stands for no file, or the base cannot be opened; a ReadError if a store cannot be
        asked, or a SettingsError if the base is no stream of samples or the job file has a mistake. Other errors of
        `made_of` and `_found_paths` pass.
        """
        if not self.settings.pipeline and not self.settings.base:
            raise SettingsError(
                expected="pipeline = a function, or base = a stream for the default pipeline",
                got="neither",
                where=self.of_job.table,
                remedy='Write pipeline = "my_module:dataset_pipeline".',
            )
        return super().survey()

    @cached_property
    def order(self) -> PipelineOrder:
        """Return what all runs have in common; raise a SettingsError if the function cannot be imported.

        Raise a SettingsError also if the base is no stream of samples or the job file has a mistake, a DataError if a
        path stands for no file or the base cannot be opened, or a ReadError if a store cannot be asked. Other errors of
        `_found_paths` pass.
        """
        name, settings = self.settings.pipeline, self.settings
        return PipelineOrder(
            function=import_named(name, "a function", f"{self.of_job.table}, pipeline") if name else default_pipeline,
            where=self.where,
            name=self.of_job.stream,
            seed=self.of_job.seed,
            shards=self.producers,
            exact=settings.replay == "exact",
            max_rows=settings.max_rows,
            paths=[path if is_url(path) else str(self.base / path) for path in self._found_paths()],
            base_fields=self.base_fields,
            padding=self._base.padding if self._base is not None else {},
            base=self._samples_of_base,
        )

    def _samples_of_base(self, epoch: int, shard: int) -> Iterator[Mapping[str, NDArray[np.generic]]]:
        """Return an iterator over the base stream's samples of one shard; empty without a base.

        It raises a ReadError if reading keeps failing, and other errors of reading, decoding and the transforms; a
        sample that cannot be used is left out. Errors of `_base` pass through.
        """
        return iter(()) if self._base is None else self._base.of_shard(epoch, shard, self.producers)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the function's module; without a function this one."""
        return (self.settings.pipeline.partition(":")[0],) if self.settings.pipeline else (type(self).__module__,)

    def close(self) -> None:
        """End all runs, and close the base, if it was opened; a shard whose batch is asked for later begins anew."""
        if "_base" in self.__dict__ and self._base is not None:
            self._base.close()
        super().close()
