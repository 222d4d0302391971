"""Images and arrays of any size from a running job: as arrays, by TCP, for each framework, resumed, and verified."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import loader_server
import trainer_client
from tests.loader_server.test_any_size import of_parquet, scores
from tests.loader_server.test_two_axes import job_of, require_whole, write
from tests.support.loaders import ROOT, Loaders, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ROWS = 4
JOB = f"""length = "image"
rows = {ROWS}
shapes = 2
sub_buckets = {{ image_width = 2 }}
padding = {{ image = 9 }}

"""

SCORES = """length = "value"
rows = 3
shapes = 2
sub_buckets = { value_width = 2 }
padding = { value = -1 }
"""
RESIZED = """[streams.resized]
source = "parquet"
paths = ["a.parquet"]
any_size = true
transforms = ["resize_image", "random_flip"]
rows = 8

[streams.resized.resize_image]
size = [9, 11]
"""
#: Two streams of the job, with the key of each that differs along two axes.
STREAMS = {"train": "image", "scores": "value"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loaders, Path, list[np.ndarray]]]:
    folder = tmp_path_factory.mktemp("images")
    images = write(folder)
    path = job_of(folder, JOB)
    path.write_text(
        path.read_text().replace('name = "x"', 'name = "x"\nfeature_cache_bytes = "1 GiB"')
        + f"[streams.scores]\n{of_parquet(folder, scores())}\n{SCORES}{RESIZED}"
    )
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


def test_what_the_feature_cache_keeps_of_a_first_transform_is_an_array(
    served: tuple[Loaders, Path, list[np.ndarray]],
) -> None:
    loaders, path, images = served
    opened = loader_server.open(path).stream("resized")
    with trainer_client.connect(loaders.endpoint, stream="resized", epochs=2) as feed:
        batches = [(batch.epoch, batch.number, np.array(batch["image"])) for _ in range(2) for batch in feed]
    assert len(batches) == 2 * opened.batches() == 2 * -(-len(images) // 8)
    for epoch, number, image in batches:
        assert np.array_equal(image, opened.batch(number, epoch=epoch)["image"])


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


def require_served(stream: str, batches: Iterable[Any], opened: Any) -> None:
    """Each batch has the bytes that an open job makes without servers."""
    keys = [f"{STREAMS[stream]}{end}" for end in ("", "_length", "_width")]
    count = 0
    for batch in batches:
        own = opened.batch(batch.number, epoch=batch.epoch)
        for key in (*keys, "weight", "tag"):
            assert np.asarray(batch[key]).tobytes() == own[key].tobytes()
        count += 1
    assert count == opened.batches()


@pytest.mark.parametrize("stream", STREAMS)
def test_by_tcp_batches_are_those_of_the_plan(served: tuple[Loaders, Path, list[np.ndarray]], stream: str) -> None:
    loaders, path, _ = served
    opened = loader_server.open(path).stream(stream)
    with trainer_client.connect(loaders.endpoint, stream=stream, shared_memory=False, verify=True) as feed:
        require_served(stream, feed, opened)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("framework", "kind"), [("torch", "FeedTensors"), ("jax", "FeedArrays")])
def test_frameworks_get_the_bytes_of_the_plan(
    served: tuple[Loaders, Path, list[np.ndarray]], stream: str, framework: str, kind: str
) -> None:
    adapter = pytest.importorskip(f"trainer_client.{framework}", exc_type=ImportError)
    loaders, path, _ = served
    opened = loader_server.open(path).stream(stream)
    with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
        require_served(stream, getattr(adapter, kind)(feed), opened)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_resumed_feed_goes_on_with_the_same_bytes(
    served: tuple[Loaders, Path, list[np.ndarray]], stream: str, shared_memory: bool
) -> None:
    loaders, path, _ = served
    opened, key = loader_server.open(path).stream(stream), STREAMS[stream]
    with trainer_client.connect(loaders.endpoint, stream=stream, shared_memory=shared_memory) as feed:
        for batch in feed:
            if batch.number == 4:
                break
            feed.trained()
        state = feed.state()
    with trainer_client.connect(loaders.endpoint, stream=stream, shared_memory=shared_memory) as feed:
        feed.restore(state)
        numbers = []
        for batch in feed:
            numbers.append(batch.number)
            assert np.array_equal(batch[key], opened.batch(batch.number)[key])
    assert numbers == list(range(4, opened.batches()))


def test_it_is_verified(served: tuple[Loaders, Path, list[np.ndarray]]) -> None:
    loaders, path, _ = served
    command = [sys.executable, "-m", "trainer_client", "verify", loaders.endpoint]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
