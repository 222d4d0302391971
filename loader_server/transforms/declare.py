"""Declarations of transforms: what each makes and needs, so that batches can be planned before anything is built.

A transform is called with `(sample, rng)`: it changes the dict `sample` in place, or returns another one. A decorator
declares it:

    from loader_server.transforms import transform

    @transform()                                       # changes values, but no key, dtype, shape or length
    def noise(sample, rng):
        sample["audio"] += 0.01 * rng.standard_normal(len(sample["audio"]), dtype="float32")

    @transform({"audio": ("float32", None, 160)}, lengths={"audio": lambda lengths: lengths["audio"] // 160})
    def framed(sample, rng): ...

An output is its dtype, then its axes; None is a padded one: the first, or the first two.

A length is exact, or an upper bound: the batch carries the real one as `<key>_length`. Lengths that depend on `rng`
need an upper bound. Functions of lengths are called with int64 arrays, one number a sample: of the keys made so far
and of the raw sample (of recordings: `audio` in frames, `audio_rate` in hertz, `text` in characters). With
`measured=True`, and without the decorator, outputs and lengths are found while indexing.

A transform draws random numbers unless it declares `draws=False`. Its `settings` are a frozen dataclass of
`setting(...)` fields, read from its table in the job file. A function with settings is called with
`(sample, rng, settings=...)`. A class is constructed once in each process, with its settings if it has any, and the
instance is called; if outputs depend on settings, it sets `self.outputs`. Files that it reads are settings with the
parser `file`: their content counts as other settings do. `packages` are installed packages whose version changes the
bytes. `processor_safe` promises that native packages beyond numpy and soxr give the same bytes on each processor that
a job's setting `processor` admits.

Rules: pure; a declaration is checked when it is made. A built-in transform registers itself by `built_in`, with its
name in job files; this module imports none.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SettingsError
from shared.settings.tables import placing
from shared.wire.batch_layout import DTYPES, Field

__all__ = [
    "BUILT_INS",
    "Declaration",
    "FieldRule",
    "LengthRule",
    "Lengths",
    "Outputs",
    "Transform",
    "built_in",
    "declaration_of",
    "transform",
]

Lengths: TypeAlias = Mapping[str, NDArray[np.int64]]
#: Raises a SettingsError for a field that the transform cannot take.
FieldRule: TypeAlias = Callable[[Field], Field]
LengthRule: TypeAlias = Callable[[Lengths], NDArray[np.int64]]
Transform: TypeAlias = Callable[[dict[str, Any], np.random.Generator], "dict[str, Any] | None"]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The outputs of a transform: fields that are new or differ, lengths that differ, keys that are gone.

    `changes` are for those whose dtype or axes follow from the field before: what each key's field becomes.
    """

    fields: tuple[Field, ...] = ()
    lengths: Mapping[str, LengthRule] = field(default_factory=dict)
    removes: tuple[str, ...] = ()
    changes: Mapping[str, FieldRule] = field(default_factory=dict)
    #: Whether lengths are found while indexing: those of `fields` do not follow from lengths before.
    measured: bool = False

    @staticmethod
    def of(
        outputs: Mapping[str, tuple[Any, ...]] | None = None,
        *,
        lengths: Mapping[str, LengthRule] | None = None,
        per_second: Mapping[str, float] | None = None,
        removes: tuple[str, ...] = (),
        measured: bool = False,
    ) -> Outputs:
        """Return outputs in the form that `transform` takes, for classes whose outputs depend on their settings.

        Raise SettingsError for a dtype or axes that cannot be used, or if `removes` is a single text, or has a name
        that is empty or no text.
        """
        return Outputs(
            fields=tuple(_field(key, spec, (per_second or {}).get(key)) for key, spec in (outputs or {}).items()),
            lengths=dict(lengths or {}),
            removes=_names("removes", removes, example="audio"),
            measured=measured,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A transform's declaration. Without outputs it is measured while indexing."""

    outputs: Outputs | None = None
    draws: bool = True
    settings: type[Any] | None = None
    packages: tuple[str, ...] = ()
    processor_safe: bool = False


def transform(  # noqa: PLR0913 - what a transform may say of itself, each by name
    outputs: Mapping[str, tuple[Any, ...]] | None = None,
    *,
    lengths: Mapping[str, LengthRule] | None = None,
    per_second: Mapping[str, float] | None = None,
    removes: tuple[str, ...] = (),
    measured: bool = False,
    draws: bool = True,
    settings: type[Any] | None = None,
    packages: Iterable[str] = (),
    processor_safe: bool = False,
) -> Callable[[_F], _F]:
    """Declare a transform; raise SettingsError for a declaration that contradicts itself or cannot be read.

    Args:
        outputs: New or changed keys: dtype, then axes, None for a padded first one, or two.
        lengths: Functions that give the lengths of padded keys, and as `<key>_width` those of a second padded axis.
        per_second: How many steps of a key make a second, if its length changes.
        removes: Keys that the transform deletes.
        measured: Find lengths while indexing instead of declaring them, and without `outputs` these as well.
        draws: Whether the transform draws random numbers.
        settings: Frozen dataclass of `setting(...)` fields.
        packages: Installed packages whose version changes the bytes.
        processor_safe: Whether native packages that it uses give the same bytes on each processor of a job's level.

    Returns:
        The decorator, which raises that error, or returns the function with its declaration attached.
    """
    # Lengths that are measured need no rule, and with outputs that are measured there is nothing to declare.
    given = lengths or per_second or (removes and not outputs)

    def declare(function: _F) -> _F:
        with placing(f"the declaration of {_name_of(function)}"):
            if measured and given:
                raise SettingsError(
                    expected="measured=True alone, or with outputs whose lengths are measured",
                    got="lengths" if lengths else "per_second" if per_second else "removes without outputs",
                    where="",
                    remedy="What is declared need not be measured: leave one of them out. With measured=True alone, a "
                    "key that the transform deletes is gone without removes.",
                )
            _refuse_unread(function, settings)
            made = Outputs.of(outputs, lengths=lengths, per_second=per_second, removes=removes, measured=measured)
            function.declaration = Declaration(  # type: ignore[attr-defined]
                outputs=None if measured and not outputs else made,
                draws=draws,
                settings=settings,
                packages=_names("packages", packages, example="soxr"),
                processor_safe=processor_safe,
            )
        return function

    return declare


#: Built-in transforms whose modules were imported, by their names in a job file.
BUILT_INS: dict[str, Callable[..., Any]] = {}


def built_in(name: str) -> Callable[[_F], _F]:
    """Return a decorator that registers a transform under its name in job files, which has no module part.

    The decorator raises an AssertionError if the name is taken.
    """

    def register(function: _F) -> _F:
        if name in BUILT_INS:
            raise AssertionError(f"two transforms are called {name}: {_name_of(BUILT_INS[name])}, {_name_of(function)}")
        BUILT_INS[name] = function
        return function

    return register


def declaration_of(function: object) -> Declaration:
    """Return a transform's declaration; without any, one that is measured, and may draw."""
    found = getattr(function, "declaration", None)
    return found if isinstance(found, Declaration) else Declaration()


def _name_of(function: object) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"


def _refuse_unread(function: Callable[..., Any], settings: type[Any] | None) -> None:
    """Raise SettingsError for settings that cannot be read from a job file, or a transform that does not take them."""
    if settings is None:
        return
    if not _is_of_settings(settings):
        raise SettingsError(
            expected="settings that are a frozen dataclass of setting(…) fields",
            got=repr(settings),
            where="",
            remedy='Write for instance @dataclass(frozen=True) and level: float = setting(number(0), "loudness").',
        )
    if not inspect.isclass(function) and "settings" not in inspect.signature(function).parameters:
        raise SettingsError(
            expected="a function (sample, rng, settings), as it declares settings",
            got=f"{function.__name__}{inspect.signature(function)}",
            where="",
            remedy="Add the parameter settings, or write a class.",
        )


def _is_of_settings(kind: object) -> bool:
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return False
    frozen = kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen and all({"parse", "help"} <= field.metadata.keys() for field in dataclasses.fields(kind))


def _names(what: str, names: Iterable[str], *, example: str) -> tuple[str, ...]:
    """Return the names as a tuple; raise SettingsError for a single text, or a name that is empty or no text.

    A single text would be taken letter by letter.
    """
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(
            expected=f"{what} that are a tuple of names, each a text that is not empty",
            got=repr(names),
            where="",
            remedy=f'Write for instance {what}=("{example}",).',
        )
    return tuple(names)


def _field(key: str, spec: tuple[Any, ...], per_second: float | None) -> Field:
    """Return the field that an output declares; raise SettingsError if its dtype or axes are unusable."""
    dtype, *axes = spec if isinstance(spec, tuple) and spec else (None,)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SettingsError(
            expected=f'"{key}" as (dtype, axes …) with a dtype of {", ".join(sorted(DTYPES))}',
            got=repr(spec),
            where="",
            remedy='Write for instance ("float32", None, 80).',
        )
    fixed = axes[2:] if axes[:2] == [None, None] else axes[1:] if axes[:1] == [None] else axes
    if not all(map(_is_axis, fixed)):
        raise SettingsError(
            expected=f'axes of "{key}" that are whole numbers, the first one or two also None',
            got=repr(tuple(axes)),
            where="",
            remedy="Only the first axis of a sample's value can be padded, or the first two.",
        )
    return Field(key=key, dtype=dtype, shape=tuple(axes), per_second=per_second)


def _is_axis(axis: object) -> bool:
    return isinstance(axis, int) and not isinstance(axis, bool) and axis >= 1
