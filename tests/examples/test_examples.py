"""Each example as its page says: made, served, trained; it learns, and the page tells what is printed."""

from __future__ import annotations

import csv
import os
import re
import shutil
import time
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.examples.readmes import not_printed, shown_in
from tests.support.forked import start_module
from tests.support.loaders import ROOT, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.examples.readmes import Shown
    from tests.support.forked import ModuleProcess

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / "examples"
SERVED = "tcp://127.0.0.1:7400"
MADE = ("data", "checkpoints", "followed", ".stoker", "__pycache__")


WORDS = ("the", "small", "big", "quick", "old", "red", "cat", "dog", "bird", "fish", "mouse", "sees", "likes", "and")


class Example:
    """A copy of an example whose loaders are served where there is room; it ends with the block that it is used in."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder / name
        self.shown = shown_in(EXAMPLES / name / "README.md")
        self._endpoint = SERVED
        self._loaders = ExitStack()
        #: What was begun behind an `&` and is not waited for yet: the program, its command and its output.
        self._beside: list[tuple[ModuleProcess, str, Path]] = []
        shutil.copytree(EXAMPLES / name, self.folder, ignore=shutil.ignore_patterns(*MADE))

    def run(self, heading: str = "") -> str:
        """Run the commands of the page, or those under a heading; what they said, with all that the page quotes."""
        commands = [one for one in self.shown if heading in ("", one.heading)]
        assert commands, heading
        return "".join(self._checked(one) for one in commands)

    def _checked(self, shown: Shown) -> str:
        said = self._said(shown.command)
        assert not_printed(shown.lines, said) == [], (shown.command, said)
        return said

    def _said(self, command: str) -> str:
        if command == "loader-server run job.toml &":
            return self._serve()
        if command.startswith("wait "):
            return self._ended(*self._beside.pop(0))
        started = self._start(command.removesuffix(" &"))
        if command.endswith(" &"):
            self._beside.append(started)
            return ""
        return self._ended(*started)

    def _serve(self) -> str:
        job = self.folder / "job.toml"
        job.write_text(job.read_text().replace("[job]", '[job]\nlisten = "tcp://127.0.0.1:*"'))
        loaders = self._loaders.enter_context(running(job))
        self._endpoint = loaders.endpoint
        for script in self.folder.glob("*.py"):
            script.write_text(script.read_text().replace(SERVED, self._endpoint))
        return loaders.text().replace(self._endpoint, SERVED)

    def _start(self, command: str) -> tuple[ModuleProcess, str, Path]:
        program, *words = command.replace(SERVED, self._endpoint).split()
        if program == "python":
            program, *words = words[0].removesuffix(".py"), *words[1:]
        module = program.replace("-", "_")
        script = self.folder / f"{module}.py"
        said = self.folder / f"{time.monotonic_ns()}.out"
        process = start_module(
            (module, *words),
            folder=self.folder,
            log=said,
            errors=said.with_suffix(".err"),
            environment={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            tensorflow=module == "trainer_client" or (script.exists() and "import keras" in script.read_text()),
        )
        return process, command, said

    def _ended(self, process: ModuleProcess, command: str, said: Path) -> str:
        try:
            code = process.wait(300)
        finally:
            process.kill()
        assert code == 0, (command, said.read_text(), said.with_suffix(".err").read_text()[-5000:])
        return said.read_text()

    def close(self) -> None:
        """End its loaders, and what a failed page did not wait for."""
        for process, _, _ in self._beside:
            process.kill()
        self._loaders.close()


def said_by(name: str, folder: Path) -> str:
    """All that the commands of an example say."""
    with closing(Example(name, folder)) as example:
        return example.run()


def values_of(name: str, said: str) -> list[float]:
    """Each number that is printed behind this name."""
    return [float(one) for one in re.findall(rf"\b{name}:? (\d[\d.]*)", said)]


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    with closing(Example("speech", tmp_path_factory.mktemp("examples"))) as example:
        example.run("Data and loaders")
        yield example
        example.run("The end")


def test_the_recogniser_learns_by_our_loop_and_goes_on_by_fit(speech: Example) -> None:
    edits = values_of("edits", speech.run("Keras"))
    assert edits[0] > 2
    assert max(edits[-3:]) < 0.5


def test_the_recogniser_is_judged_beside_its_training_and_then_predicted_with_by_two(speech: Example) -> None:
    judged = speech.run("Evaluation beside training")
    assert values_of("edits", judged)[-1] < 0.5
    heard = dict(re.findall(r"^clips/(\S+): (\d*)$", speech.run("Prediction"), re.MULTILINE))
    with (speech.folder / "data" / "dev.csv").open() as manifest:
        spoken = {Path(row["audio"]).name: row["text"] for row in csv.DictReader(manifest)}
    assert heard.keys() == spoken.keys()
    assert sum(heard[name] == text for name, text in spoken.items()) > 50


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_recogniser_learns_in_pytorch(speech: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that wait for each other in a loop are slow on a busy machine
    judged = values_of("dev loss", speech.run("PyTorch"))
    assert len(judged) == 10
    assert judged[0] > 10
    assert judged[-1] < 1


@pytest.mark.skipif(find_spec("jax") is None or find_spec("optax") is None, reason="JAX or Optax is not installed")
def test_the_recogniser_learns_in_jax(speech: Example) -> None:
    judged = values_of("dev loss", speech.run("JAX"))
    assert len(judged) == 10
    assert judged[0] > 10
    assert judged[-1] < 1


def test_the_keyword_spotter_learns_and_stops_early(tmp_path: Path) -> None:
    said = said_by("keywords", tmp_path)
    accuracies = values_of("val_accuracy", said)
    assert max(accuracies[-3:]) > 0.75
    assert len(accuracies) < 60
    assert said.count("stopped: ") == 2


def test_the_language_model_learns_whole_words(tmp_path: Path) -> None:
    said = said_by("language_model", tmp_path)
    judged = values_of("dev loss", said)
    assert judged[0] > 0.6
    assert judged[-1] < 0.5
    written = said.splitlines()[-2].split()
    assert sum(word in WORDS for word in written) > 5


def test_two_trainers_of_a_queue_find_the_statistics_that_one_alone_finds(tmp_path: Path) -> None:
    with (
        closing(Example("statistics", tmp_path / "two")) as two,
        closing(Example("statistics", tmp_path / "one")) as one,
    ):
        beside = ("python measure.py &", "wait %2")
        one.shown = [shown for shown in one.shown if shown.command not in beside]
        for example in (two, one):
            counts = re.findall(r"(\d+) batches done here", example.run())
            assert sum(map(int, counts)) == 27
            assert len(counts) == (2 if example is two else 1)
        found, wanted = (np.load(example.folder / "data" / "statistics.npz") for example in (two, one))
        for name in ("mean", "deviation"):
            np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.heritage("E20")
def test_the_model_of_sessions_learns_with_a_table_in_no_worker(tmp_path: Path) -> None:
    said = said_by("sessions", tmp_path)
    assert values_of("accuracy", said)[-1] > 0.8
    assert said.count("SERVING: share") == 2
    assert said.count("FINISHED: 6 epochs") == 2


def test_the_translator_learns(tmp_path: Path) -> None:
    said = said_by("translation", tmp_path)
    accuracies = values_of("val_accuracy", said)
    assert accuracies[0] < 0.8
    assert accuracies[-1] > 0.9
    assert "zig" in said.splitlines()[-2]
