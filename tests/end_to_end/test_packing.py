"""Packed rows end to end: every sample whole, told apart by segment and position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import trainer_client
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from pathlib import Path


def test_packed_rows_hold_every_sample_once_with_its_marks(tmp_path: Path) -> None:
    plain = write_job(tmp_path, samples=60, transforms=("logmel",))
    packed = tmp_path / "packed.toml"
    packed.write_text(
        plain.read_text().replace('name = "tones"', 'name = "packed"').replace("shapes = 4", 'packing = "3 s"')
    )
    with running(plain, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        lengths, sums = [], []
        for batch in feed:
            valid = batch["weight"] > 0
            lengths += batch["audio_length"][valid].tolist()
            sums += batch["audio"][valid].sum(axis=(1, 2)).tolist()
    with running(packed, workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        found_lengths, found_sums = [], []
        for batch in feed:
            assert batch["audio"].shape[1] == 300
            for row in range(batch.rows):
                segments = batch["audio_segment"][row]
                for segment in range(1, segments.max() + 1):
                    at = np.flatnonzero(segments == segment)
                    np.testing.assert_array_equal(batch["audio_position"][row, at], np.arange(len(at)))
                    found_lengths.append(len(at))
                    found_sums.append(float(batch["audio"][row, at].sum()))
            assert not batch["audio"][batch["audio_segment"] == 0].any()
    assert sorted(found_lengths) == sorted(lengths)
    np.testing.assert_allclose(sorted(found_sums), sorted(sums), rtol=1e-4)
