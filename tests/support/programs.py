"""Commands of `trainer-client`, and users' scripts, forked from a process that has imported TensorFlow; they speak into
files.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from tests.support.forked import ROOT, start_module
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["Program"]

_numbers = itertools.count()


class Program:
    """A running command; it ends with the block that it is used in. One that is not forked is a new interpreter, as
    users start it.
    """

    def __init__(
        self, folder: Path, *words: str, fork: bool = True, module: str = "trainer_client", **environment: str
    ) -> None:
        number = next(_numbers)
        self._out, self._errors = folder / f"said-{number}", folder / f"complained-{number}"
        for path in (self._out, self._errors):
            path.touch()
        self._process = start_module(
            (module, *words),
            folder=folder,
            log=self._out,
            errors=self._errors,
            environment={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            tensorflow=True,
            fork=fork,
        )

    def wait_for_lines(self, count: int) -> None:
        """Wait until it has printed so many lines, or has ended."""
        wait_until(
            lambda: self._out.read_text().count("\n") >= count or self._process.poll() is not None,
            f"{count} lines of {self._process.args}",
            100,
        )

    def wait_for_text(self, text: str, timeout_s: float = 100.0) -> None:
        """Wait until it has said this, or has ended."""
        wait_until(
            lambda: text in self._out.read_text() or self._process.poll() is not None,
            f"{text!r} of {self._process.args}",
            timeout_s,
        )

    def output(self) -> str:
        """What it has printed so far."""
        return self._out.read_text()

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it by force; whatever it held, a port for example, is free then."""
        self._process.kill()
        self._process.wait(60)

    def ended(self, timeout_s: float = 180.0) -> tuple[int, str, str]:
        """How it ended, what it said, and what it complained of."""
        try:
            code = self._process.wait(timeout_s)
        finally:
            self._process.kill()
        return code, self._out.read_text(), self._errors.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()
