"""The context passed to a user's `dataset_pipeline(context)`, on either side of the marker that divides it.

The same function runs in workers and in trainers. In a worker, the part above `context.map_producer_to_consumer` is
kept and run, and the part below gets an empty stand-in. In a trainer, the part above is built from an empty stand-in
and never run, and the marker returns the feed.

Rules: knows neither side; imports TensorFlow only in a process where a pipeline is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import tensorflow as tf

    from shared.wire.batch_layout import Field

__all__ = ["PipelineContext", "build_pipeline", "default_pipeline", "samples_dataset", "unfit", "with_plain_keys"]

#: Default rows of a batch.
_MAX_ROWS = 32
#: First part of RETURNN's name for the length of an axis: "size:key:axis".
_SIZE = "size"


class PipelineContext:
    """Context of one side."""

    def __init__(
        self,
        *,
        dataset_name: str,
        base_dataset: tf.data.Dataset,
        default_max_rows: int = _MAX_ROWS,
        consumer_device: str = "",
        padding: Mapping[str, Any] | None = None,
    ) -> None:
        #: The stream's name in the job.
        self.dataset_name = dataset_name
        #: The samples of the job's `base` stream: of one shard in a worker, none in a trainer.
        self.base_dataset = base_dataset
        #: Default rows of `padded_batch`.
        self.default_max_rows = default_max_rows
        self._padding = padding or {}
        #: The device of `prefetch_to_consumer_device`; empty in a worker.
        self.consumer_device = consumer_device
        #: The part of the data to produce, for functions that open files themselves: `dataset.shard(shards, shard)`.
        self.shard, self.shards = 0, 1
        #: The epoch, for stateless random numbers.
        self.epoch = 0
        #: The stream's `paths`; none in a trainer.
        self.paths: Sequence[str] = ()
        self.marked = 0

    def add_lengths(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return the data set with the length of each axis that varies, as `<key>_length` for axis 0.

        For a later axis the name is `<key>_length_<axis>`. Raise SettingsError unless elements are dicts; errors of
        TensorFlow pass through, such as for a key whose number of axes is unknown.
        """
        import tensorflow as tf  # only where pipelines are built

        varying = [
            (key, axis, f"{key}_length" if axis == 0 else f"{key}_length_{axis}")
            for key, spec in _dict_spec(dataset, "add_lengths").items()
            for axis, size in enumerate(spec.shape)
            if size is None
        ]

        def with_lengths(element: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return element | {name: tf.shape(element[key])[axis] for key, axis, name in varying}

        return dataset.map(with_lengths)

    def padded_batch(self, dataset: tf.data.Dataset, max_rows: int = 0) -> tf.data.Dataset:
        """Batch `max_rows` elements (0: `default_max_rows`), padded to the longest; TensorFlow's errors pass.

        Keys that still have the base's dtype are padded with the `padding` of its stream, all others with zeros.
        """
        rows, spec = max_rows or self.default_max_rows, dataset.element_spec
        if not isinstance(spec, dict) or not self._padding.keys() & spec.keys():
            return dataset.padded_batch(rows)
        # None stands for TensorFlow's own padding: zeros, and empty strings.
        values = {key: self._padding_like(key, part) for key, part in spec.items()}
        return dataset.padded_batch(rows, padding_values=values)

    def _padding_like(self, key: str, spec: Any) -> Any:
        """Return what the base pads a key with; None if that is 0, or the key has another dtype by now."""
        value = self._padding.get(key)
        return value if value is not None and spec.dtype == value.dtype else None

    def map_producer_to_consumer(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Divide the pipeline: the part above runs in workers, the part below in trainers. Call it once.

        Each side overrides this; the base class raises NotImplementedError.
        """
        raise NotImplementedError

    def prefetch_to_consumer_device(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Prefetch elements to the trainer's device; the last step of a pipeline.

        Here, and so in a worker, the data set is returned as it is.
        """
        return dataset


def default_pipeline(context: PipelineContext) -> tf.data.Dataset:
    """Build the pipeline used if there is no function: the base's samples with their lengths, in padded batches.

    Raise SettingsError unless the base's elements are dicts; what the context's marker and TensorFlow raise passes.
    """
    dataset = context.padded_batch(context.add_lengths(context.base_dataset))
    return context.prefetch_to_consumer_device(context.map_producer_to_consumer(dataset))


def build_pipeline(function: Callable[[Any], Any], context: PipelineContext, where: str) -> tf.data.Dataset:
    """Call the function and return its data set.

    Raise SettingsError unless it called the marker exactly once and returned a `tf.data.Dataset`. Its own errors pass
    through.
    """
    dataset = function(context)
    # Without the call workers would run nothing, and after two it would be open which data set trainers get.
    require(
        context.marked == 1,
        expected="one call of context.map_producer_to_consumer(dataset)",
        got=f"{context.marked} calls",
        where=where,
        remedy="What is above it runs in workers, what is below in trainers: call it once.",
    )
    require(
        hasattr(dataset, "element_spec"),
        expected="a tf.data.Dataset to be returned",
        got=f"a {type(dataset).__name__}",
        where=where,
        remedy="Return what trainers are to iterate over.",
    )
    return dataset


def samples_dataset(fields: Sequence[Field], samples: Callable[[], Iterable[Any]] = tuple) -> tf.data.Dataset:
    """Return a data set of samples with these fields, which calls `samples` at each iteration; empty without fields."""
    import tensorflow as tf  # only where pipelines are built

    if not fields:
        return tf.data.Dataset.range(0)
    specs = {field.key: tf.TensorSpec(field.shape, field.dtype) for field in fields}
    return tf.data.Dataset.from_generator(samples, output_signature=specs)


def _dict_spec(dataset: tf.data.Dataset, asked: str) -> dict[str, Any]:
    """Return the spec of a data set whose elements are dicts; raise SettingsError if they are not."""
    spec = dataset.element_spec
    if isinstance(spec, dict):
        return spec
    raise SettingsError(
        expected="a data set whose elements are dicts",
        got=f"elements of the form {spec}",
        where=f"context.{asked}",
        remedy='Have a map before it return {"key": tensor, …}.',
    )


def with_plain_keys(dataset: tf.data.Dataset, where: str) -> tf.data.Dataset:
    """Return the data set with keys as they are below the marker: without colons, `size:key:axis` as a length.

    Return the same data set if no key has a colon or elements are no dicts. Raise SettingsError if two keys become the
    same.
    """
    spec = dataset.element_spec
    if not isinstance(spec, dict) or not any(":" in str(key) for key in spec):
        return dataset
    plain = [_plain_key(str(key)) for key in spec]
    if twice := sorted({key for key in plain if plain.count(key) > 1}):
        raise unfit(where, "each key once", f'"{twice[0]}" twice', "Lengths are called <key>_length: rename.")
    return dataset.map(lambda element: {_plain_key(str(key)): value for key, value in element.items()})


def _plain_key(key: str) -> str:
    """Return a key without colons: `size:key:axis` as `<key>_length` for axis 0, else as `<key>_length_<axis>`.

    In any other key each colon becomes an underscore.
    """
    kind, *rest = key.split(":")
    if kind != _SIZE or len(rest) != 2:
        return key.replace(":", "_")
    return f"{rest[0]}_length" if rest[1] == "0" else f"{rest[0]}_length_{rest[1]}"


def unfit(where: str, expected: str, got: str, remedy: str) -> SettingsError:
    """Return the SettingsError of a data set that cannot go through the marker; `where` is the pipeline's place."""
    return SettingsError(expected=expected, got=got, where=f"{where}, before map_producer_to_consumer", remedy=remedy)
