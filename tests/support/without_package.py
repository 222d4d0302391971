"""Commands of a machine that lacks a package: run one after another, each in a fork of a process that has imported what
all need. None of the packages that lack somewhere could be imported meanwhile.

`python -m tests.support.without_package` reads [[package, *arguments], ...] as JSON and answers with the exit code and
what was said on standard error, for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.cli import main
from shared.quick_import import quick_import

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run_without"]

ROOT = Path(__file__).parents[2]

_NEEDED = ("loader_server.coordinator.service", "loader_server.worker.service", "numpy.ma")
_NEEDED += ("loader_server.metrics.coordinator_metrics", "loader_server.metrics.worker_metrics")
_NEEDED += ("loader_server.commands.index", "loader_server.commands.statistics")


def run_without(commands: Sequence[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Exit code and standard error of `loader-server ARGUMENTS`, where the first word names what cannot be imported."""
    how = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True, "stdout": subprocess.PIPE}
    command = [sys.executable, "-m", "tests.support.without_package"]
    done = subprocess.run(command, input=json.dumps(commands), check=True, **how)
    return [(code, output) for code, output in json.loads(done.stdout)]


def _forked(package: str, *arguments: str) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.modules[package] = None  # type: ignore[assignment] - so that importing it fails
            main(arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()


def _import_what_all_need(lacking: set[str]) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as `main` has it, before numpy is imported
    sys.modules.update(dict.fromkeys(lacking))  # type: ignore[arg-type]
    with quick_import():
        for name in _NEEDED:
            import_module(name)
    for name in lacking:
        del sys.modules[name]


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    _import_what_all_need({package for package, *_ in asked if package})
    print(json.dumps([_forked(*command) for command in asked]))
