"""What `evaluate` advises where there is no checkpoint, and how long it follows a folder."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.evaluating.evaluate import _versions, no_checkpoint


def followed(folder):
    """The steps of the checkpoints that are evaluated, one by one; for ten seconds at most."""
    order = SimpleNamespace(checkpoints=folder, follow_s=10.0)
    return (record["step"] for _, record in _versions(order, (), time.monotonic()))


def written(folder, step):
    CheckpointFolder(folder, 3).write({"0": np.zeros(1)}, {"epoch": 1, "step": step})


def test_a_finished_folder_is_followed_to_its_last_checkpoint_and_no_longer(tmp_path):
    written(tmp_path, 1)
    CheckpointFolder(tmp_path, 3).mark(finished=True)
    began_s = time.monotonic()
    assert list(followed(tmp_path)) == [1]
    assert time.monotonic() - began_s < 5


def test_a_run_that_goes_on_in_a_finished_folder_is_followed(tmp_path):
    """It began while the checkpoint of the run before was evaluated."""
    folder = CheckpointFolder(tmp_path, 3)
    written(tmp_path, 1)
    folder.mark(finished=True)
    steps = followed(tmp_path)
    assert next(steps) == 1
    folder.mark(finished=False)
    written(tmp_path, 2)
    assert next(steps, None) == 2
    folder.mark(finished=True)
    assert list(steps) == []


def test_a_run_that_went_on_and_ended_meanwhile_is_followed_to_its_last_checkpoint(tmp_path):
    folder = CheckpointFolder(tmp_path, 3)
    written(tmp_path, 1)
    folder.mark(finished=True)
    steps = followed(tmp_path)
    assert next(steps) == 1
    written(tmp_path, 2)
    assert list(steps) == [2]


def test_whoever_waited_already_is_not_told_to_wait(tmp_path):
    folder = CheckpointFolder(tmp_path, 1)
    assert "wait for it with evaluate --follow" in no_checkpoint(folder).remedy
    followed = no_checkpoint(folder, is_followed=True).remedy
    assert "--follow" not in followed
    assert "--max-time" in followed
