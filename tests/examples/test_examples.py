"""Each example as its page says: made, served, trained; it learns, and the page tells what is printed."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from tests.examples.readmes import not_printed, shown_in
from tests.support.forked import start_module
from tests.support.loaders import ROOT, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.examples.readmes import Shown

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / "examples"
SERVED = "tcp://127.0.0.1:7400"
MADE = ("data", "checkpoints", ".stoker", "__pycache__")


class Example:
    """A copy of an example whose loaders are served where there is room; it ends with the block that it is used in."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder / name
        self._shown = shown_in(EXAMPLES / name / "README.md")
        self._endpoint = SERVED
        self._loaders = ExitStack()
        shutil.copytree(EXAMPLES / name, self.folder, ignore=shutil.ignore_patterns(*MADE))

    def run(self, heading: str) -> str:
        """Run the commands under a heading; what they said. What the page quotes has to be there."""
        commands = [one for one in self._shown if one.heading == heading]
        assert commands, heading
        return "".join(self._checked(one) for one in commands)

    def _checked(self, shown: Shown) -> str:
        said = self._said(shown.command)
        assert not_printed(shown.lines, said) == [], (shown.command, said)
        return said

    def _said(self, command: str) -> str:
        if command == "loader-server run job.toml &":
            return self._serve()
        program, *words = command.replace(SERVED, self._endpoint).split()
        module, *words = (words[0].removesuffix(".py"), *words[1:]) if program == "python" else (program, *words)
        return self._run(module.replace("-", "_"), *words)

    def _serve(self) -> str:
        job = self.folder / "job.toml"
        job.write_text(job.read_text().replace("[job]", '[job]\nlisten = "tcp://127.0.0.1:*"'))
        loaders = self._loaders.enter_context(running(job))
        self._endpoint = loaders.endpoint
        for script in self.folder.glob("*.py"):
            script.write_text(script.read_text().replace(SERVED, self._endpoint))
        return loaders.text().replace(self._endpoint, SERVED)

    def _run(self, module: str, *words: str) -> str:
        script = self.folder / f"{module}.py"
        said, complained = (self.folder / f"{time.monotonic_ns()}.{kind}" for kind in ("out", "err"))
        process = start_module(
            (module, *words),
            folder=self.folder,
            log=said,
            errors=complained,
            environment={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            tensorflow=module == "trainer_client" or (script.exists() and "import keras" in script.read_text()),
        )
        try:
            code = process.wait(300)
        finally:
            process.kill()
        assert code == 0, (module, words, said.read_text(), complained.read_text()[-5000:])
        return said.read_text()

    def close(self) -> None:
        """End its loaders."""
        self._loaders.close()


def values_of(name: str, said: str) -> list[float]:
    """Each number that is printed behind this name."""
    return [float(one) for one in re.findall(rf"\b{name} (\d[\d.]*)", said)]


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    with closing(Example("speech", tmp_path_factory.mktemp("examples"))) as example:
        example.run("Data and loaders")
        yield example


def test_the_recogniser_learns_by_our_loop_and_goes_on_by_fit(speech: Example) -> None:
    edits = values_of("edits", speech.run("Keras"))
    assert edits[0] > 2
    assert max(edits[-3:]) < 0.5
