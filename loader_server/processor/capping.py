"""Keeping a process to the processor level of its job, and refusing to build if that fails.

A process whose environment does not limit libraries to the level executes itself again, once, with one that does.
Libraries that tell what they have chosen are asked: a numpy or OpenBLAS that goes its own way is an error, because the
level is what workers are compared by.

Rules: called before threads are started, as executing ends them. Which job counts is the caller's to say.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loader_server.processor.levels import LEVELS, MARK, environment_of, level_in, machine_in
from shared.errors import SettingsError
from shared.memory import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["execute_again", "keep_to", "refuse_unfit"]

#: Names under which builds of OpenBLAS export the function that tells which kernels it takes.
_CORE_NAMES = (
    "scipy_openblas_get_corename64_",
    "scipy_openblas_get_corename",
    "openblas_get_corename64_",
    "openblas_get_corename",
)

_X86_64 = "x86_64"

#: Python's option by which a process knows how often it was executed again, and how often that may be: from one level
#: to another it goes by way of none.
_AGAIN = ("-X", "stoker_executed_again")
_MOST_EXECUTIONS = 2


def keep_to(level: str, where: str, execute: Callable[[dict[str, str]], object]) -> None:
    """Execute this process again unless its environment keeps libraries to the level (""; to none) on this machine.

    `execute` gets an environment that does, or first one without limits if there are those of another level or machine;
    what it raises passes. Do nothing on other machines than x86-64, which `refuse_unfit` refuses. Without limits so
    far, raise SettingsError if this machine is below the level.
    """
    current = level_in(os.environ)
    # An environment may have been handed on from a machine with another processor.
    is_made_here = not current or machine_in(os.environ) == boot_id()
    if (level == current and is_made_here) or platform.machine() != _X86_64:
        return
    # Before: on a machine below the level OpenBLAS takes the kernels all the same, and dies of an illegal instruction
    # when it is loaded. Only without limits does numpy tell what the processor has, so a process goes from one level to
    # another by way of none.
    if level and not current:
        _refuse_below(level, where)
    execute(environment_of("", (), os.environ) if current else _limited_to(level))


def _limited_to(level: str) -> dict[str, str]:
    return environment_of(level, _numpy().__cpu_dispatch__, os.environ, boot_id())


def execute_again(environment: dict[str, str]) -> None:
    """Execute the program of this process again, with its own arguments; it goes on there, under the same process id.

    Raise OSError if output cannot be flushed or the interpreter cannot be executed, and SettingsError if it was
    executed twice already.
    """
    if sys.orig_argv.count(_AGAIN[1]) == _MOST_EXECUTIONS:
        raise SettingsError(
            expected="an interpreter that keeps the environment in which it is executed",
            got=f"{sys.executable}, which has lost it twice",
            where="[job], processor",
            remedy="Start loader-server by the interpreter itself, without a script around it that clears variables.",
        )
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as it is for a process that was started with this one closed
            stream.flush()
    command = [sys.executable, *_AGAIN, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own interpreter, without a shell


def refuse_unfit(level: str, where: str) -> None:
    """Raise SettingsError unless this process builds the bytes that the level stands for.

    It does not if the machine is below the level or no x86-64 machine, if the process was started without the limits or
    with those of another level or machine, if numpy or its BLAS does not heed them, or if one of their variables was
    changed since.
    """
    if platform.machine() != _X86_64:
        raise SettingsError(
            expected=f"an x86-64 machine, as batches are built for {level}",
            got=platform.machine(),
            where=where,
            remedy="Leave processor out, and have machines of one kind in the job.",
        )
    current = level_in(os.environ)
    if not current:
        _refuse_below(level, where)
    if current and machine_in(os.environ) != boot_id():
        current += " on another machine"
    if current != level:
        raise SettingsError(
            expected=f"a process whose libraries keep to {level}",
            got=f"one that keeps to {current or 'no level'}",
            where=where,
            remedy="Start it by a command of loader-server, which sees to that; or leave processor out.",
        )
    _refuse_heedless_libraries(level, where)
    _refuse_changed_limits(level, where)


def _refuse_below(level: str, where: str) -> None:
    """Raise SettingsError if numpy knows that a feature of the level is missing here; for processes without limits."""
    numpy_has: dict[str, bool] = _numpy().__cpu_features__
    missing = sorted(name for name in LEVELS[level].features if not numpy_has.get(name, True))
    if missing:
        raise SettingsError(
            expected=f"a processor of level {level} or above",
            got=f"one without {', '.join(missing)}",
            where=where,
            remedy="Write a lower level, for all machines of the job; or leave this machine out.",
        )


def _refuse_heedless_libraries(level: str, where: str) -> None:
    """Raise SettingsError if numpy uses features above the level, or other kernels than OpenBLAS has for it."""
    numpy = _numpy()
    chosen = {name for name in (*numpy.__cpu_baseline__, *numpy.__cpu_dispatch__) if numpy.__cpu_features__[name]}
    above = chosen - LEVELS[level].features
    if above:
        raise SettingsError(
            expected=f"a numpy that can be kept to {level}",
            got=f"{_numpy_version()}, which uses {', '.join(sorted(above))}",
            where=where,
            remedy="Install numpy from PyPI, which chooses its loops when it is imported.",
        )
    core = _openblas_core()
    if core != LEVELS[level].openblas:
        raise SettingsError(
            expected=f"a numpy with an OpenBLAS that can be kept to its kernels for {LEVELS[level].openblas}",
            got=f"one with those for {core}" if core else f"{_numpy_version()} with another BLAS",
            where=where,
            remedy="Install numpy from PyPI, which comes with such an OpenBLAS.",
        )


def _refuse_changed_limits(level: str, where: str) -> None:
    """Raise SettingsError if a variable of the limits was set, changed or removed since they were made."""
    expected = _limited_to(level)
    changed = sorted(name for name in {*expected, *os.environ} if expected.get(name) != os.environ.get(name))
    if changed:
        raise SettingsError(
            expected=f"an environment that keeps libraries to {level}",
            got=f"one where {', '.join(changed)} was changed afterwards",
            where=where,
            remedy=f"Unset {MARK}, so that the limits are made anew; or leave the variables as they were.",
        )


def _openblas_core() -> str:
    """Return which kernels numpy's OpenBLAS takes; "" if numpy has another BLAS."""
    # Functions are looked for in what numpy's module was linked with, too.
    library = ctypes.CDLL(_numpy().__file__)
    for name in _CORE_NAMES:
        if hasattr(library, name):
            function = getattr(library, name)
            function.argtypes, function.restype = (), ctypes.c_char_p
            return str(function().decode())
    return ""


def _numpy() -> Any:
    """Return the module of numpy that chooses loops by features of the processor."""
    return import_module("numpy._core._multiarray_umath")


def _numpy_version() -> str:
    return f"numpy {import_module('numpy').__version__}"
