"""Users' `dataset_pipeline(context)` in this process, without loaders: `trainer_client.run_pipeline`.

It serves work after training: the function that made the batches decodes a sample, or a file, in the same way.

Rules: the marker divides nothing here, but keys get the names that they have below it. Must not know sockets, jobs or
plans.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from shared.errors import SettingsError
from shared.pipelines.context import build_pipeline, with_plain_keys
from trainer_client.tf.pipelines.pipeline import TrainersContext, first_device, pipeline_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["run_pipeline"]

_WHERE = "trainer_client.run_pipeline"


class _LoneContext(TrainersContext):
    """Context without loaders: the marker passes on what is above it."""

    def map_producer_to_consumer(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return the data set with the keys that it has below the marker."""
        self.marked += 1
        return with_plain_keys(dataset, _WHERE)


def run_pipeline(  # noqa: PLR0913 - what a context needs, each with a default
    function: Callable[[Any], Any] | Literal[True],
    samples: tf.data.Dataset | Iterable[Mapping[str, Any]] = (),
    *,
    paths: Iterable[str | os.PathLike[str]] = (),
    name: str | None = None,
    max_rows: int = 32,
    device: str | None = None,
) -> tf.data.Dataset:
    """Run a `dataset_pipeline(context)` in this process, without loaders, on samples or files of your own.

    Args:
        function: The function that a job file names as `pipeline`. True: the default pipeline.
        samples: The value of `context.base_dataset`: a data set, or dicts of arrays whose first axis varies.
        paths: The value of `context.paths`.
        name: The value of `context.dataset_name`.
        max_rows: The value of `context.default_max_rows`.
        device: The device on which the function puts elements. None: the first accelerator, or the CPU.

    Returns:
        The data set that the function makes.

    Raises:
        SettingsError: `function` is no function of a context, or a sample is no dict.

    Example:
        >>> import numpy as np
        >>> samples = [{"feat": np.ones((3, 2), np.float32)}]
        >>> element = next(iter(trainer_client.run_pipeline(True, samples)))
        >>> element["feat"].shape.as_list(), element["feat_length"].numpy().tolist()
        ([1, 3, 2], [3])
    """
    context = _LoneContext(
        dataset_name=name or "",
        base_dataset=samples if isinstance(samples, tf.data.Dataset) else _dataset_of(list(samples)),
        default_max_rows=max_rows,
        consumer_device=device or first_device(),
    )
    context.paths = [os.fspath(path) for path in paths]
    return build_pipeline(pipeline_function(function, _WHERE), context, _WHERE)


def _dataset_of(samples: list[Mapping[str, Any]]) -> tf.data.Dataset:
    """Return a data set of the samples; raise SettingsError if one is no dict."""
    for sample in samples:
        if not isinstance(sample, dict):
            raise SettingsError(
                expected="samples that are dicts",
                got=repr(sample),
                where=_WHERE,
                remedy='Hand in a list of them: [{"key": array, …}].',
            )
    if not samples:
        return tf.data.Dataset.range(0)
    first = {key: tf.convert_to_tensor(value) for key, value in samples[0].items()}
    specs = {key: tf.TensorSpec(_first_axis_varies(one.shape), one.dtype) for key, one in first.items()}
    return tf.data.Dataset.from_generator(lambda: iter(samples), output_signature=specs)


def _first_axis_varies(shape: tf.TensorShape) -> tuple[int | None, ...]:
    return (None, *shape[1:]) if shape.rank else ()
