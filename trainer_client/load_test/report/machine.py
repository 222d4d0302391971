"""Description of the machine that a load test ran on, without which its figures mean nothing later."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import zmq

__all__ = ["machine", "versions"]


def machine() -> dict[str, Any]:
    """Return processor, cores that we may use, memory, system, and the load before the test."""
    return {
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Return the versions of the software that batches go through."""
    found = {name: importlib.metadata.version(name) for name in ("stoker", "numpy", "pyzmq", "msgpack")}
    return {"python": platform.python_version(), "libzmq": zmq.zmq_version(), **found}


def _line(path: str, name: str) -> str:
    """Return the value in the first line of a file that begins with `name`; "" if there is none."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
