"""Samples that cannot be used, and files that cannot be read: the first are masked and named, the second stop the
job."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from tests.support.corpora import utterances
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders


def _quarantine(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ".stoker/tones/quarantine.jsonl").read_text().splitlines()]


def _rows(loaders: Loaders) -> dict[int, float]:
    """The weight of each sample, masked rows included."""
    with trainer_client.connect(loaders.endpoint) as feed:
        rows = [row for batch in feed for row in zip(batch["tag"].tolist(), batch["weight"].tolist(), strict=True)]
    return {tag: weight for tag, weight in rows if tag >= 0}


@pytest.mark.fault(7)
@pytest.mark.heritage("R9")
def test_a_transform_that_raises_masks_its_row_and_names_it(tmp_path: Path) -> None:
    with running(
        write_job(tmp_path, transforms=("tests.support.transforms:raises", "logmel", "characters"))
    ) as loaders:
        rows = _rows(loaders)
    bad = {number for number, one in enumerate(utterances(120)) if one.text.startswith("three")}
    assert bad
    assert {tag for tag, weight in rows.items() if not weight} == bad
    assert sorted(rows) == list(range(120))
    named = _quarantine(tmp_path)
    assert {line["sample"] for line in named} == bad
    assert {(line["reason"], line["stream"]) for line in named} == {("transform", "train")}
    assert "ValueError: three is too many" in named[0]["error"]
    assert named[0]["name"].startswith("clips/")


def test_bytes_that_are_no_audio_mask_their_row(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with running(job):
        pass  # indexed while it was whole
    victim = tmp_path / "clips/00007.wav"
    stat = victim.stat()
    victim.write_bytes(b"\0" * stat.st_size)
    os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with running(job) as loaders:
        rows = _rows(loaders)
    assert [tag for tag, weight in rows.items() if not weight] == [7]
    named = {(line["sample"], line["name"], line["reason"]) for line in _quarantine(tmp_path)}
    assert named == {(7, "clips/00007.wav", "undecodable")}


@pytest.mark.fault(29)
def test_a_file_that_changed_since_indexing_stops_the_job_and_is_named(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with running(job):
        pass
    victim = tmp_path / "clips/00007.wav"
    victim.write_bytes(victim.read_bytes() + b"more")
    with running(job) as loaders, pytest.raises(trainer_client.RefusedError, match=r"clips/00007\.wav"):
        _rows(loaders)


@pytest.mark.fault(31)
def test_a_file_that_cannot_be_read_is_tried_elsewhere_and_then_stops_the_job(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with running(job) as loaders:
        (tmp_path / "clips/00007.wav").unlink()
        with pytest.raises(
            trainer_client.RefusedError, match=r"clips/00007\.wav.*expected to read the sample, got .*No such file"
        ) as caught:
            _rows(loaders)
        assert "Check the disk" in str(caught.value)


@pytest.mark.fault(8)
def test_a_sample_that_kills_its_decoder_costs_one_restart_and_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text says which it is; unique, so that only one sample dies."""
    job = write_job(tmp_path, samples=400, transforms=("tests.support.transforms:aborts", "logmel", "characters"))
    manifest = tmp_path / "csv.csv"
    lines = manifest.read_text().splitlines()
    lines[43] = lines[43].split(",")[0] + ",culprit"
    manifest.write_text("\n".join(lines) + "\n")
    (tmp_path / "culprit").write_text("culprit")
    monkeypatch.setenv("STOKER_TEST_CULPRIT", str(tmp_path / "culprit"))
    with running(job) as loaders:
        rows = _rows(loaders)
        again = _rows(loaders)
        text = loaders.text()
    assert [tag for tag, weight in rows.items() if not weight] == [42]
    assert again == rows
    assert text.count("died and is started again") <= 1
    assert {(line["sample"], line["reason"]) for line in _quarantine(tmp_path)} == {(42, "kills_decoder")}
