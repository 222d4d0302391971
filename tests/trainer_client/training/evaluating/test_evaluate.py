"""What `evaluate` advises where there is no checkpoint."""

from __future__ import annotations

from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.evaluating.evaluate import no_checkpoint


def test_whoever_waited_already_is_not_told_to_wait(tmp_path):
    folder = CheckpointFolder(tmp_path, 1)
    assert "wait for it with evaluate --follow" in no_checkpoint(folder).remedy
    followed = no_checkpoint(folder, is_followed=True).remedy
    assert "--follow" not in followed
    assert "--max-time" in followed
