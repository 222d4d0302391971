"""Nothing is convicted on suspicion, and a conviction names a file as it was, not a number."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
import soundfile

import trainer_client
from tests.support.bad_samples import culprits_of, index, quarantined, rows_in, rows_of
from tests.support.fleet import fleet
from tests.support.loaders import ask, running, wait_until, write_job
from trainer_client.core.asking.wants import Wants

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TRANSFORMS = ("tests.support.transforms:held_and_killed", "logmel", "characters")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the worker that holds a sample notes its number."""
    monkeypatch.setenv("STOKER_TEST_HELD", str(tmp_path / "held"))
    return tmp_path / "held"


@pytest.fixture
def unhedged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is asked for what a worker has in hand while it lives, however long that is on a busy machine."""
    monkeypatch.setattr(Wants, "_hedge", lambda _self, _now_s: None)


def _kill_with_samples_in_hand(held: Path) -> None:
    wait_until(lambda: held.exists() and held.read_text(), "a worker has a sample in hand")
    psutil.Process(int(held.read_text())).kill()


def _append(job: Path) -> None:
    """A row more in the manifest; the index is still that of the old one."""
    with (job.parent / "csv.csv").open("a") as manifest:
        manifest.write("clips/00000.wav,another row\n")


def _index_anew(job: Path) -> None:
    _append(job)
    index(job)


@pytest.mark.slow
@pytest.mark.fault(35)
@pytest.mark.usefixtures("unhedged")
@pytest.mark.parametrize(
    ("change", "said"),
    [(_append, "manifest that the index was made from"), (_index_anew, "an index or transforms that have changed")],
)
def test_a_worker_that_is_killed_while_the_data_changed_convicts_nobody(
    tmp_path: Path, held: Path, change: Callable[[Path], None], said: str
) -> None:
    job = write_job(tmp_path, transforms=_TRANSFORMS)
    manifest = tmp_path / "csv.csv"
    before = manifest.read_text()
    with running(job) as loaders:
        got = []
        # Each batch that was in the killed worker's hands is tried five times.
        with trainer_client.connect(loaders.endpoint, prefetch=2) as feed, feed.open() as reading:
            change(job)
            _kill_with_samples_in_hand(held)
            with pytest.raises(trainer_client.StokerError, match=f"child processes to try the samples.*{said}"):
                got.extend(reading)
        assert set(rows_in(got).values()) <= {1.0}
        assert ask(loaders.endpoint)["culprits"] == []
    manifest.write_text(before)
    index(job)
    with running(job) as loaders:
        assert rows_of(loaders) == dict.fromkeys(range(120), 1.0)
    assert quarantined(tmp_path) == []


@pytest.mark.fault(35)
@pytest.mark.usefixtures("unhedged")
def test_a_child_that_is_killed_for_memory_convicts_nobody(
    tmp_path: Path, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_KILLED", str(tmp_path / "killed"))
    with running(write_job(tmp_path, transforms=_TRANSFORMS)) as loaders:
        with trainer_client.connect(loaders.endpoint) as feed, feed.open() as reading:
            _kill_with_samples_in_hand(held)
            got = list(reading)
        assert rows_in(got) == dict.fromkeys(range(120), 1.0)
        assert ask(loaders.endpoint)["culprits"] == []
        assert "in hand: signal SIGKILL, which came from outside" in loaders.text()
    assert (tmp_path / "killed").exists()


@pytest.mark.fault(36)
def test_a_convicted_file_is_masked_under_any_number_and_used_again_once_it_is_mended(tmp_path: Path) -> None:
    transforms = ("tests.support.transforms:aborts_on_silence", "logmel", "characters")
    job = write_job(tmp_path, samples=60, transforms=transforms)
    victim, manifest = tmp_path / "clips/00023.wav", tmp_path / "csv.csv"
    audio, rate = soundfile.read(victim, dtype="float32")
    soundfile.write(victim, np.zeros_like(audio), rate)
    with running(job) as loaders:
        assert rows_of(loaders) == {**dict.fromkeys(range(60), 1.0), 23: 0.0}
        (culprit,) = culprits_of(loaders)
        assert culprit["identity"].startswith(f"clips/00023.wav, {victim.stat().st_size} bytes, changed at ")
        assert culprit["ends"] == "signal SIGABRT, signal SIGABRT"

    first, *rows = manifest.read_text().splitlines()
    manifest.write_text("\n".join([first, *reversed(rows)]) + "\n")
    index(job)
    with running(job) as loaders:
        assert rows_of(loaders) == {**dict.fromkeys(range(60), 1.0), 59 - 23: 0.0}
        assert "died" not in loaders.text()

    soundfile.write(victim, audio, rate)
    index(job)
    with running(job) as loaders:
        assert rows_of(loaders) == dict.fromkeys(range(60), 1.0)
        assert "died" not in loaders.text()
    assert {(line["sample"], line["name"]) for line in quarantined(tmp_path)} == {
        (23, "clips/00023.wav"),
        (36, "clips/00023.wav"),
    }


@pytest.mark.usefixtures("unhedged")
def test_a_worker_started_alone_whose_nursery_was_killed_ends_when_it_has_samples_to_try(tmp_path: Path) -> None:
    """It would fail all such batches for ever; its successor tries them, and convicts nobody."""
    job, held = write_job(tmp_path, transforms=_TRANSFORMS), tmp_path / "held"
    with fleet(job) as one:
        one.join("victim", environment={"STOKER_TEST_HELD": str(held)})
        alone = one.join("alone")
        (nursery,) = psutil.Process(alone.pid).children()
        nursery.kill()
        got: list[trainer_client.Batch] = []
        with trainer_client.connect(one.endpoint) as feed, feed.open() as reading:
            _kill_with_samples_in_hand(held)
            wanted = threading.Thread(target=lambda: got.extend(reading))
            wanted.start()
            assert alone.wait(60) == 0
            one.join("successor")
            wanted.join(60)
        assert rows_in(got) == dict.fromkeys(range(120), 1.0)
        assert "without nursery: this worker drains and ends" in one.text()
        assert one.status()["culprits"] == []
