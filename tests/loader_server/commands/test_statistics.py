"""`loader-server index --statistics`: what `normalise` goes by, whoever gathers it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server import cli
from loader_server.commands import statistics
from loader_server.commands.index import index_streams
from loader_server.commands.statistics import make_statistics
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from loader_server.transforms.chain import Chain
from shared.errors import DataError, SettingsError
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path

TABLES = '[streams.train.normalise]\nstatistics = "made/of-train.json"\n'


def job_at(
    folder: Path, *, transforms: tuple[str, ...] = ("logmel", "normalise"), tables: str = TABLES, samples: int = 9
) -> Path:
    path = write_job(folder, samples=samples, transforms=transforms)
    path.write_text(path.read_text().replace("[streams.dev]", f"{tables}\n[streams.dev]"))
    return path


def values(path: Path, name: str = "train") -> list[np.ndarray]:
    """All samples of a stream, transformed."""
    stream = Stream(JobFile(path), name)
    found = [
        stream.values(0, sample, raw)["audio"] for sample, raw in enumerate(stream.source.read(range(stream.samples)))
    ]
    stream.close()
    return found


def test_the_data_then_have_mean_0_and_deviation_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_at(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["index", str(path), "--statistics"])
    steps = np.concatenate(values(path)).astype(np.float64)
    np.testing.assert_allclose(steps.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(steps.std(axis=0), 1, rtol=1e-5)
    made = tmp_path / "made" / "of-train.json"
    assert f"train: statistics of 9 samples, {len(steps)} steps, in {made}\n" in capsys.readouterr().out
    assert [file.name for file in made.parent.iterdir()] == [made.name]
    assert values(path, "dev")[0].tobytes() == values(path)[0].tobytes()  # the same data, by train's statistics


def test_any_number_of_processes_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = job_at(tmp_path), []
    monkeypatch.setattr(statistics, "_PIECE_SAMPLES", 2)
    for processes in (1, 2):
        (report,) = make_statistics(JobFile(path), ["train", "dev"], processes=processes)
        found.append((report, report.path.read_bytes()))
    assert found[0] == found[1]


def test_it_says_what_it_is_made_of_and_is_refused_for_another(tmp_path: Path) -> None:
    path = job_at(tmp_path)
    make_statistics(JobFile(path), ["train"], processes=1)
    raw = JobFile(path).recipes["train"].sources[0].make().fields
    before = Chain.make(("logmel",), {"logmel": {"rate": 8000, "bands": 40}}, "job", raw)
    assert json.loads((tmp_path / "made" / "of-train.json").read_text())["made_of"] == before.recipe
    path.write_text(path.read_text().replace("bands = 40", "bands = 41"))
    with pytest.raises(SettingsError, match="expected statistics of what logmel now makes"):
        index_streams(JobFile(path), ["train"])
    make_statistics(JobFile(path), ["train"], processes=1)
    assert index_streams(JobFile(path), ["train"])["train"].samples == 9


def test_samples_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path) -> None:
    path = job_at(tmp_path, transforms=("tests.support.transforms:raises", "logmel", "normalise"), samples=20)
    (report,) = make_statistics(JobFile(path), ["train"], processes=1)
    assert (report.samples, report.bad) == (18, {"transform": 2})  # two of the texts begin with "three"


def test_each_stream_by_its_own_needs_no_file(tmp_path: Path) -> None:
    assert make_statistics(JobFile(job_at(tmp_path, tables="")), ["train", "dev"]) == []


def test_a_key_that_is_no_features_is_refused(tmp_path: Path) -> None:
    path = job_at(tmp_path, tables=TABLES + 'key = "text"\n')
    with pytest.raises(SettingsError, match=r'expected "text" as an array of steps, for its statistics, got str'):
        make_statistics(JobFile(path), ["train"], processes=1)


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    path = job_at(tmp_path, transforms=("tests.support.transforms:always_raises", "logmel", "normalise"))
    with pytest.raises(DataError, match=r"expected at least one sample with a step, got none of 9: \{'transform': 9\}"):
        make_statistics(JobFile(path), ["train"], processes=1)
    assert not (tmp_path / "made").exists()
