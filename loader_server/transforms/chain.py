"""The transforms of one stream, in order: what they make, how long it is, and making it.

Rules: what comes out is checked against what was declared, so a batch never meets another dtype or shape; a transform
that raises anything masks the sample, but input and output errors and exhausted memory pass on, for they say nothing
about it (see blame); random numbers come from the generator that is handed in. A chain that holds an undeclared
transform is `measured`: its fields are found while indexing and bound to it with `bound`. Nothing here knows of
sources, plans or batches.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import threading
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.building.blame import is_the_samples, told
from loader_server.transforms.characters import Characters, CharactersSettings
from loader_server.transforms.declare import declaration_of
from loader_server.transforms.logmel import LogMel, LogMelSettings
from loader_server.transforms.own_code import own_code
from shared.config import nearest, read_table
from shared.errors import ReadError, SampleError, SettingsError, StokerError
from shared.hashing import fingerprint, key_of
from shared.wire.layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from loader_server.transforms.declare import Declaration, LengthRule, Lengths, Transform
    from loader_server.transforms.own_code import OwnCode
    from shared.config import Table

__all__ = ["BUILT_INS", "Chain", "generator_for"]

#: The built-in transforms: their settings and how to make them from these and a place for messages.
BUILT_INS: Mapping[str, tuple[type[Any], Callable[[Any, str], Transform]]] = {
    "logmel": (LogMelSettings, LogMel),
    "characters": (CharactersSettings, Characters),
}

#: Raised whenever a built-in transform, or decoding, comes to give other bytes: workers of one job share it.
_BYTES_VERSION = 2

_ARRAYS = (np.ndarray, np.generic)

#: Packages whose version shapes the bytes of a sample.
_PACKAGES = ("numpy", "soundfile", "soxr")


def generator_for(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """The generator of one sample in one epoch: the same whoever builds it, however often."""
    return np.random.Generator(np.random.Philox(key=key_of("augment", seed, epoch, sample)))


@functools.cache
def _undrawn() -> np.random.Generator:
    return generator_for(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    name: str
    function: Transform
    declaration: Declaration | None
    identity: str
    #: The versions of installed packages that a user's own transform imports.
    packages: Mapping[str, str]
    draws: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The transforms of one stream, in order.

    `fields` are the values that come out; where the chain is `measured` and not yet bound, they are what would come out
    if the undeclared transforms changed nothing. `recipe` is the fingerprint of names, settings and source texts;
    `fingerprint` adds the versions of what shapes the bytes, ours and of packages.
    """

    steps: tuple[_Step, ...]
    raw: tuple[Field, ...]
    fields: tuple[Field, ...]
    recipe: str
    where: str
    asked: tuple[tuple[str, ...], dict[str, dict[str, Any]]]

    @staticmethod
    def make(names: tuple[str, ...], tables: Mapping[str, Table], where: str, raw: tuple[Field, ...]) -> Chain:
        """Find the transforms, read their sub-tables, and work out what they make of the raw fields."""
        for table in tables:
            _refuse_stray(table, names, where)
        steps = tuple(_step(name, tables.get(name, {}), where) for name in names)
        fields = raw
        for step in steps:
            fields = _after(fields, step, where)
        recipe = fingerprint(*(part for step in steps for part in (step.name, step.identity)))
        asked = (names, {name: dict(table) for name, table in tables.items()})
        return Chain(steps=steps, raw=raw, fields=fields, recipe=recipe, where=where, asked=asked)

    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (*self.asked, self.where, self.raw, self.fields)

    @property
    def measured(self) -> bool:
        """Whether some transform declares nothing, so that lengths are measured while indexing."""
        return any(step.declaration is None for step in self.steps)

    @property
    def fingerprint(self) -> str:
        """Of all that shapes the bytes which this chain makes."""
        own = {name: version for step in self.steps for name, version in step.packages.items()}
        versions = (f"{name} {version}" for name, version in sorted((own | _versions()).items()))
        return fingerprint(self.recipe, f"bytes {_BYTES_VERSION}", *versions)

    def generator(self, seed: int, epoch: int, sample: int) -> np.random.Generator:
        """The generator of one sample; one and the same for all where no transform draws, as making one costs 33 µs."""
        return generator_for(seed, epoch, sample) if any(step.draws for step in self.steps) else _undrawn()

    def bound(self, fields: tuple[Field, ...]) -> Chain:
        """The same chain with the fields that were found while indexing."""
        return replace(self, fields=fields)

    def lengths(self, raw_lengths: Lengths) -> dict[str, NDArray[np.int64]]:
        """The length of every padded field, from those of raw samples; undeclared transforms count as changing none."""
        lengths = dict(raw_lengths)
        for step in self.steps:
            if step.declaration is not None:
                rules = step.declaration.lengths
                lengths.update({key: _length(rules[key], lengths, f"{self.where}, {step.name}") for key in rules})
        return {field.key: np.asarray(lengths[field.key], np.int64) for field in self.fields if field.padded}

    def apply(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        """The values of all fields for one sample; a SampleError says why there are none."""
        made = self._transformed(sample, rng)
        return {field.key: _checked(field, made, self.where) for field in self.fields}

    def measure(
        self, sample: dict[str, Any], rng: np.random.Generator, where: str
    ) -> tuple[tuple[Field, ...], dict[str, int]]:
        """The fields of all that comes out, declared or not, and the lengths of the padded ones."""
        made = self._transformed(sample, rng)
        assumed = {field.key: field for field in self.fields}
        arrays = {key: value for key, value in made.items() if key in assumed or isinstance(value, _ARRAYS)}
        fields = tuple(_measured_field(key, value, assumed.get(key), where) for key, value in arrays.items())
        return fields, {field.key: len(made[field.key]) for field in fields if field.padded}

    def _transformed(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        for step in self.steps:
            sample = _applied(step, sample, rng, self.where)
        return sample


def _applied(step: _Step, sample: dict[str, Any], rng: np.random.Generator, where: str) -> dict[str, Any]:
    try:
        return _sample(step.function(sample, rng), sample)
    except (StokerError, MemoryError):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C, which no other thread gets
        raise _failed(step, error, where) from error


def _failed(step: _Step, error: BaseException, where: str) -> SampleError | ReadError:
    if is_the_samples(error):
        return SampleError(
            reason="transform",
            expected=f"the transform {step.name} to succeed",
            got=told(error),
            where=where,
            remedy="Mend the transform, or remove the sample.",
        )
    return ReadError(
        expected=f"the transform {step.name} to read what it needs",
        got=told(error),
        where=where,
        remedy="Make that file readable on every loader machine.",
    )


def _sample(returned: dict[str, Any] | None, changed: dict[str, Any]) -> dict[str, Any]:
    """What a transform made: what it returned, or what it changed in place."""
    if returned is None:
        return changed
    if not isinstance(returned, dict):
        raise TypeError(f"it has to return the sample, a dict, or None; it returned a {type(returned).__name__}")
    return returned


def _remade(
    names: tuple[str, ...], tables: Mapping[str, Table], where: str, raw: tuple[Field, ...], fields: tuple[Field, ...]
) -> Chain:
    return Chain.make(names, tables, where, raw).bound(fields)


def _refuse_stray(table: str, names: tuple[str, ...], where: str) -> None:
    if table in names and table in BUILT_INS:
        return
    raise SettingsError(
        expected="settings of a built-in transform of this stream" + nearest(table, BUILT_INS),
        got=f"the table {table}",
        where=where,
        remedy=f"Its transforms are {', '.join(names) or 'none'}; those with settings are {', '.join(BUILT_INS)}.",
    )


def _step(name: str, table: Table, where: str) -> _Step:
    packages: Mapping[str, str] = {}
    if name in BUILT_INS:
        kind, make = BUILT_INS[name]
        settings = read_table(kind, table, f"{where}, {name}")
        function = make(settings, f"{where}, {name}")
        identity = repr(sorted(asdict(settings).items()))
    else:
        function, code = _users(name, where)
        identity, packages = code.sources, code.packages
    return _Step(
        name=name,
        function=function,
        declaration=declaration_of(function),
        identity=identity,
        packages=packages,
        draws=name not in BUILT_INS,
    )


def _users(name: str, where: str) -> tuple[Transform, OwnCode]:
    """A user's function, and what it is made of."""
    place, _, attribute = name.partition(":")
    if not place or not attribute:
        raise SettingsError(
            expected=f"{', '.join(BUILT_INS)} or module:function" + nearest(name, BUILT_INS),
            got=f'"{name}"',
            where=f"{where}, transforms",
            remedy="Name a built-in transform, or a function of a module that can be imported.",
        )
    try:
        module = importlib.import_module(place)
    except Exception as error:
        raise SettingsError(
            expected=f'the module "{place}" to be importable',
            got=f"{type(error).__name__}: {error}",
            where=f"{where}, transforms",
            remedy="Install it, or start the loader in the folder that holds it.",
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SettingsError(
            expected=f'a function "{attribute}" in {place}' + nearest(attribute, dir(module)),
            got="nothing of that name" if function is None else f"a {type(function).__name__}",
            where=f"{where}, transforms",
            remedy="Mend the name.",
        )
    home = getattr(inspect.unwrap(function), "__module__", None)
    return function, own_code(sorted({place, home or place}))


def _after(fields: tuple[Field, ...], step: _Step, where: str) -> tuple[Field, ...]:
    """The fields after one step."""
    if step.declaration is None:
        return fields
    kept = {field.key: field for field in fields if field.key not in step.declaration.removes}
    for field in step.declaration.outputs:
        same_length = field.key not in step.declaration.lengths
        before = kept.get(field.key)
        if field.padded and same_length and (before is None or not before.padded):
            raise SettingsError(
                expected=f'a length of the padded output "{field.key}" of {step.name}',
                got="none declared",
                where=where,
                remedy=f'Declare lengths={{"{field.key}": …}}.',
            )
        inherits = same_length and field.per_second is None and before is not None
        kept[field.key] = replace(field, per_second=before.per_second) if inherits and before else field
    return tuple(kept.values())


def _checked(field: Field, made: Mapping[str, Any], where: str) -> NDArray[np.generic]:
    """The value of one field, of the dtype and shape that were declared."""
    value = made.get(field.key)
    if not field.shape and isinstance(value, bool | int | float):
        value = np.asarray(value, field.dtype)
    if not isinstance(value, _ARRAYS):
        raise _unfit("missing", field, f"{type(value).__name__}", where)
    if value.dtype != field.dtype:
        raise _unfit("dtype", field, f"{value.dtype} {list(value.shape)}", where)
    if len(value.shape) != len(field.shape) or any(
        want not in (None, got) for want, got in zip(field.shape, value.shape, strict=True)
    ):
        raise _unfit("shape", field, f"{value.dtype} {list(value.shape)}", where)
    return np.asarray(value)


def _unfit(reason: str, field: Field, got: str, where: str) -> SampleError:
    shape = ", ".join("any" if axis is None else str(axis) for axis in field.shape)
    return SampleError(
        reason=reason,
        expected=f'"{field.key}" as {field.dtype} [{shape}]',
        got=got,
        where=f"{where}, after the transforms",
        remedy="All samples must have one dtype and shape: mend the transform or its declaration.",
    )


def _measured_field(key: str, value: object, assumed: Field | None, where: str) -> Field:
    """As declared where it fits that; otherwise its first axis is padded."""
    if assumed is not None:
        with contextlib.suppress(SampleError):
            _checked(assumed, {key: value}, where)
            return replace(assumed, per_second=None)
    array = np.asarray(value)
    if str(array.dtype) not in DTYPES:
        raise SampleError(
            reason="dtype",
            expected=f'"{key}" of a dtype of {", ".join(sorted(DTYPES))}',
            got=str(array.dtype),
            where=where,
            remedy="Convert it in the transform, or remove the key.",
        )
    return Field(key=key, dtype=str(array.dtype), shape=(None, *array.shape[1:]) if array.ndim else ())


def _length(rule: LengthRule, lengths: Lengths, where: str) -> NDArray[np.int64]:
    """What a declared rule says of all samples, which may be one number for all."""
    try:
        made = np.asarray(rule(lengths))
    except KeyError as missing:
        raise SettingsError(
            expected=f"a length of {missing}",
            got=", ".join(lengths),
            where=where,
            remedy="The source has no such column: remove the transform, or add the column.",
        ) from None
    if not np.issubdtype(made.dtype, np.integer):
        raise SettingsError(
            expected="lengths that are whole numbers", got=str(made.dtype), where=where, remedy="Divide with //."
        )
    return np.broadcast_to(made.astype(np.int64), next(iter(lengths.values())).shape)


def _versions() -> dict[str, str]:
    import soundfile  # noqa: PLC0415 - slow to load, and only the version is wanted

    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {**versions, "libsndfile": soundfile.__libsndfile_version__}
