"""The counting model on parameter servers, of which, and of whose workers, some are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.counting_model import MODULE
from tests.support.loaders import wait_until
from tests.support.served_cluster import ServedCluster
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EPOCHS", "PACED", "train_and_kill"]

#: More than others have, so that there is time to kill in.
EPOCHS = 8

PACED = (
    MODULE
    + """

def paced(tag):
    time.sleep(0.1)
    return tag


class Paced(Counts):
    def call(self, tag):
        return super().call(tf.ensure_shape(tf.numpy_function(paced, [tag], tag.dtype), tag.shape))


def paced_model(samples):
    return Paced(samples)
"""
)

#: Who is killed, in turn. The worker is not started again: others do its work.
_VICTIMS = ("worker 1", "ps 1", "worker 0", "ps 0")


def train_and_kill(endpoint: str, stream: str, samples: int, kills: int, checkpoints: Path) -> None:
    """Train to the end on two servers, and kill so many processes once something new is committed each time."""
    words = ("--feed", endpoint, "--stream", stream, "--model", "paced:paced_model", "--param", f"samples={samples}")
    words += ("--checkpoint", str(checkpoints), "--epochs", str(EPOCHS), "--save-every", "3", "steps")
    folder = checkpoints.parent
    (folder / "paced.py").write_text(PACED)
    there = CheckpointFolder(checkpoints, 3)
    with ServedCluster(folder, *words, servers=2, workers=2, environment={}) as cluster:
        cluster.start_all()
        wait_until(lambda: there.newest() > "00000001.npz", "something is trained and committed", 100)
        for name in (_VICTIMS * kills)[:kills]:
            if name in cluster.running:
                before = there.newest()
                cluster.kill(name)
                if name != "worker 1":
                    kind, index = name.split()
                    cluster.start(kind, int(index))
                wait_until(lambda before=before: there.newest() > before, f"it goes on without {name}", 100)
        cluster.ended()
