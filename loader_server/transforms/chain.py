"""The transforms of one stream, in order: applied to samples, with the fields and lengths of the results.

Rules: results are checked against the declarations, so a batch never meets another dtype or shape; a transform that
raises anything masks the sample, but input and output errors and exhausted memory are passed on, because they say
nothing about the sample (see blame); all transforms that draw random numbers for a sample share one generator, keyed
by seed, epoch and sample. A chain with an undeclared transform is `measured`: its fields are found while indexing and
bound to it with `bound`. Must not know sources, plans or batches.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.installed import version_of
from loader_server.sources.batch_columns import shown_axes
from loader_server.sources.blame import error_text, is_the_samples
from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.fields_after import fields_after
from loader_server.transforms.find import find_transforms
from loader_server.transforms.generators import generator_for
from loader_server.transforms.on_columns import OfColumns, column_of
from shared.errors import ReadError, SampleError, SettingsError, StokerError
from shared.hashing import fingerprint
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from loader_server.sources.batch_columns import Columns
    from loader_server.transforms.declare import LengthRule, Lengths
    from loader_server.transforms.find import NamedTransform
    from shared.settings.parsers import Table

__all__ = ["BYTES_VERSION", "Chain"]

_HERE = FilePlaces()

#: Version of the bytes, which all workers of a job must share: raise it whenever a built-in transform, or decoding,
#: gives other bytes than before.
BYTES_VERSION = 3

_ARRAYS = (np.ndarray, np.generic)

#: Packages whose version affects the bytes of every sample; transforms and sources name further ones.
_PACKAGES = ("numpy",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Transforms of one stream, in order.

    `fields` are the values of a result; while the chain is `measured` and not yet bound, they are what the values would
    be if the undeclared transforms changed nothing. `recipe` is the fingerprint of names, settings, files named in
    settings, and source texts; `fingerprint` adds the versions of all code that affects the bytes, ours and packages'.
    """

    steps: tuple[NamedTransform, ...]
    raw: tuple[Field, ...]
    fields: tuple[Field, ...]
    #: Whether some transform draws random numbers.
    draws: bool
    recipe: str
    where: str
    asked: tuple[tuple[str, ...], dict[str, dict[str, Any]], FilePlaces]

    @staticmethod
    def make(
        names: tuple[str, ...],
        tables: Mapping[str, Table],
        where: str,
        raw: tuple[Field, ...],
        places: FilePlaces = _HERE,
    ) -> Chain:
        """Find the transforms, read their sub-tables, and derive the fields of the result from the raw fields.

        Files that these tables name are looked for in `places`. Raise SettingsError if a name, a setting or a
        declaration does not fit, a transform cannot be imported or made, a file or package is missing, a padded output
        has no length, or statistics were made from other transforms. Raise DataError if a source of recordings that a
        setting names cannot be used. Other errors of `find_transforms` pass.
        """
        steps = find_transforms(names, tables, where, places)
        fields = raw
        for place, step in enumerate(steps):
            _refuse_other_statistics(step, steps[:place], where)
            fields = fields_after(fields, step, where)
        return Chain(
            steps=steps,
            raw=raw,
            fields=fields,
            draws=any(step.draws for step in steps),
            recipe=_recipe(steps),
            where=where,
            asked=(names, {name: dict(table) for name, table in tables.items()}, places),
        )

    # Pickle what the chain was made from, not the chain: a user's transform need not be picklable.
    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (self.asked, self.where, self.raw, self.fields)

    @property
    def measured(self) -> bool:
        """Return whether lengths are measured while indexing, because some transform does not declare all of them."""
        return any(step.outputs is None or step.outputs.measured for step in self.steps)

    @property
    def index_recipe(self) -> str:
        """Return the recipe of the transforms that an index depends on; empty if there are none.

        These are all transforms if lengths are measured; else those with `may_refuse`, and all before them.
        """
        if self.measured:
            return self.recipe
        refusing = [place for place, step in enumerate(self.steps, 1) if _may_refuse(step) is not None]
        return _recipe(self.steps[: refusing[-1]]) if refusing else ""

    @property
    def steady_recipe(self) -> str:
        """Return the recipe of the transforms that draw nothing."""
        return _steady_recipe(self.steps)

    @property
    def shaping(self) -> Iterator[str]:
        """Yield the identities of the transforms that declare lengths, and so change which batch a sample is in."""
        return (step.identity for step in self.steps if step.outputs is not None and step.outputs.lengths)

    @property
    def fingerprint(self) -> str:
        """Return a fingerprint of everything that affects the bytes of this chain's results."""
        return _fingerprint(self.steps)

    @property
    def packages(self) -> dict[str, str]:
        """Return the versions of the packages that the bytes depend on, by name."""
        return _packages(self.steps)

    @property
    def picture_key(self) -> str:
        """Return the key of the image that the first transform takes as a Picture as well; empty if it takes none."""
        return getattr(self.steps[0].call, "picture_key", "") if self.steps else ""

    @property
    def steady_steps(self) -> int:
        """Return the number of transforms before the first that draws random numbers; all of them if none draws."""
        # Up to here samples are equal in every epoch, so that their features can be kept on disk for later epochs.
        return next((place for place, step in enumerate(self.steps) if step.draws), len(self.steps))

    @property
    def steady_fingerprint(self) -> str:
        """Return a fingerprint of everything that affects the results of the transforms before the first that draws."""
        return _fingerprint(self.steps[: self.steady_steps])

    def bound(self, fields: tuple[Field, ...]) -> Chain:
        """Return a copy of the chain with the fields that were found while indexing."""
        return replace(self, fields=fields)

    def lengths(self, raw_lengths: Lengths) -> dict[str, NDArray[np.int64]]:
        """Return the lengths along every padded axis, given those of raw samples.

        If raw samples have none, a rule that gives a single number leaves it so, for as many samples as there are.
        Undeclared transforms count as changing no length, and lengths that are measured are left out. Raise
        SettingsError if a rule asks for a length that is missing, or does not give whole numbers, and KeyError if a
        padded field has none that could be measured. Other errors of the rules pass.
        """
        lengths = dict(raw_lengths)
        for step in self.steps:
            lengths |= self.foretold(step, lengths)
        keys = [key for field in self.fields for key in field.length_keys if key in lengths or not self.measured]
        return {key: np.asarray(lengths[key], np.int64) for key in keys}

    def doubtful(self, raw_lengths: Lengths) -> NDArray[np.bool_]:
        """Return which samples some transform may refuse, judging by lengths: those that its `may_refuse` returns.

        Raise SettingsError if a rule asks for a length that is missing, or gives lengths that are no whole numbers.
        Other errors of the rules pass.
        """
        lengths = dict(raw_lengths)
        found = np.zeros(len(next(iter(lengths.values()), ())), np.bool_)
        for step in self.steps:
            rule = _may_refuse(step)
            if rule is not None:
                found |= _applied(rule, lengths, f"{self.where}, {step.name}").astype(np.bool_)
            lengths |= self.foretold(step, lengths)
        return found

    def foretold(self, step: NamedTransform, lengths: Lengths) -> dict[str, NDArray[np.int64]]:
        """Return the lengths that one transform changes, given those before it; none if it is undeclared.

        Raise SettingsError if a rule asks for a length that is missing, or does not give whole numbers. Other errors of
        the rules pass.
        """
        rules = step.outputs.lengths if step.outputs is not None else {}
        return {key: _length(rules[key], lengths, f"{self.where}, {step.name}") for key in rules}

    def apply(self, sample: dict[str, Any], *, seed: int, epoch: int, number: int) -> dict[str, NDArray[np.generic]]:
        """Return the values of all fields for the sample of this number; raise SampleError if it cannot be used.

        Raise ReadError if a transform cannot read what it needs, or OverflowError or ValueError for a plain number that
        a field's dtype cannot hold; a MemoryError and other errors of ours pass.
        """
        return self.finish(sample, (seed, epoch, number))

    def begin(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample after the transforms before the first that draws, which is the same in each epoch.

        If no transform draws, return the values of all fields. Raise what `apply` raises.
        """
        for step in self.steps[: self.steady_steps]:
            sample = _apply(step, sample, None, self.where)
        return sample if self.steady_steps < len(self.steps) else dict(self._values(sample))

    def finish(
        self, sample: dict[str, Any], key: tuple[int, int, int], done: int = 0
    ) -> dict[str, NDArray[np.generic]]:
        """Return the values of all fields, with `done` transforms applied already; the key: seed, epoch and number.

        Raise what `apply` raises.
        """
        return dict(self._values(self._transform(sample, key, done)))

    def _values(self, made: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        return ((field.key, _checked(field, made, self.where)) for field in self.fields)

    def stages(
        self, sample: dict[str, Any], key: tuple[int, int, int], rng: np.random.Generator | None = None, done: int = 0
    ) -> Iterator[tuple[NamedTransform, dict[str, Any]]]:
        """Yield each transform from `done` on, with the sample after it; the key is seed, epoch and sample number.

        `rng` replaces the sample's own generator. Raise SampleError if a transform fails because of the sample, or
        ReadError if it cannot read what it needs; a MemoryError and other errors of ours pass.
        """
        rng = rng or (generator_for(*key) if self.draws else None)  # making a generator takes 33 µs
        for step in self.steps[done:]:
            sample = _apply(step, sample, rng, self.where)
            yield step, sample

    @property
    def takes_columns(self) -> bool:
        """Return whether all transforms also take a batch's samples at once, and none draws."""
        # Arrays that differ in two axes are written one by one anyway.
        if any(field.is_wide for field in self.fields):
            return False
        # Each sample has a generator of its own, so that a transform which draws cannot take several at once.
        return all(isinstance(step.call, OfColumns) and not step.draws for step in self.steps)

    def on_columns(self, columns: Columns) -> Columns:
        """Return the values of all fields for a batch's samples, equal to those of `apply` for each sample.

        The given columns are changed. Raise TypeError if a column is missing or lacks the declared dtype or shape; a
        transform may raise anything.
        """
        for step in self.steps:
            assert isinstance(step.call, OfColumns)
            step.call.on_columns(columns)
        return {field.key: column_of(field, columns) for field in self.fields}

    def measure(self, sample: dict[str, Any], number: int, where: str) -> tuple[tuple[Field, ...], dict[str, int]]:
        """Return the fields of everything in the result, declared or not, and the lengths of the padded ones.

        Values that are neither declared nor arrays do not count. Raise SampleError if a transform fails or a value has
        no usable dtype, ReadError if a transform cannot read what it needs, or OverflowError or ValueError for a plain
        number that its field's dtype cannot hold; a MemoryError and other errors of ours pass.
        """
        made = self._transform(sample, (0, 0, number))
        assumed = {field.key: field for field in self.fields}
        arrays = {key: value for key, value in made.items() if key in assumed or isinstance(value, _ARRAYS)}
        fields = tuple(_measured_field(key, value, assumed.get(key), where) for key, value in arrays.items())
        axes = (zip(field.length_keys, np.shape(made[field.key]), strict=False) for field in fields)
        return fields, {key: length for pairs in axes for key, length in pairs}

    def _transform(self, sample: dict[str, Any], key: tuple[int, int, int], done: int = 0) -> dict[str, Any]:
        for _, made in self.stages(sample, key, done=done):
            sample = made
        return sample


def _apply(step: NamedTransform, sample: dict[str, Any], rng: np.random.Generator | None, where: str) -> dict[str, Any]:
    """Return the sample after one transform.

    Our own errors and MemoryError are passed on, and Ctrl-C in the main thread; any other is raised as SampleError or
    ReadError (see `_failed`).
    """
    handed = step.refusing or rng
    assert handed is not None, "a transform that draws has its chain make a generator"
    try:
        return _sample(step.call(sample, handed), sample)
    except (StokerError, MemoryError):
        raise
    except BaseException as error:  # a user's code, and a panic in Rust is no Exception
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C, which Python raises in the main thread only: elsewhere the transform itself raised it
        raise _failed(step, error, where) from error


def _failed(step: NamedTransform, error: BaseException, where: str) -> SampleError | ReadError:
    """Return a SampleError, or a ReadError if the failure tells nothing about the sample."""
    if is_the_samples(error):
        return SampleError(
            reason="transform",
            expected=f"the transform {step.name} to succeed",
            got=error_text(error),
            where=where,
            remedy="Mend the transform, or remove the sample.",
        )
    return ReadError(
        expected=f"the transform {step.name} to read what it needs",
        got=error_text(error),
        where=where,
        remedy="Make that file readable on every loader machine.",
    )


def _sample(returned: dict[str, Any] | None, changed: dict[str, Any]) -> dict[str, Any]:
    """Return the sample after a transform: the dict that it returned, or the one that it changed in place.

    Raise a TypeError if it returned anything else.
    """
    if returned is None:
        return changed
    if not isinstance(returned, dict):
        raise TypeError(f"it has to return the sample, a dict, or None; it returned a {type(returned).__name__}")
    return returned


def _remade(
    asked: tuple[tuple[str, ...], dict[str, dict[str, Any]], FilePlaces],
    where: str,
    raw: tuple[Field, ...],
    fields: tuple[Field, ...],
) -> Chain:
    """Return a chain from its pickled form; raise what `Chain.make` raises."""
    names, tables, places = asked
    return Chain.make(names, tables, where, raw, places).bound(fields)


def _fingerprint(steps: Sequence[NamedTransform]) -> str:
    versions = (f"{name} {version}" for name, version in sorted(_packages(steps).items()))
    return fingerprint(_recipe(steps), f"bytes {BYTES_VERSION}", *versions)


def _packages(steps: Sequence[NamedTransform]) -> dict[str, str]:
    own = {name: version_of(name) for name in _PACKAGES}
    return {name: version for step in steps for name, version in step.packages.items()} | own


def _recipe(steps: Sequence[NamedTransform]) -> str:
    return fingerprint(*(part for step in steps for part in (step.name, step.identity)))


def _steady_recipe(steps: Sequence[NamedTransform]) -> str:
    """Return the recipe without transforms that draw.

    An evaluation stream, which does not augment, uses the statistics made for training.
    """
    return _recipe([step for step in steps if not step.draws])


def _refuse_other_statistics(step: NamedTransform, before: Sequence[NamedTransform], where: str) -> None:
    """Raise SettingsError if statistics were made from other transforms than those before this one.

    Transforms that draw do not count.
    """
    made_of = getattr(step.call, "made_of", None)
    if made_of is not None and made_of != _steady_recipe(before):
        raise SettingsError(
            expected=f"statistics of what {', '.join(earlier.name for earlier in before) or 'the source'} now makes",
            got="those of other transforms, or of other settings of these",
            where=f"{where}, {step.name}",
            remedy="Run loader-server index --statistics.",
        )


def _checked(field: Field, made: Mapping[str, Any], where: str) -> NDArray[np.generic]:
    """Return the value of one field; raise SampleError if it is missing, or lacks the declared dtype or shape.

    A plain number is converted for a field without axes; raise SampleError as well if the dtype cannot hold it.
    """
    value = made.get(field.key)
    if not field.shape and isinstance(value, bool | int | float):
        value = _converted(field, value, where)
    if not isinstance(value, _ARRAYS):
        raise _unfit("missing", field, f"{type(value).__name__}", where)
    if value.dtype != field.dtype:
        raise _unfit("dtype", field, f"{value.dtype} {list(value.shape)}", where)
    if len(value.shape) != len(field.shape) or any(
        want not in (None, got) for want, got in zip(field.shape, value.shape, strict=True)
    ):
        raise _unfit("shape", field, f"{value.dtype} {list(value.shape)}", where)
    return np.asarray(value)


def _converted(field: Field, value: float, where: str) -> NDArray[np.generic]:
    """Return a plain number in the field's dtype; raise SampleError if that cannot hold it, as no integer holds NaN."""
    try:
        array = np.asarray(value, field.dtype)
    except (OverflowError, ValueError):
        raise _unfit("dtype", field, str(value), where) from None
    # numpy would cut off a fraction without a word; floats round.
    if array.dtype.kind != "f" and array != value:
        raise _unfit("dtype", field, str(value), where)
    return array


def _unfit(reason: str, field: Field, got: str, where: str) -> SampleError:
    return SampleError(
        reason=reason,
        expected=f'"{field.key}" as {field.dtype} [{shown_axes(field.shape)}]',
        got=got,
        where=f"{where}, after the transforms",
        remedy="All samples must have one dtype and shape: mend the transform or its declaration.",
    )


def _measured_field(key: str, value: object, assumed: Field | None, where: str) -> Field:
    """Return the assumed field, without its time, if the value fits it, otherwise one whose first axis is padded.

    Raise SampleError if the value makes no array of a usable dtype.
    """
    if assumed is not None:
        with contextlib.suppress(SampleError):
            _checked(assumed, {key: value}, where)
            return replace(assumed, per_second=None)
    try:
        array = np.asarray(value)
        dtype = _dtype_name(array.dtype)
    except ValueError:  # of lists that are not equally long
        array, dtype = np.empty(0), "values of unequal lengths"
    if dtype not in DTYPES:
        raise SampleError(
            reason="dtype",
            expected=f'"{key}" of a dtype of {", ".join(sorted(DTYPES))}',
            got=dtype,
            where=where,
            remedy="Convert it in the transform, or remove the key.",
        )
    return Field(key=key, dtype=dtype, shape=(None, *array.shape[1:]) if array.ndim else ())


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the dtype's name; cached, because numpy takes 4 µs to find it."""
    return str(dtype)


def _may_refuse(step: NamedTransform) -> LengthRule | None:
    """Return a transform's rule that predicts from lengths which samples it may refuse, or None if it has none."""
    return getattr(step.call, "may_refuse", None)


def _length(rule: LengthRule, lengths: Lengths, where: str) -> NDArray[np.int64]:
    """Return the lengths by a declared rule, one for each sample even if the rule gives a single number.

    That number is returned if there are no lengths yet, from which to tell how many samples there are.

    Raise SettingsError unless they are whole numbers, one or as many as samples, or if the rule asks for a length that
    is missing. Other errors of the rule pass.
    """
    made = _applied(rule, lengths, where)
    if not np.issubdtype(made.dtype, np.integer):
        raise SettingsError(
            expected="lengths that are whole numbers", got=str(made.dtype), where=where, remedy="Divide with //."
        )
    # Samples of single values have no lengths, so only the caller knows how many there are.
    shape = next((column.shape for column in lengths.values()), made.shape)
    if made.size != 1 and made.shape != shape:
        raise SettingsError(
            expected=f"a length for each of {shape[0]} samples, or one for all",
            got=f"lengths of shape {list(made.shape)}",
            where=where,
            remedy="Mend the rule: it gets arrays, and computes with them.",
        )
    return np.broadcast_to(made.astype(np.int64), shape)


def _applied(rule: LengthRule, lengths: Lengths, where: str) -> NDArray[Any]:
    """Return what a rule makes of lengths; raise SettingsError if it asks for a length that is missing.

    Other errors of the rule pass.
    """
    try:
        return np.asarray(rule(lengths))
    except KeyError as missing:
        raise SettingsError(
            expected=f"a length of {missing}",
            got=", ".join(lengths),
            where=where,
            remedy="The source has no such column: remove the transform, or add the column.",
        ) from None
