"""What all replicas have to have alike: gradients of the same variables, and the same values of the variables.

Rules: a graph has the gradients that it was traced with, so one look at each trace is enough. Variables are compared by
hash, and copied from the first replica bit by bit, the optimizer's too; all processes do so at the same step. One that
lies in one place is the same for all of its process. What a run begins with besides is compared by hash as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf
import xxhash

from shared.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "Towers",
    "broadcast_from_first",
    "of_values",
    "refuse_other_beginning",
    "refuse_unequal",
    "refuse_unsynchronised",
    "times",
    "times_phrase",
]

#: How many variables an error names.
_NAMED = 5
#: How many bytes are sent to other processes at a time, unless a variable is larger.
_AT_ONCE_BYTES = 2**26


class Towers:
    """The towers of this process, and which gradients each has, while a step is traced."""

    def __init__(self, model: Any) -> None:
        self._model = model
        #: For each tower, whether each variable has a gradient there.
        self._having: list[list[bool]] = []

    def begin(self) -> None:
        """Forget the variables that had gradients, as the step is traced anew."""
        self._having = []

    def note(self, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Note which gradients a tower has.

        Return that as 1 or 0 for each variable, and all gradients, with zeros for the missing ones.
        """
        having = [gradient is not None for gradient in gradients]
        self._having.append(having)
        whole = [
            tf.zeros_like(variable.value) if gradient is None else gradient
            for gradient, variable in zip(gradients, self._model.trainable_variables, strict=True)
        ]
        return tf.constant(having, tf.float32), whole

    def refuse_different_here(self) -> None:
        """Raise SettingsError if towers of this process have gradients of different variables."""
        self._refuse_odd([at for at, column in enumerate(zip(*self._having, strict=True)) if len(set(column)) > 1])

    def refuse_different(self, replicas: int, counts: Sequence[float]) -> None:
        """Raise SettingsError if some, but not all, of the `replicas` have a gradient of a variable.

        `counts` is how many have one, for each variable.
        """
        self._refuse_odd([at for at, count in enumerate(counts) if count not in (0, replicas)])

    def _refuse_odd(self, odd: Sequence[int]) -> None:
        """Raise SettingsError if there are any odd variables, given by their places among the trained ones.

        It names them, and for each tower here those of which it has a gradient.
        """
        if not odd:
            return
        names = {at: self._model.trainable_variables[at].path for at in odd}
        towers = [
            f"tower {tower} has one for {', '.join(name for at, name in names.items() if having[at]) or 'none'}"
            for tower, having in enumerate(self._having)
        ]
        raise SettingsError(
            expected=f"gradients of the same variables in all towers, or in none: {', '.join(names.values())}",
            got="; ".join(towers), where="--model", remedy="Let the model compute the same on each replica.",
        )  # fmt: skip


def times(gradient: Any, factor: Any) -> Any:
    """Return the gradient multiplied by `factor`, a sparse one's values only; None stays None."""
    if gradient is None or (isinstance(factor, int | float) and factor == 1):
        return gradient
    return of_values(gradient, lambda values: values * tf.cast(factor, values.dtype))


def of_values(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """Return the gradient with its values changed by a function, whose errors pass; a sparse one keeps its indices."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def times_phrase(factor: float) -> str:
    """Return "; gradients times" and the factor as a whole number, as one text; empty for 1."""
    return "" if factor == 1 else f"; gradients times {factor:.0f}"


# --- equal beginnings, equal variables ---


def refuse_other_beginning(
    strategy: tf.distribute.Strategy, parts: Mapping[str, str], processes: int, process: int
) -> None:
    """Raise DataError if a part that a run begins with is not the same in all processes; `parts` are texts by name.

    This is process `process` of `processes`, and names are the same in all; if it is alone, do nothing. TensorFlow's
    error of a lost process is passed on.
    """
    if processes == 1:
        return
    digests = _of_all(strategy, [_hash(text.encode()) for text in parts.values()], processes, process)
    odd = [name for name, of_all in zip(parts, digests, strict=True) if len(set(of_all)) > 1]
    if odd:
        # All of them differ from those of a process that begins anew.
        named = odd[0] if odd[0] == "checkpoint" else ", ".join(odd)
        raise DataError(
            expected=f"a run that begins alike in its {processes} processes",
            got=f"another {named} in some of them; here it is {parts[odd[0]]}",
            where="--strategy",
            remedy="Let all processes read the same checkpoint folder.",
        )


def refuse_unequal(strategy: tf.distribute.Strategy, model: Any, processes: int, process: int) -> None:
    """Raise DataError for variables that differ between replicas; this is process `process` of `processes`.

    The optimizer's variables are compared too. Those that each replica counts on its own are exempt. TensorFlow's error
    of a lost process is passed on.
    """
    variables = _equal_variables(model)
    digests = [[_digest(copy) for copy in strategy.experimental_local_results(each.value)] for each in variables]
    if processes > 1:
        # A process whose own replicas differ takes part all the same, with a hash of all: the others would wait for it.
        own = [here[0] if len(set(here)) == 1 else _hash(repr(here).encode()) for here in digests]
        _refuse_odd(f"the {processes} processes", variables, _of_all(strategy, own, processes, process))
    _refuse_odd("the replicas of this process", variables, digests)


def broadcast_from_first(strategy: tf.distribute.Strategy, model: Any, processes: int, process: int) -> list[str]:
    """Copy variables from the first replica to all others; return the paths of all that differed in this process.

    This is process `process` of `processes`. The optimizer's variables are copied too, and those that each replica
    counts on its own are not. TensorFlow's error of a lost process is passed on.
    """
    changed = []
    for variables in _parts_of(_equal_variables(model)):
        values = [strategy.experimental_local_results(each.value)[0].numpy() for each in variables]
        if processes > 1:
            values = _values_of_first(strategy, values, is_first=process == 0)
        for variable, value in zip(variables, values, strict=True):
            copies = strategy.experimental_local_results(variable.value)
            odd = [copy for copy in copies if copy.numpy().tobytes() != value.tobytes()]
            for copy in odd:
                copy.assign(value)
            if odd:
                changed.append(variable.path)
    return changed


def _equal_variables(model: Any) -> list[Any]:
    """Return the variables that are the same on all replicas, the optimizer's too."""
    return [each for each in (*model.variables, *model.optimizer.variables) if not _differs_by_design(each)]


def _parts_of(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the variables in parts of at most `_AT_ONCE_BYTES`; a larger variable is a part of its own."""
    part: list[Any] = []
    size = 0
    for variable in variables:
        nbytes = int(np.prod(variable.shape, dtype=np.int64)) * variable.value.dtype.size
        if part and size + nbytes > _AT_ONCE_BYTES:
            yield part
            part, size = [], 0
        part.append(variable)
        size += nbytes
    if part:
        yield part


def _values_of_first(
    strategy: tf.distribute.Strategy, values: Sequence[NDArray[np.generic]], *, is_first: bool
) -> list[NDArray[np.generic]]:
    """Return the first process's values, exactly, of any dtype; all processes have values of the same forms.

    TensorFlow's error of a lost process is passed on.
    """
    # As integers: a sum of floats with zeros would lose the sign of a zero, and there is none of every dtype.
    own = b"".join(value.tobytes() for value in values)
    bits = np.frombuffer(own + bytes(-len(own) % 8), np.int64)
    summed = _sum_of_all(strategy, bits if is_first else np.zeros_like(bits)).tobytes()
    ends = np.cumsum([value.nbytes for value in values]).tolist()
    return [
        np.frombuffer(summed[end - value.nbytes : end], value.dtype).reshape(value.shape)
        for value, end in zip(values, ends, strict=True)
    ]


def refuse_unsynchronised(model: Any) -> None:
    """Raise SettingsError for variables of which replicas have no copies that could be kept equal.

    Trained variables and those of the optimizer are checked.
    """
    alone = [
        variable.path
        for variable in (*model.trainable_variables, *model.optimizer.variables)
        if not getattr(variable.value, "is_distributed_variable", False)
    ]
    if alone:
        raise SettingsError(
            expected="variables of which each replica has a copy", got=_named(alone), where="--model",
            remedy="They were made outside the strategy's scope, while the module was imported perhaps: make them in "
            "model() and optimizer(), or in a layer's build().",
        )  # fmt: skip


def _differs_by_design(variable: Any) -> bool:
    # Each replica counts on its own in these, and they are combined only when they are read.
    return bool(variable.value.synchronization == tf.VariableSynchronization.ON_READ)


def _digest(value: Any) -> int:
    return _hash(np.ascontiguousarray(value.numpy()).tobytes())


def _hash(data: bytes) -> int:
    return int(np.uint64(xxhash.xxh3_64_intdigest(data)).astype(np.int64))


def _of_all(strategy: tf.distribute.Strategy, own: Sequence[int], processes: int, process: int) -> list[list[int]]:
    """Return each number of this process with those of the others in its place, in the order of processes.

    TensorFlow's error of a lost process is passed on.
    """
    # Each process fills its own column, so that one sum gives all numbers to all processes.
    table = np.zeros((len(own), processes), np.int64)
    table[:, process] = own
    return cast("list[list[int]]", _sum_of_all(strategy, table).tolist())


def _refuse_odd(who: str, variables: Sequence[Any], digests: Sequence[Sequence[int]]) -> None:
    odd = [each.path for each, all_of_it in zip(variables, digests, strict=True) if len(set(all_of_it)) > 1]
    if odd:
        raise DataError(
            expected="the same variables on all replicas", got=f"others in {who}: {_named(odd)}", where="--strategy",
            remedy="Let all processes read the same checkpoint folder. If a layer or callback assigns variables, let "
            "it assign the same on each replica.",
        )  # fmt: skip


def _named(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _sum_of_all(strategy: tf.distribute.Strategy, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of an array over all processes, by an all-reduce.

    TensorFlow's error of a lost process is passed on.
    """
    # The all-reduce is over replicas, so of each process only the first contributes, and the others add zeros.
    others = strategy.extended.worker_devices[1:]

    def summed(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

    @tf.function(autograph=False)  # type: ignore[untyped-decorator] # TensorFlow has no types
    def summed_of_all(values: Any) -> Any:
        return strategy.run(summed, (values,))

    left = iter([own, *(np.zeros_like(own) for _ in others)])
    values = strategy.experimental_distribute_values_from_function(lambda _context: tf.constant(next(left)))
    return cast("NDArray[np.int64]", strategy.experimental_local_results(summed_of_all(values))[0].numpy())
