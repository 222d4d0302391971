"""Images without boxes are trained on too, if `min_length = 0` asks for it: by budget, by rows, packed, and resumed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

import trainer_client
from tests.support.loaders import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

#: The boxes of each image: a third of the images has none.
COUNTS = [0 if number % 3 == 0 else number % 5 for number in range(60)]
JOB = """
[job]
name = "boxes"
listen = "tcp://127.0.0.1:*"

[streams.train]
source = "tfrecord"
paths = ["a.tfrecord"]
features = { boxes = "float32 [any, 4]", label = "int64 [any]", picture = "uint8 [2, 2]" }
length = "boxes"
budget = "12 steps"
shapes = 3
min_length = 0

[streams.rows]
like = "train"
evaluation = false
rows = 8
shapes = "none"

[streams.packed]
source = "tfrecord"
paths = ["a.tfrecord"]
features = { boxes = "float32 [any, 4]" }
length = "boxes"
budget = "24 steps"
packing = "6 steps"
min_length = 0

[streams.dropping]
source = "tfrecord"
paths = ["a.tfrecord"]
features = { boxes = "float32 [any, 4]", label = "int64 [any]" }
length = "boxes"
budget = "12 steps"
"""


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaders]:
    import tensorflow as tf

    folder: Path = tmp_path_factory.mktemp("boxes")
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as file:
        for number, count in enumerate(COUNTS):
            boxes = [float(number + side) for side in range(1, 5)] * count
            features = {
                "boxes": tf.train.Feature(float_list=tf.train.FloatList(value=boxes)),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[])),
                "picture": tf.train.Feature(int64_list=tf.train.Int64List(value=[number] * 4)),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    (folder / "job.toml").write_text(JOB)
    with running(folder / "job.toml", workers=1) as loaders:
        yield loaders


def test_each_image_comes_once_with_its_boxes_or_none(loaders: Loaders) -> None:
    for stream, most_cells in (("train", 12), ("rows", 8 * 4)):
        seen = Counter[int]()
        with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
            for batch in feed:
                rows, steps = batch["boxes"].shape[:2]
                assert rows * steps <= most_cells
                assert stream != "rows" or rows == 8
                assert batch["label"].shape == (rows, 1), "a key that is always empty"
                assert not batch["label_length"].any()
                for row in np.flatnonzero(batch["weight"]).tolist():
                    number, length = int(batch["tag"][row]), int(batch["boxes_length"][row])
                    seen[number] += 1
                    assert length == COUNTS[number]
                    assert batch["boxes"][row, :length].tolist() == [[number + side for side in range(1, 5)]] * length
                    assert not batch["boxes"][row, length:].any()
                    assert (batch["picture"][row] == number).all()
        assert seen == Counter(range(60))


def test_a_run_that_is_resumed_gets_the_rest(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        digests = [batch.digest for batch in feed]
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        batches = iter(feed)
        first = [next(batches).digest for _ in range(5)]
        feed.trained(5)
        state = feed.state()
    with trainer_client.connect(loaders.endpoint, stream="train") as feed:
        feed.restore(state)
        rest = [batch.digest for batch in feed]
    assert first + rest == digests


def test_packed_rows_hold_all_boxes_and_an_empty_sample_has_no_marks(loaders: Loaders) -> None:
    boxes = []
    with trainer_client.connect(loaders.endpoint, stream="packed") as feed:
        for batch in feed:
            for row in range(batch["boxes"].shape[0]):
                segments = batch["boxes_segment"][row]
                for segment in range(1, segments.max(initial=0) + 1):
                    own = batch["boxes"][row][segments == segment]
                    assert len(np.unique(own, axis=0)) <= 1, "of one image each"
                    boxes += [int(own[0, 0]) - 1] * len(own) if len(own) else []
    assert Counter(boxes) == Counter({number: count for number, count in enumerate(COUNTS) if count})


def test_without_the_setting_they_are_dropped_as_before(loaders: Loaders) -> None:
    with trainer_client.connect(loaders.endpoint, stream="dropping") as feed:
        seen = [tag for batch in feed for tag in batch["tag"][batch["weight"] > 0].tolist()]
    assert sorted(seen) == [number for number, count in enumerate(COUNTS) if count]
