"""The quarantine log: each sample once, whole lines, and the process log in its place where the disk is full."""

from __future__ import annotations

import json
import logging
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from loader_server.building.quarantine import COMMON_REASONS, Quarantine
from shared.errors import SampleError
from tests.support.another_user import as_another_user, folder_for_all

if TYPE_CHECKING:
    from collections.abc import Iterator


def error(reason: str = "transform") -> SampleError:
    return SampleError(reason=reason, expected="a sample", got="none", where="here", remedy="Mend it.")


@contextmanager
def full_after(nbytes: int) -> Iterator[None]:
    """Files of this process cannot become longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _open_files() -> list[str]:
    return [one.path for one in psutil.Process().open_files()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "quarantine.jsonl"


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "stoker.quarantine")
    return caplog


def test_a_sample_is_named_once_for_each_reason_and_counted_each_time(path: Path) -> None:
    quarantine = Quarantine(path)
    for reason in ("transform", "transform", "undecodable"):
        quarantine.note("train", 7, "a.wav", error(reason))
    quarantine.note("dev", 7, "a.wav", error())
    quarantine.close()
    assert str(path) not in _open_files()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["stream"], line["sample"], line["name"], line["reason"]) for line in lines] == [
        ("train", 7, "a.wav", "transform"),
        ("train", 7, "a.wav", "undecodable"),
        ("dev", 7, "a.wav", "transform"),
    ]
    assert lines[0]["error"] == "here: expected a sample, got none. Mend it."
    assert +quarantine.counts == {"transform": 3, "undecodable": 1}
    assert quarantine.counts["kills_decoder"] == 0, "a reason of our own is there from the start"


def test_a_line_that_a_full_disk_cuts_off_goes_to_the_process_log_and_spoils_no_other(
    path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine(path)
    quarantine.note("train", 1, "a.wav", error())
    with full_after(path.stat().st_size + 10):
        quarantine.note("train", 2, "b.wav", error())
        quarantine.note("train", 3, "c.wav", error())
    quarantine.note("train", 4, "d.wav", error())
    quarantine.close()
    first, torn, last = path.read_text().splitlines()
    assert (json.loads(first)["sample"], len(torn), json.loads(last)["sample"]) == (1, 10, 4)
    said = [record.fields for record in warnings.records]
    assert [(fields["sample"], fields["name"], fields["reason"]) for fields in said] == [
        (2, "b.wav", "transform"),
        (3, "c.wav", "transform"),
    ]
    assert said[0]["quarantine"] == f"{path}: File too large"
    assert +quarantine.counts == {"transform": 4}


def test_a_log_that_cannot_be_opened_is_said_and_replaced(path: Path, warnings: pytest.LogCaptureFixture) -> None:
    path.mkdir(parents=True)
    quarantine = Quarantine(path)
    quarantine.note("train", 1, "a.wav", error())
    quarantine.close()
    assert [record.event for record in warnings.records] == ["quarantine log cannot be opened", "sample is masked"]
    assert +quarantine.counts == {"transform": 1}


@pytest.mark.fault(66)
def test_in_a_closed_state_folder_each_sample_is_named_in_the_process_log(warnings: pytest.LogCaptureFixture) -> None:
    with folder_for_all() as folder, as_another_user():
        quarantine = Quarantine(folder / "state" / "quarantine.jsonl")
        quarantine.note("train", 1, "a.wav", error())
        quarantine.close()
    assert [record.event for record in warnings.records] == ["sample is masked"]
    assert warnings.records[0].fields["name"] == "a.wav"


def test_reasons_that_any_job_may_meet_are_counted_from_zero_and_are_given_somewhere(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.close()
    assert quarantine.counts == dict.fromkeys(COMMON_REASONS, 0)
    text = "".join(file.read_text() for file in (Path(__file__).parents[3] / "loader_server").rglob("*.py"))
    for reason in COMMON_REASONS:
        assert text.count(f'"{reason}"') >= 2, "one in the table, and one where a sample is masked for it"
