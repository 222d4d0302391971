"""What this host has installed that shapes computed bytes: versions of packages, and the processor's features."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
from pathlib import Path

__all__ = ["has_native_code", "metadata_field", "processor_features", "required_by", "version_of"]

#: The name that a requirement begins with.
_NAME = re.compile(r"[\w.-]+")

#: Environment variables that make numpy and its BLAS choose other loops than the best for this processor.
_LOOPS_BY_NAME = ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")

#: The path of a compiled file in a package's RECORD, such as a/b.cpython-311-x86_64-linux-gnu.so or libc.so.6.
_NATIVE = re.compile(r"\.so(\.[\d.]+)?\"?,")

#: The features by which numpy and BLAS choose loops.
_FEATURES = frozenset(("avx2", "fma", "avx512f", "avx512_skx", "asimd", "sve"))


def version_of(package: str) -> str:
    """Return the version of an installed package; raise importlib's PackageNotFoundError if it is not installed."""
    return metadata_field(importlib.metadata.distribution(package), "Version")


def metadata_field(distribution: importlib.metadata.Distribution, key: str) -> str:
    """Return a field of a distribution's metadata, such as its Name; the distribution must have it."""
    # Read from the head of the file: `importlib.metadata.version` parses all of it as an e-mail, a millisecond for each
    # package, and each process of a job asks for six. The fields stand before the first empty line, as headers do.
    for line in (distribution.read_text("METADATA") or "").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
        if not line:
            break
    field: str = distribution.metadata[key]  # an older format, without METADATA
    return field


def has_native_code(package: str) -> bool:
    """Return whether an installed package has compiled modules or libraries.

    Return True if it has no list of files. Raise importlib's PackageNotFoundError if it is not installed.
    """
    recorded = importlib.metadata.distribution(package).read_text("RECORD")
    return recorded is None or bool(_NATIVE.search(recorded))


def required_by(package: str) -> list[str]:
    """Return the installed packages that a package requires, without those of its extras: lower-case names, sorted.

    Raise importlib's PackageNotFoundError if the package itself is not installed.
    """
    names = set()
    for requirement in importlib.metadata.requires(package) or ():
        needed, _, condition = requirement.partition(";")
        name = _NAME.match(needed)
        if name and "extra" not in condition:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # for another system or Python
                found = importlib.metadata.distribution(name[0])
                names.add(metadata_field(found, "Name").lower())
    return sorted(names)


def processor_features() -> str:
    """Return what decides which loops numpy and BLAS use (processor and environment); others may round differently.

    It is a text of words. Features are left out if the system does not list them.
    """
    forced = [f"{name}={os.environ[name]}" for name in _LOOPS_BY_NAME if os.environ.get(name)]
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join([platform.machine(), *sorted(_FEATURES.intersection(flags)), *forced])
