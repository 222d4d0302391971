"""Users' `dataset_pipeline(context)` outside loaders: `feed.pipeline(...)`, and `trainer_client.run_pipeline`.

In a trainer the part above the marker is built from an empty stand-in and never run; the marker returns the feed's
batches as the elements that workers made. Without loaders the marker passes on what is above it, so the function that
made the batches decodes a sample, or a file, in the same way after training.

Rules: the part below the marker should yield one element for each that it takes; otherwise steps are not rounds, and a
checkpoint's cursor is wrong. Must not know sockets, slots or plans.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from shared.errors import SettingsError, require
from shared.pipelines.context import (
    PipelineContext,
    build_pipeline,
    default_pipeline,
    samples_dataset,
    with_plain_keys,
)
from shared.pipelines.dense_parts import joined_values
from shared.pipelines.element_values import values_of_element
from trainer_client.tf import ctrl_c
from trainer_client.tf import dataset as feed_dataset
from trainer_client.tf.element_structure import ElementStructure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shared.pipelines.element_values import ElementValue
    from trainer_client.session.feed_session import FeedSession

__all__ = ["PipelineElements", "element_tensors", "make", "run_pipeline"]

_PIPELINE, _RUN_PIPELINE = "feed.pipeline", "trainer_client.run_pipeline"


class _TrainersContext(PipelineContext):
    """Base of contexts outside loaders: elements go to a device."""

    def prefetch_to_consumer_device(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Prefetch to an accelerator; on the CPU return the same data set. ValueError for a malformed device passes."""
        if tf.DeviceSpec.from_string(self.consumer_device).device_type == "CPU":
            return dataset
        return dataset.apply(tf.data.experimental.prefetch_to_device(self.consumer_device))


class _ConsumerContext(_TrainersContext):
    """Context of a trainer: the marker returns the feed."""

    def __init__(self, session: FeedSession, device: str, *, in_rounds: bool) -> None:
        spec = session.spec
        super().__init__(
            dataset_name=spec.stream,
            base_dataset=samples_dataset(spec.base_fields),
            consumer_device=device,
        )
        self._session, self._in_rounds = session, in_rounds

    def map_producer_to_consumer(self, dataset: tf.data.Dataset) -> tf.data.Dataset:  # workers run it
        """Count the call and return the feed's elements; the data set above the marker is ignored, as workers run it.

        Warn if the feed has several ranks, unless `in_rounds`. Raise SettingsError if the stream is in queue mode.
        """
        self.marked += 1
        values = values_of_element(self._session.spec.fields)
        structure = ElementStructure(map=lambda batch: element_tensors(values, batch))
        return feed_dataset.make(self._session, structure, in_rounds=self._in_rounds)


class _LoneContext(_TrainersContext):
    """Context without loaders: the marker passes on what is above it."""

    def map_producer_to_consumer(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Count the call, and return the data set with the keys that it has below the marker: without colons.

        Raise SettingsError if two keys become the same.
        """
        self.marked += 1
        return with_plain_keys(dataset, _RUN_PIPELINE)


def make(
    session: FeedSession, function: Callable[[Any], Any] | Literal[True], device: str, *, in_rounds: bool = False
) -> tf.data.Dataset:
    """Return the data set that the function makes from the feed; the default pipeline if the function is True.

    With `in_rounds` the consumer takes whole rounds; without, a feed of several ranks gives a warning. Raise
    SettingsError if the stream is no pipeline or is in queue mode, if the function cannot be called, or unless it calls
    the marker exactly once and returns a data set. Errors of the function pass through.
    """
    chosen = _pipeline_function(function, _PIPELINE)
    require(
        session.spec.producers > 0,
        expected='a stream with source = "pipeline"',
        got=f"{session.spec.stream}, whose batches the planner makes",
        where=_PIPELINE,
        remedy="Use feed.dataset(…), or make the stream a pipeline in the job file.",
    )
    return build_pipeline(chosen, _ConsumerContext(session, device or _first_device(), in_rounds=in_rounds), _PIPELINE)


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

    Errors of the function pass through, and TensorFlow's for samples of which it makes no tensors.

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
        SettingsError: `function` is no function, does not call the marker exactly once or returns no data set, a sample
            is no dict, or two keys are the same below the marker.

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
        consumer_device=device or _first_device(),
    )
    context.paths = [os.fspath(path) for path in paths]
    return build_pipeline(_pipeline_function(function, _RUN_PIPELINE), context, _RUN_PIPELINE)


def _dataset_of(samples: list[Mapping[str, Any]]) -> tf.data.Dataset:
    """Return a data set of the samples, with first axes that vary; raise SettingsError if one is no dict.

    Keys and dtypes are those of the first sample; without samples it is an empty data set of numbers. TensorFlow's
    errors pass, here for values that are no tensors, as it is read for samples unlike the first.
    """
    for sample in samples:
        if not isinstance(sample, dict):
            raise SettingsError(
                expected="samples that are dicts",
                got=repr(sample),
                where=_RUN_PIPELINE,
                remedy='Pass a list of them: [{"key": array, …}].',
            )
    if not samples:
        return tf.data.Dataset.range(0)
    first = {key: tf.convert_to_tensor(value) for key, value in samples[0].items()}
    # The first sample's first axis is not every sample's: it varies, as the padded axis of a job's samples does.
    specs = {
        key: tf.TensorSpec((None, *tensor.shape[1:]) if tensor.shape.rank else (), tensor.dtype)
        for key, tensor in first.items()
    }
    return tf.data.Dataset.from_generator(lambda: iter(samples), output_signature=specs)


def _pipeline_function(function: Callable[[Any], Any] | Literal[True], where: str) -> Callable[[Any], Any]:
    """Return the function, or the default one if it is True; raise SettingsError if it is not callable."""
    chosen = default_pipeline if function is True else function
    if not callable(chosen):
        raise SettingsError(
            expected="a function of a context, or True for the default pipeline",
            got=repr(chosen),
            where=where,
            remedy="Pass the function that the job file names as pipeline.",
        )
    return chosen


def _first_device() -> str:
    """Return the device "/gpu:0" if there is an accelerator, else "/cpu:0"."""
    return "/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0"


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator] # TensorFlow has no types
def element_tensors(values: Sequence[ElementValue], batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the element in a batch by key, parts joined, each in its own shape; an empty batch gives zero steps."""
    return joined_values({value.key: _shaped(value, batch) for value in values})


def _shaped(value: ElementValue, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return a value in its own shape, from its flat form and its sizes in the batch."""
    tensor = batch[f"{value.key}:values"][0]
    if value.flattened:  # only the varying axes: in an empty batch the sizes are all zeros, even of fixed axes
        varying = batch[f"{value.key}:shape"][0][: value.flattened]
        tensor = tf.reshape(tensor, tf.concat([varying, tf.constant(value.fixed, tf.int64)], axis=0))
    return tf.ensure_shape(tensor, value.shape)


class PipelineElements:
    """Iterable over a pipeline's elements for our training loop, from the cursor to the end of its epoch.

    The loop counts a batch for each element, so a pipeline that yields fewer, or more, is refused. Reading counts
    nothing. The arguments are those of `make`, and so are the errors of making it.
    """

    def __init__(
        self, session: FeedSession, function: Callable[[Any], Any], device: str = "", *, in_rounds: bool = False
    ) -> None:
        self._session = session
        self._data = make(session, function, device, in_rounds=in_rounds)
        self.element_spec = self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        rounds = self._session.cursor.epoch_rounds()
        if rounds is None:  # in queue mode it is not known how many are left
            return self._elements_of(self._data)
        # A derived data set: reading the feed's own one to its end would count the epoch as trained on.
        data = self._data.take(-1) if isinstance(self._data, feed_dataset.FeedDataset) else self._data
        return self._element_per_batch(data, rounds[1] * self._session.ranks.replicas)

    def _element_per_batch(self, data: tf.data.Dataset, batches: int) -> Iterator[Any]:
        """Yield as many elements as batches; raise SettingsError if the pipeline yields fewer or more.

        More are noticed before the last one is yielded, and not asked for if there are no batches. Errors of
        `_elements_of` pass through.
        """
        elements = self._elements_of(data)
        for done in range(batches):
            element = next(elements, None)
            if element is None:
                raise _uneven(batches, done)
            # One too many is noticed before the last element is handed on, because nobody asks after it.
            if done + 1 == batches and next(elements, None) is not None:
                raise _uneven(batches, "more")
            yield element

    def _elements_of(self, data: tf.data.Dataset) -> Iterator[Any]:
        """Yield the elements; for an error of TensorFlow's, raise a pending Ctrl-C or the feed's own error, if any."""
        try:
            yield from data
        except (tf.errors.OpError, RuntimeError):
            ctrl_c.raise_pending()
            if self._session.error is None:
                raise
            raise self._session.error from None


def _uneven(expected: int, got: int | str) -> SettingsError:
    return SettingsError(
        expected=f"an element for each of the {expected} batches that are left of the epoch", got=f"{got}",
        where="dataset_pipeline, below the marker",
        remedy="Let what lies below map_producer_to_consumer only map elements; filter, batch and repeat above it.",
    )  # fmt: skip
