"""Users' `dataset_pipeline(context)` in a trainer: what `feed.pipeline(...)` returns.

The part above the marker is built from an empty stand-in and never run; the marker returns the feed's batches as the
elements that workers made.

Rules: the part below the marker should yield one element for each that it takes; otherwise steps are not rounds, and a
checkpoint's cursor is wrong. Must not know sockets, slots or plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from shared.errors import SettingsError
from shared.pipelines.context import PipelineContext, build_pipeline, default_pipeline, samples_dataset
from shared.pipelines.element_values import values_of_element
from shared.pipelines.parts import joined_values
from trainer_client.tf import dataset as feed_dataset
from trainer_client.tf.element_structure import ElementStructure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shared.pipelines.element_values import ElementValue
    from trainer_client.session.feed_session import FeedSession

__all__ = ["TrainersContext", "element_tensors", "first_device", "make", "pipeline_function"]


class TrainersContext(PipelineContext):
    """Base of contexts outside loaders: elements go to a device."""

    def prefetch_to_consumer_device(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Prefetch to an accelerator; on the CPU, elements are read ahead anyway."""
        if tf.DeviceSpec.from_string(self.consumer_device).device_type == "CPU":
            return dataset
        return dataset.apply(tf.data.experimental.prefetch_to_device(self.consumer_device))


class _ConsumerContext(TrainersContext):
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
        """Return the feed's elements; the data set above the marker is ignored, because workers run it."""
        self.marked += 1
        values = values_of_element(self._session.spec.fields)
        structure = ElementStructure(
            inputs=None, targets=None, weights=None, map=lambda batch: element_tensors(values, batch)
        )
        return feed_dataset.make(self._session, structure, in_rounds=self._in_rounds)


def make(
    session: FeedSession, function: Callable[[Any], Any] | Literal[True], device: str, *, in_rounds: bool = False
) -> tf.data.Dataset:
    """Return the data set that the function makes from the feed; the default pipeline if the function is True.

    With `in_rounds` the consumer takes whole rounds. Raise SettingsError if the stream is no pipeline.
    """
    where = "feed.pipeline"
    chosen = pipeline_function(function, where)
    if not session.spec.producers:
        raise SettingsError(
            expected='a stream with source = "pipeline"',
            got=f"{session.spec.stream}, whose batches the planner makes",
            where=where,
            remedy="Use feed.dataset(…), or make the stream a pipeline in the job file.",
        )
    return build_pipeline(chosen, _ConsumerContext(session, device or first_device(), in_rounds=in_rounds), where)


def pipeline_function(function: Callable[[Any], Any] | Literal[True], where: str) -> Callable[[Any], Any]:
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


def first_device() -> str:
    """Return the first accelerator, or the CPU."""
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return "/gpu:0" if "GPU" in kinds else "/cpu:0"


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator] # TensorFlow has no types
def element_tensors(values: Sequence[ElementValue], batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the element in a batch, each value in its own shape; an empty batch of a shard gives zero steps."""
    return joined_values({value.key: _shaped(value, batch) for value in values})


def _shaped(value: ElementValue, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return a value in its own shape, from its flat form and its sizes in the batch."""
    tensor = batch[f"{value.key}:values"][0]
    if value.flattened:  # only the varying axes: in an empty batch the sizes are all zeros, even of fixed axes
        varying = batch[f"{value.key}:shape"][0][: value.flattened]
        tensor = tf.reshape(tensor, tf.concat([varying, tf.constant(value.fixed, tf.int64)], axis=0))
    return tf.ensure_shape(tensor, value.shape)
