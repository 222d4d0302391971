"""The processor's features that affect computed bytes."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["processor_features"]

#: Environment variables that make numpy and its BLAS choose other loops than the best for this processor.
_LOOPS_BY_NAME = ("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")


def processor_features() -> str:
    """Return what decides which loops numpy and BLAS use (processor and environment); others may round differently."""
    told = [f"{name}={os.environ[name]}" for name in _LOOPS_BY_NAME if os.environ.get(name)]
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return " ".join([platform.machine(), *told])
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    found = sorted({"avx2", "fma", "avx512f", "avx512_skx", "asimd", "sve"} & set(flags))
    return " ".join([platform.machine(), *found, *told])
