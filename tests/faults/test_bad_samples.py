"""Samples that cannot be used, and files that cannot be read: the first are masked and named, the second stop the
job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.bad_samples import job_with_texts, make_undecodable, quarantined, rows_of
from tests.support.corpora import utterances
from tests.support.disk import small_disk
from tests.support.loaders import ask, running, wait_until, write_job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.fault(7)
@pytest.mark.heritage("R9")
def test_a_transform_that_raises_masks_its_row_and_names_it(tmp_path: Path) -> None:
    with running(
        write_job(tmp_path, transforms=("tests.support.transforms:raises", "logmel", "characters"))
    ) as loaders:
        rows = rows_of(loaders)
    bad = {number for number, one in enumerate(utterances(120)) if one.text.startswith("three")}
    assert bad
    assert {tag for tag, weight in rows.items() if not weight} == bad
    assert sorted(rows) == list(range(120))
    named = quarantined(tmp_path)
    assert {line["sample"] for line in named} == bad
    assert {(line["reason"], line["stream"]) for line in named} == {("transform", "train")}
    assert "ValueError: three is too many" in named[0]["error"]
    assert named[0]["name"].startswith("clips/")


@pytest.mark.fault(33)
def test_what_is_no_exception_masks_its_row_like_any_other(tmp_path: Path) -> None:
    bad = {5: "exit", 17: "interrupt", 43: "panic"}
    with running(job_with_texts(tmp_path, bad, transform="raises_no_exception")) as loaders:
        rows = rows_of(loaders)
        assert "died" not in loaders.text()
    assert sorted(rows) == list(range(60))
    assert {tag for tag, weight in rows.items() if not weight} == set(bad)
    named = {line["sample"]: line["error"] for line in quarantined(tmp_path)}
    assert named.keys() == set(bad)
    for sample, said in ((5, "got SystemExit: 3"), (17, "got KeyboardInterrupt"), (43, "got Panic: at the disco")):
        assert said in named[sample]


def test_content_that_a_decoder_does_not_like_is_told_from_a_disk_that_fails(tmp_path: Path) -> None:
    with running(job_with_texts(tmp_path, {7: "content"}, transform="raises_os_errors")) as loaders:
        rows = rows_of(loaders)
    assert [tag for tag, weight in rows.items() if not weight] == [7]
    with (
        running(job_with_texts(tmp_path / "disk", {7: "disk"}, transform="raises_os_errors")) as loaders,
        pytest.raises(trainer_client.DataError, match=r"to read what it needs, got .*lexicon\.txt"),
    ):
        rows_of(loaders)


@pytest.mark.fault(46)
def test_with_a_full_disk_under_the_quarantine_log_the_process_log_names_what_was_masked(tmp_path: Path) -> None:
    job = job_with_texts(tmp_path, {7: "content"}, transform="raises_os_errors")
    (tmp_path / ".stoker").symlink_to("disk")
    with small_disk(tmp_path / "disk", "4m") as disk, running(job) as loaders:
        disk.fill()
        rows = rows_of(loaders)
        wait_until(lambda: sum(worker["masked"] for worker in ask(loaders.endpoint)["workers"]), "it is counted")
        said = [json.loads(line) for line in loaders.text().splitlines() if "quarantine.jsonl" in line]
    assert [tag for tag, weight in rows.items() if not weight] == [7]
    # On a busy machine the batch may have been asked of both workers.
    assert {(line["level"], line["sample"], line["name"]) for line in said} == {("warning", 7, "clips/00007.wav")}
    assert "No space left on device" in said[0]["quarantine"]


def test_bytes_that_are_no_audio_mask_their_row(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    make_undecodable(tmp_path / "clips/00007.wav", len(utterances(120, longest_s=1.0)[7].audio))
    with running(job) as loaders:
        rows = rows_of(loaders)
    assert [tag for tag, weight in rows.items() if not weight] == [7]
    named = {(line["sample"], line["name"], line["reason"]) for line in quarantined(tmp_path)}
    assert named == {(7, "clips/00007.wav", "undecodable")}


@pytest.mark.fault(29)
def test_a_file_that_changed_under_a_running_job_stops_it_and_is_named(tmp_path: Path) -> None:
    victim = tmp_path / "clips/00007.wav"
    with running(write_job(tmp_path)) as loaders:
        victim.write_bytes(victim.read_bytes() + b"more")
        with pytest.raises(trainer_client.DataError, match=r"clips/00007\.wav"):
            rows_of(loaders)


@pytest.mark.fault(31)
def test_a_file_that_cannot_be_read_is_tried_elsewhere_and_then_stops_the_job(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with running(job) as loaders:
        (tmp_path / "clips/00007.wav").unlink()
        with pytest.raises(
            trainer_client.DataError, match=r"clips/00007\.wav.*expected to read the sample, got .*No such file"
        ) as caught:
            rows_of(loaders)
        assert "Check the disk" in str(caught.value)


@pytest.mark.fault(8)
def test_a_sample_that_kills_its_decoder_costs_a_restart_a_worker_and_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text says which it is; unique, so that only one sample dies."""
    job = job_with_texts(tmp_path, {42: "culprit"}, transform="aborts", samples=400)
    (tmp_path / "culprit").write_text("culprit")
    monkeypatch.setenv("STOKER_TEST_CULPRIT", str(tmp_path / "culprit"))
    with running(job) as loaders:
        rows = rows_of(loaders)
        again = rows_of(loaders)
        text = loaders.text()
    assert [tag for tag, weight in rows.items() if not weight] == [42]
    assert again == rows
    assert text.count("died and is started again") <= 2  # on a busy machine the batch may have been asked of both
    assert {(line["sample"], line["reason"]) for line in quarantined(tmp_path)} == {(42, "kills_decoder")}
