"""Levels of x86-64 processors that a job can keep to, and the environment that keeps libraries to one of them.

Libraries choose faster loops on newer processors, and these round differently. Each of the libraries below reads a
variable that limits the choice. glibc reads its own only when a program is executed, and numpy and OpenBLAS when they
are loaded, so the variables have to be there before.

Rules: pure; environments are tables. The values that variables had before are kept in one of ours, so that a process
can be executed again without a limit, or with another. The features of a level are listed by name, and whatever else
numpy can choose is switched off: a feature that a later numpy knows is none that the level has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LEVELS", "MARK", "Level", "environment_of", "level_in", "machine_in"]

#: Our own variable: the level that the others keep libraries to, on which machine, and their values before.
MARK = "STOKER_PROCESSOR"

_TUNABLES = "GLIBC_TUNABLES"
_HWCAPS = "glibc.cpu.hwcaps="


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of processors, and what each library calls it."""

    #: The features that processors of this level have, by numpy's names.
    features: frozenset[str]
    #: The kernels that OpenBLAS has for it.
    openblas: str
    #: The features above the level by which glibc chooses among its mathematical functions.
    above: tuple[str, ...]
    #: Whether soxr takes AVX for its most exact resampling.
    soxr_takes_avx: bool
    arrow: str
    onednn: str


_V2 = frozenset(("SSE", "SSE2", "SSE3", "SSSE3", "SSE41", "POPCNT", "SSE42", "X86_V2"))
_V3 = _V2 | {"AVX", "F16C", "FMA3", "AVX2", "X86_V3"}
_V4 = _V3 | {"AVX512F", "AVX512CD", "AVX512_SKX", "X86_V4"}

_ABOVE_V4 = ("FMA4",)  # of some processors of AMD alone
_ABOVE_V3 = (*_ABOVE_V4, "AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL")
_ABOVE_V2 = (*_ABOVE_V3, "AVX", "AVX2", "FMA")

LEVELS = {
    "x86-64-v2": Level(
        features=_V2, openblas="Nehalem", above=_ABOVE_V2, soxr_takes_avx=False, arrow="SSE4_2", onednn="SSE41"
    ),
    "x86-64-v3": Level(
        features=_V3, openblas="Haswell", above=_ABOVE_V3, soxr_takes_avx=True, arrow="AVX2", onednn="AVX2"
    ),
    "x86-64-v4": Level(
        features=_V4, openblas="SkylakeX", above=_ABOVE_V4, soxr_takes_avx=True, arrow="AVX512", onednn="AVX512_CORE"
    ),
}


def level_in(environment: Mapping[str, str]) -> str:
    """Return the level that this environment keeps libraries to; "" if to none, or if our variable is malformed."""
    return _mark_in(environment)[0]


def machine_in(environment: Mapping[str, str]) -> str:
    """Return the boot id of the machine for which libraries are kept to a level; "" without a level, or if unknown."""
    return _mark_in(environment)[1]


def environment_of(
    level: str, dispatched: Iterable[str], environment: Mapping[str, str], machine: str = ""
) -> dict[str, str]:
    """Return the environment that keeps libraries to a level (""; to none), made from another.

    `dispatched` are the features that the installed numpy chooses by, on this `machine`. Limits of another level in the
    given environment are replaced; without a level all variables have the values that they had before any limit. Raise
    a KeyError for an unknown level.
    """
    usual = _usual(environment)
    if not level:
        return usual
    limits = _limits(LEVELS[level], dispatched, usual.get(_TUNABLES, ""))
    limited = {name: value for name, value in {**usual, **limits}.items() if value is not None}
    before = {name: usual.get(name) for name in limits}
    return {**limited, MARK: json.dumps({"level": level, "machine": machine, "before": before})}


def _limits(level: Level, dispatched: Iterable[str], tunables: str) -> dict[str, str | None]:
    """Return the variables that keep libraries to a level, each with its value; None for those that must not be set."""
    return {
        "NPY_DISABLE_CPU_FEATURES": " ".join(sorted(set(dispatched) - level.features)) or None,
        "NPY_ENABLE_CPU_FEATURES": None,  # numpy refuses to be imported with both
        "OPENBLAS_CORETYPE": level.openblas,
        _TUNABLES: _with_hwcaps(level, tunables),
        "SOXR_USE_SIMD": None,
        "SOXR_USE_SIMD32": None,
        "SOXR_USE_SIMD64": None if level.soxr_takes_avx else "0",
        "ARROW_USER_SIMD_LEVEL": level.arrow,
        "ONEDNN_MAX_CPU_ISA": level.onednn,
        "DNNL_MAX_CPU_ISA": None,  # the older name of the one above
    }


def _with_hwcaps(level: Level, tunables: str) -> str:
    """Return glibc's tunables with hwcaps set to switch off the features above the level; other tunables stay."""
    others = [word for word in tunables.split(":") if word and not word.startswith(_HWCAPS)]
    # glibc before 2.33 calls the same features by the longer names; names that it does not know change nothing.
    names = [f"-{name}{suffix}" for suffix in ("", "_Usable") for name in level.above]
    return ":".join([*others, _HWCAPS + ",".join(names)])


def _usual(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it was before any limit."""
    *_, before = _mark_in(environment)
    values = {**environment, MARK: None, **before}
    return {name: value for name, value in values.items() if value is not None}


def _mark_in(environment: Mapping[str, str]) -> tuple[str, str, dict[str, str | None]]:
    """Return level and machine in our own variable, and the values before; all empty if it is absent or malformed."""
    try:
        mark = json.loads(environment.get(MARK, ""))
        level, machine, before = mark["level"], mark["machine"], dict(mark["before"])
    except (ValueError, TypeError, KeyError):
        return "", "", {}
    texts = (level, machine, *(value for value in before.values() if value is not None))
    return (level, machine, before) if all(isinstance(text, str) for text in texts) else ("", "", {})
