"""`ServedEmbedding`: an embedding table that parameter servers hold, of which a trainer has the rows of its batch only.

Rules: the layer allocates nothing for its table. It finds the ids that a batch has, each once, asks its source for
their rows, and a training step computes gradients of these rows. Its source is whatever has them: servers, a
checkpoint, or, before either is known, the rows as they are made. A step that does not collect gradients of rows cannot
train the table, so the layer refuses it. It must not know servers or checkpoints.
"""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from shared.errors import SettingsError
from shared.wire.message_parts import TableForm
from trainer_client.layers.initial_rows import initial_rows, key_of_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Lookup", "RowSource", "ServedEmbedding", "collecting_lookups", "refuse_tables", "tables_in"]

#: Initializers by the names that Keras has for them: kind and its two numbers. "uniform" is what its Embedding has.
_NAMED = {
    "uniform": ("uniform", -0.05, 0.05),
    "random_uniform": ("uniform", -0.05, 0.05),
    "normal": ("normal", 0.0, 0.05),
    "random_normal": ("normal", 0.0, 0.05),
    "zeros": ("constant", 0.0, 0.0),
    "ones": ("constant", 1.0, 0.0),
}


class Lookup(NamedTuple):
    """The rows of one table that a step has looked up."""

    table: str
    #: Each id once.
    ids: Any
    rows: Any


class RowSource(Protocol):
    """A source of a table's rows."""

    def rows(self, form: TableForm, ids: NDArray[np.int64], *, training: bool) -> NDArray[np.float32]:
        """Return a row for each id, in order; `training` says that gradients follow. Errors are the source's own."""
        ...


class _InitialRows:
    """The source of a table that nobody has trained yet."""

    def rows(self, form: TableForm, ids: NDArray[np.int64], *, training: bool) -> NDArray[np.float32]:
        """Return the rows as they are made, whether in training or not."""
        del training
        return initial_rows(form, ids)


@keras.saving.register_keras_serializable("stoker")
class ServedEmbedding(keras.layers.Layer):  # type: ignore[misc] # Keras has no types
    """An embedding table for `--strategy parameter-server` that is in no worker: servers hold its rows.

    Args:
        name: Of the table and the layer, which no other table or layer has.
        dim: How many numbers a row has.
        initializer: How a row is made when its id is first met: "uniform" (-0.05 to 0.05), "normal" (deviation 0.05),
            "zeros", "ones", or Keras's own RandomUniform, RandomNormal or Constant, of which a seed counts for nothing.
        rows: Ids are from 0 up to, but not including, this; without it any 64-bit integer is an id.
        seed: For other rows; a row depends on it, the name and its id alone.
        mask_zero: Whether the id 0 stands for padding, as in Keras's own Embedding.
        **named: Keras's own, such as `dtype`.

    Raises:
        SettingsError: The name is empty, a number is impossible, or an initializer is of another kind.

    Example:
        >>> import tensorflow as tf
        >>> from trainer_client.layers import ServedEmbedding
        >>> words = ServedEmbedding("words", 8)
        >>> words(tf.constant([[3, 2**40]], tf.int64)).shape
        TensorShape([1, 2, 8])
        >>> words.weights
        []
    """

    def __init__(  # noqa: PLR0913 - as users write it
        self,
        name: str,
        dim: int,
        initializer: Any = "uniform",
        *,
        rows: int | None = None,
        seed: int = 0,
        mask_zero: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(name=name, **named)
        kind, first, second = _initializer(initializer)
        for what, value, least, most in (
            ("dim", dim, 1, 2**16),
            ("rows", rows, 1, 2**40),
            ("seed", seed, 0, 2**64 - 1),
        ):
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise _unfit(f"{what} from {least} to {most}", repr(value), "Give the layer another one.")
        #: The table's description, which servers get.
        self.form = TableForm(name, dim, rows, seed, kind, first, second)
        self._initializer = initializer
        self._mask_zero = mask_zero
        #: Where rows come from.
        self.source: RowSource = _InitialRows()
        #: Ids, rising, and rows of the whole table, if the layer holds it.
        self._held: tuple[Any, Any] | None = None

    def call(self, ids: Any, training: bool | None = None) -> Any:  # noqa: FBT001 - as Keras calls it
        """Return the rows of these ids, in a tensor with one axis more.

        In a training step that is none of `--strategy parameter-server`, Keras raises RuntimeError with our words.
        Errors of the source of rows, as of lost servers, reach the caller as TensorFlow's.

        Args:
            ids: Integers, in a tensor of any shape.
            training: Whether a step is taken, of which rows get gradients.

        Returns:
            The rows, in the layer's compute dtype.
        """
        ids = tf.cast(ids, tf.int64)
        unique, places = tf.unique(tf.reshape(ids, [-1]))
        rows = self._looked_up(unique, training) if self._held is None or training else self._held_rows(unique)
        taken = tf.gather(rows, places)
        return tf.cast(tf.reshape(taken, tf.concat([tf.shape(ids), [self.form.dim]], 0)), self.compute_dtype)

    def _looked_up(self, unique: Any, training: bool | None) -> Any:  # noqa: FBT001 - as above
        def ask(ids: NDArray[np.int64]) -> NDArray[np.float32]:
            # The source of the moment: it may be another one than when the graph was traced.
            return self.source.rows(self.form, ids, training=bool(training))

        rows = tf.ensure_shape(tf.numpy_function(ask, [unique], tf.float32), [None, self.form.dim])
        if training:
            _note_lookup(Lookup(self.form.name, unique, rows))
        return rows

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the shape of the rows of ids with this shape.

        Args:
            shape: Of the ids.

        Returns:
            The same with one axis more.
        """
        return (*shape, self.form.dim)

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        """Return where ids are not 0, or None if that is an id as any other.

        Args:
            ids: As for `call`.
            mask: Of the ids, which counts for nothing.

        Returns:
            A tensor of booleans, or None.
        """
        del mask
        return keras.ops.not_equal(ids, 0) if self._mask_zero else None

    def get_config(self) -> dict[str, Any]:
        """Return the configuration for `from_config`, which makes an equal layer, without any rows that it holds.

        Returns:
            A dict of plain values.
        """
        form, own = self.form, self._initializer
        return {
            **super().get_config(),
            "dim": form.dim, "initializer": own if isinstance(own, str) else keras.initializers.serialize(own),
            "rows": form.rows, "seed": form.seed, "mask_zero": self._mask_zero,
        }  # fmt: skip

    # --- a table that the layer holds, for an export ---

    def hold(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Have the layer hold a whole table, to be exported with the model; it is not trained from then on.

        Args:
            ids: Of the rows that were trained, rising. Any other row is made anew.
            rows: One for each of them.
        """
        self._tracker.unlock()  # a layer that is built takes no weights otherwise
        self._held = tuple(
            self.add_weight(shape=array.shape, dtype=dtype, trainable=False, name=name, initializer="zeros")
            for name, dtype, array in (("ids", "int64", ids), ("rows", "float32", rows))
        )
        for weight, array in zip(self._held, (ids, rows), strict=True):
            weight.assign(array)
        self._tracker.lock()

    def load_own_variables(self, store: Any) -> None:
        """Hold the table that a saved model brings, if it brings one; Keras calls it.

        Args:
            store: What `save_own_variables` of Keras wrote.
        """
        if "0" in store:
            self.hold(np.asarray(store["0"], np.int64), np.asarray(store["1"], np.float32))

    def _held_rows(self, unique: Any) -> Any:
        """Return rows of the table that is held, and others as they are made, all in the graph, so as to be saved."""
        assert self._held is not None
        ids, rows = (tf.convert_to_tensor(weight.value) for weight in self._held)
        made = _initial_rows_in_graph(self.form, unique)
        count = tf.shape(ids)[0]
        # An empty table has no row to gather, not even one that is not used.
        ids, rows = tf.pad(ids, [[0, 1]]), tf.pad(rows, [[0, 1], [0, 0]])
        places = tf.searchsorted(ids[:count], unique)
        is_there = (places < count) & (tf.gather(ids, places) == unique)
        return tf.where(is_there[:, tf.newaxis], tf.gather(rows, places), made)


def tables_in(model: Any) -> list[ServedEmbedding]:
    """Return the served tables of a model, each once, in the order of its layers."""
    layers = model._flatten_layers(include_self=True)  # noqa: SLF001 - `layers` has the outer ones only
    return list({id(layer): layer for layer in layers if isinstance(layer, ServedEmbedding)}.values())


def refuse_tables(model: Any) -> None:
    """Raise SettingsError if the model has served tables: they would silently not be trained."""
    for table in tables_in(model):
        raise _not_trained(table.name)


def _not_trained(table: str) -> SettingsError:
    return _unfit(
        "--strategy parameter-server, whose servers hold the table", f"another way to train {table}",
        "Train with `trainer-client train --strategy parameter-server`, or take keras.layers.Embedding.",
    )  # fmt: skip


# --- lookups of a step ---

#: The lookups of the step that this thread traces or takes, with their tape.
_COLLECTING = threading.local()


@contextmanager
def collecting_lookups(tape: Any, *, is_on: bool) -> Iterator[list[Lookup]]:
    """Yield a list that gets what tables look up in training within the block, in this thread; the tape watches rows.

    If it is not on, the list stays empty, and tables that are looked up there in training raise SettingsError.
    """
    before, collected = getattr(_COLLECTING, "now", None), list[Lookup]()
    _COLLECTING.now = (tape, collected) if is_on else None
    try:
        yield collected
    finally:
        _COLLECTING.now = before


def _note_lookup(lookup: Lookup) -> None:
    """Note a lookup of the step in hand, whose tape watches its rows from now on.

    Raise SettingsError if the step collects none: the table would silently not be trained.
    """
    now = getattr(_COLLECTING, "now", None)
    if now is None:
        raise _not_trained(lookup.table)
    tape, collected = now
    tape.watch(lookup.rows)
    collected.append(lookup)


# --- initial rows ---


def _initializer(given: Any) -> tuple[str, float, float]:
    """Return an initializer's kind and numbers; raise SettingsError for other kinds, ValueError for a dict of none."""
    if isinstance(given, dict):  # of a saved model
        given = keras.initializers.get(given)
    if isinstance(given, str) and given in _NAMED:
        return _NAMED[given]
    own = keras.initializers
    numbers: tuple[str, Any, Any] | None = None
    match given:
        case own.RandomUniform():
            numbers = ("uniform", given.minval, given.maxval)
        case own.RandomNormal():
            numbers = ("normal", given.mean, given.stddev)
        case own.Constant():
            numbers = ("constant", given.value, 0.0)
        case own.Zeros() | own.Ones():
            numbers = ("constant", float(isinstance(given, own.Ones)), 0.0)
    if numbers is None or not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers[1:]):
        raise _unfit(
            f"an initializer whose rows depend on their ids alone: {', '.join(_NAMED)}, or Keras's RandomUniform, "
            "RandomNormal or Constant with plain numbers", str(given), "Take one of these.",
        )  # fmt: skip
    return numbers[0], float(numbers[1]), float(numbers[2])


def _initial_rows_in_graph(form: TableForm, ids: Any) -> Any:
    """Return what `initial_rows` does, but by TensorFlow's own operations, so that an exported model has them."""
    if form.initializer == "constant":
        return tf.fill([tf.shape(ids)[0], form.dim], tf.constant(form.first, tf.float32))
    key = key_of_table(form)
    words = _hashed_in_graph(tf.bitcast(ids, tf.uint64), key)[:, tf.newaxis] + tf.bitcast(
        tf.range(form.dim, dtype=tf.int64), tf.uint64
    )
    fractions = _fractions_in_graph(_hashed_in_graph(words, key))
    if form.initializer == "uniform":
        return tf.cast(form.first + (form.second - form.first) * fractions, tf.float32)
    angles = _fractions_in_graph(_hashed_in_graph(words, ~key & (2**64 - 1)))
    normal = tf.sqrt(-2.0 * tf.math.log(fractions)) * tf.cos(2 * math.pi * angles)
    return tf.cast(form.first + form.second * normal, tf.float32)


def _hashed_in_graph(words: Any, key: int) -> Any:
    mixed = words * _word(0x9E3779B97F4A7C15) + _word(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, _word(shift))) * _word(factor)
    return tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, _word(31)))


def _word(number: int) -> Any:
    return tf.constant(number, tf.uint64)


def _fractions_in_graph(words: Any) -> Any:
    # By way of int64, as few casts are there for uint64; 52 bits are no negative number.
    return (tf.cast(tf.bitcast(tf.bitwise.right_shift(words, _word(12)), tf.int64), tf.float64) + 0.5) * (2.0**-52)


def _unfit(expected: str, got: str, remedy: str) -> SettingsError:
    return SettingsError(expected=expected, got=got, where="ServedEmbedding", remedy=remedy)
