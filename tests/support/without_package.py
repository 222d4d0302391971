"""Commands of a machine that lacks a package: run one after another, each in a fork of a process that imported little.

`python -m tests.support.without_package` reads [[package, *arguments], ...] as JSON and answers with the exit code and
what was said on standard error, for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run_without"]

ROOT = Path(__file__).parents[2]


def run_without(commands: Sequence[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Exit code and standard error of `loader-server ARGUMENTS`, where the first word names what cannot be imported."""
    how = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True, "stdout": subprocess.PIPE}
    command = [sys.executable, "-m", "tests.support.without_package"]
    done = subprocess.run(command, input=json.dumps(commands), check=True, **how)
    return [(code, said) for code, said in json.loads(done.stdout)]


def _forked(package: str, *arguments: str) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.modules[package] = None  # type: ignore[assignment] - so that importing it fails
            main(arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read()


if __name__ == "__main__":
    print(json.dumps([_forked(*command) for command in json.load(sys.stdin)]))
