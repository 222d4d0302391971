"""A copy of the project in a temporary folder, where one mutant at a time is put in and pytest runs.

Rules: the working tree is never written to. A run has an end: a time limit, a limit of memory, and after it no process
of it is left, even if the mistake was in what ends processes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Ending", "Limits", "Workplace"]

_ROOT = Path(__file__).parents[2]
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
_MEMORY_BYTES = 16 * 2**30  # of addresses, most of them never touched; a loop that appends for ever meets it in seconds


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of pytest ended; `why` is empty if all tests passed."""

    why: str
    test: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a test, and all tests of a run, may take."""

    test_s: float
    all_s: float


class Workplace:
    """Made once for a job, used for one mutant after the other."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "project"
        self._scratch = folder / "scratch"
        shutil.copytree(root, self.root, ignore=_NOT_COPIED)

    @contextlib.contextmanager
    def holding(self, module: str, source: bytes) -> Iterator[None]:
        """This source is in place of the module's own."""
        path = self.root / module
        original = path.read_bytes()
        self._write(path, source)
        try:
            yield
        finally:
            self._write(path, original)

    @staticmethod
    def _write(path: Path, source: bytes) -> None:
        """Bytecode is trusted by time and size of its source, and a mistake may leave both as they were."""
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        path.write_bytes(source)

    def run(self, tests: Sequence[str], limits: Limits, *options: str, **environment: str) -> Ending:
        """Run these tests in this order, with options of pytest's; too long is a failure as well."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        listed = self._scratch / "tests.txt"
        listed.write_text("\n".join(tests), "utf-8")
        usual = ("-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin")
        usual += ("-p", "no:anyio")  # a plugin that comes with other packages, and takes a quarter of pytest's start
        timeout = f"--timeout={limits.test_s:.0f}"
        output = self._scratch / "output.txt"  # no pipe: a process that is left over would keep it open
        with output.open("wb") as writing:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *usual, *options, timeout, f"@{listed}"],
                cwd=self.root,
                env={**os.environ, **self._environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        try:
            process.wait(timeout=limits.all_s)
        except subprocess.TimeoutExpired:
            return Ending("took too long")
        finally:
            self._end_all(process)
        return _ending(process.returncode, output.read_text("utf-8", errors="replace"))

    def _environment(self) -> dict[str, str]:
        """Ours comes first; the plugin is found in the real tree where a project has none of its own."""
        path = os.pathsep.join((str(self.root), str(_ROOT)))
        return {"PYTHONPATH": path, "TMPDIR": str(self._scratch), "STOKER_MUTANTS_PLACE": str(self.root)}

    def _end_all(self, process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if other.environ().get("STOKER_MUTANTS_PLACE") == str(self.root):
                    other.kill()
        process.wait()


#: pytest's exit codes: a test failed; a file could not be collected; it was interrupted or broke itself.
_FAILED, _USAGE, _NO_TESTS = 1, 4, 5


def _ending(code: int, output: str) -> Ending:
    if code == 0:
        return Ending("")
    if code == _NO_TESTS:
        raise RuntimeError(f"expected tests to run, got none:\n{output}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    if code == _FAILED and failed is not None:
        return Ending("failed", failed[1])
    return Ending("cannot be imported" if failed is not None or code == _USAGE else f"pytest ended with {code}")
