"""A data set that a trainer sends, under keys, to a worker on another machine: one with a folder of its own, which has
only the worker's keys and no memory in common with the trainer.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import trainer_client
from shared.keys import make_keys
from tests.support.fleet import Fleet, fleet
from tests.support.log_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = """
[job]
name = "sentences"
seed = 5
listen = "tcp://127.0.0.1:*"
accept_graphs = true
keys = "keys"

[streams.sent]
source = "graph"
"""
#: What a worker's machine has of the keys.
OF_WORKERS = ("worker.key_secret", "coordinator.key", "allowed")


def copied(keys: Path, folder: Path, *names: str) -> Path:
    """A folder with these of the keys."""
    folder.mkdir(parents=True)
    for name in names:
        (shutil.copytree if (keys / name).is_dir() else shutil.copy)(keys / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Path]]:
    """A coordinator, a worker on another machine, and that one's folder."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    make_keys(here / "keys")
    (here / "job.toml").write_text(JOB)
    (there / "job.toml").write_text(JOB)
    copied(here / "keys", there / "keys", *OF_WORKERS)
    with fleet(here / "job.toml") as one:
        one.join("far", job=there / "job.toml", tensorflow=True)
        yield one, there


def test_a_key_of_another_role_may_not_send_one(machines: tuple[Fleet, Path]) -> None:
    import tensorflow as tf  # it takes seconds

    one, _ = machines
    keys = one.job.parent / "keys"
    guest = copied(keys, one.job.parent / "guest", "coordinator.key", "worker.key")
    shutil.copy(keys / "worker.key_secret", guest / "trainer.key_secret")
    with pytest.raises(trainer_client.RefusedError, match=r"expected a key in .*trainer"):
        trainer_client.distribute(tf.data.Dataset.range(3), one.endpoint, stream="sent", keys=str(guest))


@pytest.mark.slow
def test_a_worker_elsewhere_fetches_the_graph_and_makes_the_same_elements(machines: tuple[Fleet, Path]) -> None:
    import tensorflow as tf  # it takes seconds

    one, there = machines
    keys = copied(one.job.parent / "keys", there / "trainer", "trainer.key_secret", "coordinator.key", "worker.key")
    data: Any = tf.data.Dataset.range(50).map(lambda n: (n, tf.strings.as_string(n * n))).batch(8)
    here = [(n.numpy().tolist(), word.numpy().tolist()) for n, word in data]
    with Lines() as lines:
        sent = trainer_client.distribute(data, one.endpoint, stream="sent", keys=str(keys), shared_memory=False)
        try:
            assert [(n.numpy().tolist(), word.numpy().tolist()) for n, word in sent] == here
        finally:
            sent.feed.close()
    kept = {path.relative_to(there) for path in (there / ".stoker").rglob("*") if path.is_file()}
    assert any(path.parent.name.startswith("index-sent") or "index-sent" in str(path) for path in kept)
    assert {line["by"] for line in lines.fields("worker serves us")} == {"TCP"}
