"""NaN and infinite values of samples: counted by key, and masked if the job asks for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from tests.support.bad_samples import job_with_texts, quarantined, rows_in
from tests.support.loaders import running, wait_until
from tests.support.scraping import fetch_metrics, read_targets

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.loaders import Loaders

BAD = {7: "nan", 11: "inf", 13: "-inf"}


def counted(folder: Path) -> float:
    targets = read_targets(folder / ".stoker/tones/targets").values()
    scrapes = [fetch_metrics(one["address"]) for one in targets if one["role"] == "worker"]
    labels = (("key", "audio"), ("stream", "train"))
    return sum(scrape["stoker_not_finite_samples_total", labels] for scrape in scrapes)


def read(loaders: Loaders) -> list[trainer_client.Batch]:
    with trainer_client.connect(loaders.endpoint) as feed:
        return list(feed)


@pytest.mark.fault(70)
@pytest.mark.slow
@pytest.mark.parametrize("setting", ["keep", "mask"])
def test_they_are_counted_by_key_and_masked_where_that_is_asked_for(tmp_path: Path, setting: str) -> None:
    job = job_with_texts(tmp_path, BAD, transform="spoils", job=f'not_finite = "{setting}"')
    before = job.read_text()
    job.write_text(before.replace("'logmel', ", "").replace("[streams.train.logmel]\nrate = 8000\nbands = 40\n", ""))
    with running(job, workers=1) as loaders:
        batches = read(loaders)
        wait_until(lambda: counted(tmp_path) >= len(BAD), "they are counted")
        said = [line for line in loaders.text().splitlines() if "samples have values that are not finite" in line]
    finite = {
        int(tag): bool(np.isfinite(row).all())
        for batch in batches
        for tag, row in zip(batch["tag"], batch["audio"], strict=True)
    }
    weights = rows_in(batches)
    assert len(said) == 1
    if setting == "keep":
        assert weights == dict.fromkeys(range(60), 1.0)
        assert {tag for tag, well in finite.items() if not well} == set(BAD)
        assert not (tmp_path / ".stoker/tones/quarantine.jsonl").read_text()
    else:
        assert all(finite.values())
        assert {tag for tag, weight in weights.items() if not weight} == set(BAD)
        assert {(line["sample"], line["reason"]) for line in quarantined(tmp_path)} == {(n, "not_finite") for n in BAD}
