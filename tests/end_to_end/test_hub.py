"""A data set of the Hugging Face hub through a whole job: its recordings as features, and its images as pixels."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import trainer_client
from tests.loader_server.sources.arrays.hub_golden import GOLDEN, ROWS, columns_of
from tests.support.loaders import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

JOB = """
[job]
name = "hub"
listen = "tcp://127.0.0.1:*"

[streams.speech]
source = "parquet"
paths = ["data"]
columns = ["audio", "label"]
transforms = ["logmel"]
length = "audio"
budget = "2 s"
[streams.speech.logmel]
rate = 8000

[streams.pictures]
source = "arrow"
paths = ["saved/train"]
columns = ["image", "when"]
resize = [6, 8]
length = "image"
budget = "30 steps"
"""


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    folder: Path = tmp_path_factory.mktemp("hub") / "set"
    shutil.copytree(GOLDEN, folder)
    (folder / "job.toml").write_text(JOB)
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders
    assert (folder / ".stoker/hub/quarantine.jsonl").read_text() == ""


def test_each_recording_comes_as_features_once(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, stream="speech") as feed:
        seen = [
            (int(length), int(label))
            for batch in feed
            for length, label, weight in zip(batch["audio_length"], batch["label"], batch["weight"], strict=True)
            if weight
        ]
    # 400 samples and 40 more each, of which frames of 25 ms begin every 10 ms.
    assert sorted(seen) == sorted((1 + (400 + 40 * row - 200) // 80, row % 2) for row in range(ROWS))


def test_each_image_comes_with_its_pixels_once(loaders: Loaders) -> None:
    found: dict[int, np.ndarray] = {}
    with trainer_client.connect(loaders.endpoint, stream="pictures") as feed:
        for batch in feed:
            for row in np.flatnonzero(batch["weight"]).tolist():
                day = (int(batch["when"][row]) // 1_000_000 - 1_767_225_600) // 86_400
                assert day not in found
                found[day] = np.array(batch["image"][row])
    assert sorted(found) == list(range(ROWS))
    for row, kept in enumerate(columns_of(ROWS)["image"]):
        image = Image.open(io.BytesIO(kept["bytes"])).convert("RGB").resize((8, 6), Image.Resampling.BILINEAR)
        # The kept files were written by one JPEG library, and these by the one that is here.
        assert np.abs(found[row].astype(int) - np.asarray(image)).max() <= 4
