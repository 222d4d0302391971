"""What never ends: a transform that sleeps, C code that holds the interpreter, a read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import trainer_client
from tests.support.bad_samples import culprits_of, job_with_texts, quarantined, rows_of
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 'build_timeout = "2 s"'


@pytest.mark.slow
@pytest.mark.fault(34)
@pytest.mark.parametrize("text", ["sleeps", "holds"])
def test_a_sample_that_never_ends_is_masked_and_named(tmp_path: Path, text: str) -> None:
    job = job_with_texts(tmp_path, {23: text}, transform="never_ends", job=_TIMEOUT)
    with running(job) as loaders:
        rows = rows_of(loaders)
        culprits = culprits_of(loaders)
        said = loaders.text()
    assert sorted(rows) == list(range(60))
    assert [tag for tag, weight in rows.items() if not weight] == [23]
    assert {(line["sample"], line["name"], line["reason"]) for line in quarantined(tmp_path)} == {
        (23, "clips/00023.wav", "kills_decoder")
    }
    assert [(one["stream"], one["ends"]) for one in culprits] == [("train", "no end in 2 s, no end in 2 s")]
    assert "clips/00023.wav" in culprits[0]["identity"]
    assert "missed its build_timeout" in said  # the supervisor
    assert "in never_ends" in said  # the stack, for whoever wants to mend it


@pytest.mark.slow
@pytest.mark.fault(34)
def test_a_read_that_never_ends_is_an_error_that_names_the_file_and_masks_nothing(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=60, job=_TIMEOUT)
    victim, aside = tmp_path / "clips/00007.wav", tmp_path / "aside.wav"
    said = r"00007\.wav.*: expected to read the sample within 2 s .build_timeout., got a read that was still going on"
    with running(job) as loaders:
        victim.rename(aside)
        os.mkfifo(victim)  # nobody writes: opening it waits for ever
        with pytest.raises(trainer_client.StokerError, match=said):
            rows_of(loaders)
        aside.rename(victim)
        rows = rows_of(loaders)
        assert "died" not in loaders.text()
    assert set(rows.values()) == {1.0}
    assert "did not end in time" not in loaders.text()
    assert not (tmp_path / ".stoker/tones/quarantine.jsonl").read_text()
