"""Images of any size from a running job: as arrays, for TensorFlow, from the feature cache, and verified."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import loader_server
import trainer_client
from tests.loader_server.test_two_axes import job_of, require_whole, write
from tests.support.loaders import ROOT, Loaders, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 4
JOB = f"""length = "image"
rows = {ROWS}
shapes = 2
sub_buckets = {{ image_width = 2 }}
padding = {{ image = 9 }}

"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loaders, Path, list[np.ndarray]]]:
    folder = tmp_path_factory.mktemp("images")
    images = write(folder)
    path = job_of(folder, JOB)
    path.write_text(path.read_text().replace('name = "x"', 'name = "x"\nfeature_cache_bytes = "1 GiB"'))
    with running(path, workers=1) as loaders:
        yield loaders, path, images


def test_each_epoch_has_each_image_once_and_whole(served: tuple[Loaders, Path, list[np.ndarray]]) -> None:
    loaders, path, images = served
    opened = loader_server.open(path).stream("train")
    epochs: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    with trainer_client.connect(loaders.endpoint, epochs=2) as feed:
        for batch in (batch for _ in epochs for batch in feed):
            keys = ("image", "image_length", "image_width", "label", "weight", "tag")
            arrays = {key: np.array(batch[key]) for key in keys}
            own = opened.batch(batch.number, epoch=batch.epoch)
            assert all(np.array_equal(arrays[key], own[key]) for key in keys)
            epochs[batch.epoch].append(arrays)
            feed.trained()
    for batches in epochs.values():
        require_whole(batches, images, fill=9)
        assert len({arrays["image"].shape for arrays in batches}) <= 4


def test_tensorflow_sees_both_axes_as_unknown(served: tuple[Loaders, Path, list[np.ndarray]]) -> None:
    tf = pytest.importorskip("tensorflow")
    loaders, _, images = served
    seen = []
    with trainer_client.connect(loaders.endpoint, epochs=3) as feed:
        data = feed.dataset(inputs=("image", "image_length", "image_width", "label", "weight"))
        spec = tf.nest.flatten(data.element_spec)[0]
        assert spec.shape.as_list() == [ROWS, None, None, 3]
        for image, rows, columns, label, weight in map(tf.nest.flatten, data):
            for row in np.flatnonzero(weight.numpy()):
                own = image.numpy()[row, : rows[row], : columns[row]]
                assert np.array_equal(own, images[int(label[row])])
                seen.append(int(label[row]))
    assert sorted(set(seen)) == list(range(len(images)))


def test_it_is_verified(served: tuple[Loaders, Path, list[np.ndarray]]) -> None:
    loaders, path, _ = served
    command = [sys.executable, "-m", "trainer_client", "verify", loaders.endpoint]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
