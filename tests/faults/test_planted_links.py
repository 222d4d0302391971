"""A link that somebody plants where a file of ours is written is never followed: its target keeps its bytes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import itertools
import os
import re
import shutil
import stat
import sys
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

from loader_server.building.quarantine import Quarantine
from loader_server.commands.statistics import make_statistics
from loader_server.coordinator.journal import JournalLock
from loader_server.fleet.host_folder import JoinedFolder
from loader_server.index.draft import locked
from loader_server.index.request import LettersReport
from loader_server.job_file import JobFile
from loader_server.machine.graph_files import write_synced
from loader_server.plan_keeper import PlanKeeper
from loader_server.sources.pipeline.element_check import FirstDigests
from loader_server.transforms.characters import Characters, CharactersSettings, LetterCounter
from shared.errors import SampleError, StokerError
from shared.metrics.scrape_targets import TargetFile
from tests.support.loaders import write_job
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.predicting.prediction_files import write_rows
from trainer_client.training.predicting.prediction_parts import PredictionParts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORDS = "of somebody else's"

#: The files that this process opened to write, while a test looks.
_OPENED: list[str] = []


@cache
def watch_openings() -> None:
    """Begin to note what is opened to write; Python has no way to end that."""

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike) and arguments[2] & os.O_ACCMODE:
            _OPENED.append(os.path.abspath(arguments[0]))  # noqa: PTH100 - a link is the name itself

    sys.addaudithook(note)


# --- what is written where ---


def checkpoint(folder: Path) -> None:
    checkpoints = CheckpointFolder(folder, keep=2)
    checkpoints.write({"w": np.arange(3)}, {})
    checkpoints.mark(finished=True)


def journal_lock(folder: Path) -> None:
    """Lock on a file system that cannot lock a folder, and say where the holder serves."""
    flock = fcntl.flock

    def lock_files_only(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    with (
        mock.patch.object(fcntl, "flock", lock_files_only),
        contextlib.closing(JournalLock(folder / "journal.sqlite")) as lock,
    ):
        lock.say_where("tcp://127.0.0.1:7400")


def quarantine(folder: Path) -> None:
    log = Quarantine(folder / "quarantine.jsonl")
    error = SampleError(reason="transform", expected="a sample", got="none", where="here", remedy="Mend it.")
    log.note("train", 7, "a.wav", error)
    log.close()


def prediction(folder: Path) -> None:
    parts = PredictionParts(folder / "out.jsonl")
    with parts.lock():
        parts.begin({}, 1)
    parts.write(0, {"sample": np.arange(2), "tag": np.array(["a", "b"]), "masked": np.zeros(2, bool)})
    parts.finish(write_rows)


def letters(folder: Path) -> None:
    step = Characters(CharactersSettings(alphabet="ab"))
    LettersReport(step=step, counts=LetterCounter(step.alphabet).counts(), is_new=True).keep(folder)


def statistics(folder: Path) -> None:
    path = write_job(folder.with_name(f"{folder.name}-job"), samples=2, transforms=("logmel", "normalise"))
    table = f'[streams.train.normalise]\nstatistics = "../{folder.name}/train.json"\n'
    path.write_text(path.read_text().replace("[streams.dev]", f"{table}\n[streams.dev]"))
    make_statistics(JobFile(path), ["train"], processes=1)


def joined(folder: Path) -> None:
    JoinedFolder(endpoint="tcp://127.0.0.1:7400", data="/data", state="/state", index="/index").write(
        folder / "job.toml"
    )


def index_lock(folder: Path) -> None:
    with locked(folder):
        pass


def keras_model(folder: Path) -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    importlib.import_module("trainer_client.training.train").export_model(model, None, folder / "model.keras")


PLACES: dict[str, Callable[[Path], object]] = {
    "checkpoint": checkpoint,
    "lock of a journal": journal_lock,
    "first digests": lambda folder: FirstDigests(folder, "job").first(0, 0, 0, 77),
    "graph": lambda folder: write_synced(folder / "graph", b"graph"),
    "joined folder": joined,
    "letters of an index": letters,
    "lock of an index": index_lock,
    "plan": lambda folder: PlanKeeper(folder).save("groups", "abc", {"groups": np.arange(7)}),
    "prediction": prediction,
    "quarantine": quarantine,
    "statistics": statistics,
    "target of Prometheus": lambda folder: TargetFile(folder, "127.0.0.1:1", {"role": "worker"}).close(),
}


#: Keras saves with a numpy that warns of it.
_OF_KERAS = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:__array__ implementation")]


@pytest.mark.parametrize(
    "write", [*PLACES.values(), pytest.param(keras_model, marks=_OF_KERAS)], ids=[*PLACES, "model"]
)
def test_a_link_that_is_planted_is_not_followed(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write once to learn the names of all drafts, and again where each name is a link, even a name drawn at random."""
    monkeypatch.setattr("secrets.token_hex", lambda nbytes: "0" * (2 * nbytes))
    names = names_opened(write, tmp_path / "seen")
    assert names, "nothing was opened to write"
    planted = tmp_path / "planted"
    victim, nowhere = tmp_path / "victim", tmp_path / "nowhere"
    for name, target in itertools.product(names, (victim, nowhere)):
        shutil.rmtree(planted, ignore_errors=True)
        victim.write_text(_WORDS)
        (planted / name).parent.mkdir(parents=True)
        (planted / name).symlink_to(target)
        with contextlib.suppress(StokerError, FileExistsError):
            write(planted)
        assert victim.read_text() == _WORDS, f"the link {name} was followed"
        assert not nowhere.exists(), f"the link {name} was followed"


def names_opened(write: Callable[[Path], object], folder: Path) -> set[str]:
    """The names in a folder that are opened to write."""
    watch_openings()
    folder.mkdir()
    _OPENED.clear()
    write(folder)
    return {os.path.relpath(path, folder) for path in _OPENED if path.startswith(f"{folder}/")}


@pytest.mark.slow
def test_files_that_tensorflow_makes_have_names_that_nobody_can_guess(tmp_path: Path) -> None:
    summaries = importlib.import_module("trainer_client.training.runs.summaries")
    for _ in range(2):
        summaries.write_summaries(tmp_path, 1, {"loss": 0.5})
    drawn = [re.search(r"\.([0-9a-f]{16})\.v2$", path.name) for path in tmp_path.iterdir()]
    assert len({match and match[1] for match in drawn} - {None}) == 2


def test_a_planted_link_is_said_in_the_log_of_a_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "quarantine.jsonl").symlink_to("elsewhere")
    quarantine(tmp_path)
    assert "quarantine.jsonl: expected a file or folder that only Stoker makes, got a link" in caplog.text
