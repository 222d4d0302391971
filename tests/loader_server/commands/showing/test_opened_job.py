"""A job in a notebook: batches and samples as arrays, the same as trainers get, and mistakes in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import loader_server
import trainer_client
from loader_server.commands.index import index_missing
from loader_server.coordinator.events import CulpritFound, GroupFixed
from loader_server.coordinator.journal import Journal
from loader_server.job_file import JobFile
from loader_server.planning.epoch import EpochPlan
from loader_server.stream import Stream
from shared.errors import DataError, SampleError, SettingsError
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.planning.windows.window import WindowPlan

_NOISE = "tests.support.transforms:noise"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = write_job(tmp_path, samples=24, transforms=(_NOISE, "logmel", "characters"))
    index_missing(JobFile(path))
    return path


def test_a_batch_is_the_one_that_trainers_get(tmp_path: Path) -> None:
    path = write_job(tmp_path, samples=24, transforms=(_NOISE, "logmel", "characters"))
    with running(path) as loaders:
        served: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
        with trainer_client.connect(loaders.endpoint) as feed:
            for _ in range(2):
                for batch in feed:
                    served[batch.epoch, batch.number] = (batch.digest, {key: batch[key].copy() for key in batch})
                    feed.trained()
        with loader_server.open(path) as job:
            stream = job.stream("train")
            assert sum(stream.batches(epoch) for epoch in (0, 1)) == len(served)
            for (epoch, number), (digest, arrays) in served.items():
                built = stream.batch(number, epoch=epoch)
                assert built.digest == digest
                assert all(np.array_equal(built[key], array) for key, array in arrays.items())


def test_a_sample_is_the_row_of_its_batch(path: Path) -> None:
    with loader_server.open(str(path)) as job:
        stream = job.stream("train")
        batch = stream.batch(1, epoch=3)
        shown = batch.samples[0]
        for which in (shown.number, shown.name):
            sample = stream.sample(which, epoch=3)
            own = batch["audio"][shown.row, : batch["audio_length"][shown.row]]
            assert np.array_equal(sample["audio"], own)
        assert not np.array_equal(stream.sample(shown.number, epoch=4)["audio"], own)
        raw = stream.sample(shown.number, raw=True)
        assert raw["text"] == shown.texts["text"]
        assert raw["audio"].ndim == 1


def test_a_window_is_planned_once_for_all_of_its_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, plan = list[int](), EpochPlan._planned

    def noting(self: EpochPlan, window: int) -> WindowPlan:
        planned.append(window)
        return plan(self, window)

    monkeypatch.setattr(EpochPlan, "_planned", noting)
    with loader_server.open(path) as job:
        stream = job.stream("train")
        for number in range(stream.batches()):
            stream.batch(number)
    assert planned == [0]


def test_streams_are_listed_and_opened_once(path: Path) -> None:
    with loader_server.open(path) as job:
        assert job.streams == ("train", "dev")
        assert job.stream("train") is job.stream("train")
        assert job.stream("dev").digest != job.stream("train").digest
        assert job.stream("train").samples == 24


def test_the_group_and_the_convictions_of_a_job_that_ran_hold(path: Path) -> None:
    state = JobFile(path).state
    state.mkdir(parents=True, exist_ok=True)
    with loader_server.open(path) as job:
        assert job.stream("train").sample(3)
        identity = Stream(JobFile(path), "train").identity(3)
    journal = Journal(state / "journal.sqlite")
    journal.write([GroupFixed("train", 3), CulpritFound("train", identity, "SEGV")])
    journal.close()
    with loader_server.open(path) as job:
        stream = job.stream("train")
        assert stream.group == 3
        assert stream.batches() % 3 == 0
        with pytest.raises(SampleError, match="twice killed") as convicted:
            stream.sample(3)
        assert convicted.value.reason == "kills_decoder"


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        (lambda stream: stream.batch(9_999), "stream train, batch: expected a batch from 0 to"),
        (lambda stream: stream.batch(-1), "batch: expected an integer of at least 0, got -1"),
        (lambda stream: stream.batch(0, epoch=-1), "epoch: expected an integer of at least 0, got -1"),
        (lambda stream: stream.sample(24), "sample: expected an integer of at least 0 and below 24, got 24"),
        (lambda stream: stream.sample("clips/0007.wav"), 'perhaps "clips/000'),
    ],
)
def test_what_is_not_there_is_refused(path: Path, look: Any, sentence: str) -> None:
    with loader_server.open(path) as job, pytest.raises(SettingsError) as refused:
        look(job.stream("train"))
    assert sentence in str(refused.value)


def test_data_without_an_index_are_named_with_what_to_do(tmp_path: Path) -> None:
    job = loader_server.open(write_job(tmp_path, samples=4))
    with pytest.raises(DataError, match="loader-server index"):
        job.stream("train")
    with pytest.raises(SettingsError, match="tran"):
        job.stream("tran")


def test_the_package_has_no_other_lazy_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opened'"):
        _ = loader_server.opened
