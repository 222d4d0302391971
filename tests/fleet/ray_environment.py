"""The Python environment that has Ray, made once for each machine beside the images (see `docker_engine`).

It has no package of this checkout, which is found by its path; what that needs is there in the versions that are
installed here, because batches are compared with those that are built here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.fleet.docker_engine import installed_requirements

__all__ = ["python_of_ray", "reason_not_here"]

_RAY = "ray[default]==2.60.0"
_INSTALL_S = 600


@cache
def reason_not_here() -> str:
    """Return why there can be no Ray here; empty if there can. It is installed if it lacks."""
    try:
        python_of_ray()
    except (OSError, subprocess.SubprocessError) as error:
        return f"{_RAY} cannot be installed: {getattr(error, 'stderr', '') or error}"
    return ""


def python_of_ray() -> Path:
    """Return the interpreter of the environment; make it if need be, and raise what keeps it from being made."""
    packages = sorted({_RAY, *installed_requirements("loader"), *installed_requirements("compression")})
    name = hashlib.sha256("\n".join((sys.version, *packages)).encode()).hexdigest()[:12]
    cache_folder = Path(os.environ.get("STOKER_FLEET_CACHE") or Path.home() / ".cache" / "stoker-fleet")
    folder = cache_folder / f"ray-{name}"
    python, whole = folder / "bin" / "python", folder / "whole"
    if not whole.exists():
        # In its final place, as an environment cannot be moved; what a cut has left is made anew.
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            (sys.executable, "-m", "venv", str(folder)),
            (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, "psutil"),
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
        whole.touch()
    return python
