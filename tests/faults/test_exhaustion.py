"""Samples that run out of memory or descriptors: their own fault only where there was enough of both, and never a
reason to go on for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import soundfile

import trainer_client
from tests.support.bad_samples import culprits_of, job_with_texts, quarantined, rows_of
from tests.support.claims import MOST_FLAC_SAMPLES, flac_that_claims
from tests.support.loaders import ask, running, write_job

if TYPE_CHECKING:
    from pathlib import Path

#: Much smaller than what any machine has free that runs tests.
_LITTLE = 'largest_sample = "1 MiB"'
#: More than any machine has.
_TOO_MUCH = 'largest_sample = "1000000000 GiB"'


@pytest.mark.fault(53)
@pytest.mark.slow
def test_samples_that_run_out_alone_with_enough_free_are_masked_and_named(tmp_path: Path) -> None:
    bad = {7: "memory", 11: "EMFILE", 13: "ENFILE", 17: "ENOMEM"}
    with running(job_with_texts(tmp_path, bad, transform="runs_out", job=_LITTLE), workers=1) as loaders:
        rows = rows_of(loaders)
        assert rows_of(loaders) == rows
        culprits = culprits_of(loaders)
        text = loaders.text()
    assert sorted(rows) == list(range(60))
    assert {tag for tag, weight in rows.items() if not weight} == set(bad)
    assert {line["sample"] for line in quarantined(tmp_path)} == set(bad)
    ends = {one["identity"].split(",")[0]: one["ends"] for one in culprits}
    assert ends["clips/00007.wav"] == ", ".join(2 * ["MemoryError: Unable to allocate 256. GiB"])
    assert ends["clips/00011.wav"].count("Too many open files") == 2
    assert len(ends) == len(bad)
    assert "died and is started again" not in text
    assert "drains and ends" not in text, "the worker itself had enough left"


@pytest.mark.fault(53)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("transform", "job", "said"),
    [
        ("runs_out", _TOO_MUCH, r"clips/00007\.wav in hand: MemoryError: .*free, of which .* needed"),
        ("runs_out_in_workers", _LITTLE, r"clips/00007\.wav in hand: MemoryError: Unable to allocate 256"),
    ],
    ids=["too little is free", "only the worker runs out"],
)
def test_otherwise_nobody_is_convicted_and_the_feed_ends_with_what_was_in_hand(
    tmp_path: Path, transform: str, job: str, said: str
) -> None:
    with running(job_with_texts(tmp_path, {7: "memory"}, transform=transform, job=job)) as loaders:
        with pytest.raises(trainer_client.StokerError, match=said) as failed:
            rows_of(loaders)
        assert ask(loaders.endpoint)["culprits"] == []
    assert type(failed.value).__name__ == "MachineError"


@pytest.mark.fault(53)
def test_a_recording_that_claims_more_than_may_be_is_left_out_and_the_setting_named(tmp_path: Path) -> None:
    job, clip = write_job(tmp_path, samples=20), tmp_path / "clips/00007.wav"
    audio, rate = soundfile.read(clip)
    soundfile.write(tmp_path / "clips/00007.flac", audio, rate)
    raw = (tmp_path / "clips/00007.flac").read_bytes()
    (tmp_path / "clips/00007.flac").write_bytes(flac_that_claims(MOST_FLAC_SAMPLES, raw))
    manifest = tmp_path / "csv.csv"
    manifest.write_text(manifest.read_text().replace("00007.wav", "00007.flac"))
    job.write_text(job.read_text().replace("[job]", '[job]\nmax_bad = "10 %"'))
    with running(job, workers=1) as loaders:
        assert rows_of(loaders) == dict.fromkeys(range(19), 1.0)
        text = loaders.text()
    assert "over_largest_sample: expected at most 1 GiB decoded, as largest_sample in [job] says, got 256 GiB" in text
