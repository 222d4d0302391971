"""A stream whose longest sample depends on the epoch, with real loaders, resumed in any stage, and in `plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from tests.support.forked import run_module
from tests.support.loaders import running, write_job

if TYPE_CHECKING:
    from pathlib import Path

#: The longest sample of each epoch, in frames of 10 ms.
STAGES = (40, 40, 70, 100)


def read_epoch(feed: trainer_client.Feed) -> tuple[list[int], int]:
    """The samples of an epoch, and the longest of them."""
    tags, longest = [], 0
    for batch in feed:
        assert {(shape.rows, shape.lengths["audio"]) for shape in feed.shapes} >= {batch["audio"].shape[:2]}
        valid = batch["weight"] != 0
        tags += batch["tag"][valid].tolist()
        longest = max(longest, int(batch["audio_length"][valid].max(initial=0)))
    return sorted(tags), longest


@pytest.mark.heritage("D14")
def test_samples_grow_longer_with_the_epochs_and_any_of_them_can_be_resumed(tmp_path: Path) -> None:
    job = write_job(tmp_path, samples=90, stream='max_length = { 0 = "0.4 s", 2 = "0.7 s", 3 = "1 s" }')
    with running(job, workers=1) as loaders:
        with trainer_client.connect(loaders.endpoint) as feed:
            shapes, states, epochs = feed.shapes, [feed.state()], []
            for _ in STAGES:
                epochs.append(read_epoch(feed))
                states.append(feed.state())
        assert all(longest <= most for (_, longest), most in zip(epochs, STAGES, strict=True))
        assert [longest > 40 for _, longest in epochs] == [False, False, True, True]
        tags = [set(tags) for tags, _ in epochs]
        assert tags[0] == tags[1] < tags[2] < tags[3]
        for number in np.array([2, 0, 3]):
            with trainer_client.connect(loaders.endpoint) as feed:
                feed.restore(states[number])
                assert feed.shapes == shapes
                assert read_epoch(feed) == epochs[number]
        with trainer_client.connect(loaders.endpoint, stream="dev") as feed:
            assert set(read_epoch(feed)[0]) == tags[3], "an evaluation stream has all that is ever trained on"
    code, said, errors = run_module("loader_server", "plan", str(job), "--json")
    assert code == 0, errors
    assert [(stage["epoch"], stage["samples"]) for stage in json.loads(said)["curriculum"]] == [
        (epoch, len(tags[epoch])) for epoch in (0, 2, 3)
    ]
