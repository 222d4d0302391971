"""`padding` end to end: a language model's tokens and labels, padded as their user asks for, by every way they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tokenizers import Tokenizer

import trainer_client
from tests.support.forked import run_module
from tests.support.loaders import running
from tests.support.token_models import TEXTS, train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.loaders import Loaders

JOB = """
[job]
name = "text"
listen = "tcp://127.0.0.1:*"
compression = "lz4"
not_finite = "mask"

[streams.train]
source = "tfrecord"
paths = ["train.tfrecord"]
features = { text = "text", labels = "int64 [any]", kind = "uint8", scores = "float32 [any]" }
transforms = ["tokenizers"]
length = "text"
budget = "80 tokens"
shapes = 2
rows_multiple = 3
padding = { text = "tokenizer", labels = -100, kind = 255, scores = -1.5 }
[streams.train.tokenizers]
models = { text = "a.json" }

[streams.packed]
source = "lines"
paths = ["a.txt"]
transforms = ["tokenizers"]
length = "text"
budget = "120 tokens"
packing = "40 tokens"
padding = { text = "tokenizer" }
[streams.packed.tokenizers]
models = { text = "a.json" }

[streams.pipeline]
source = "pipeline"
base = "packed"
"""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loaders, int]]:
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("padding")
    tokenizer = Tokenizer.from_file(str(train_tokenizer(folder / "a.json")))
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(folder / "a.json"))
    floats = [[np.nan, 1.0] if place == 3 else [0.0] * (place % 4) for place in range(len(TEXTS))]
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord")) as file:
        for place, text in enumerate(TEXTS):
            features = {
                "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()])),
                "labels": tf.train.Feature(int64_list=tf.train.Int64List(value=[0] * (place % 5))),
                "kind": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
                "scores": tf.train.Feature(float_list=tf.train.FloatList(value=floats[place])),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    (folder / "a.txt").write_text("\n".join((*TEXTS, "")))
    (folder / "job.toml").write_text(JOB)
    with running(folder / "job.toml", workers=1, tensorflow=True) as loaders:
        yield loaders, tokenizer.token_to_id("<pad>")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_cells_without_a_sample_hold_what_the_user_asked_for(
    token: tuple[Loaders, int], *, shared_memory: bool
) -> None:
    loaders, padding = token
    expected = {"text": padding, "labels": -100, "scores": -1.5}
    empty = masked = 0
    assert padding > 0
    with trainer_client.connect(loaders.endpoint, stream="train", shared_memory=shared_memory) as feed:
        for batch in [*feed, *feed]:  # in the second epoch slots and buffers hold other batches
            for key, value in expected.items():
                outside = np.arange(batch[key].shape[1]) >= batch[f"{key}_length"][:, None]
                assert (batch[key][outside] == value).all()
                assert (batch[key][~outside] != value).all()
            assert batch["kind"].tolist() == np.where(batch["weight"] == 0, 255, 0).tolist()
            empty += int((batch["tag"] < 0).sum())
            masked += int(((batch["weight"] == 0) & (batch["tag"] >= 0)).sum())
    assert empty > 0
    assert masked == 2, "the sample whose score is not a number, in each epoch"


def test_gaps_of_packed_rows_hold_it_too(token: tuple[Loaders, int]) -> None:
    loaders, padding = token
    with trainer_client.connect(loaders.endpoint, stream="packed") as feed:
        batches = [{key: value.copy() for key, value in batch.items()} for batch in feed]
    for batch in batches:
        assert (batch["text"] == padding).tolist() == (batch["text_segment"] == 0).tolist()
        assert not batch["text_position"][batch["text_segment"] == 0].any()
    assert sum(int((batch["text_segment"] == 0).sum()) for batch in batches) > 0


def test_batches_that_a_pipeline_pads_hold_what_its_base_asks_for(token: tuple[Loaders, int]) -> None:
    loaders, padding = token
    with trainer_client.connect(loaders.endpoint, stream="pipeline") as feed:
        elements = [{key: tensor.numpy() for key, tensor in element.items()} for element in feed.pipeline()]
    for element in elements:
        outside = np.arange(element["text"].shape[1]) >= element["text_length"][:, None]
        assert (element["text"][outside] == padding).all()
        assert (element["text"][~outside] != padding).all()
    assert sum(map(len, (element["text"] for element in elements))) == len(TEXTS)


def test_plan_names_a_padding_token_that_nobody_asked_for(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "a.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "a.json"))
    tokenizer.add_special_tokens(["[PAD]"])
    tokenizer.save(str(tmp_path / "a.json"))
    (tmp_path / "a.txt").write_text("\n".join((*TEXTS, "")))
    job = tmp_path / "job.toml"
    stream = JOB[JOB.index("[streams.packed]") : JOB.index("[streams.pipeline]")].replace("packed", "train")
    job.write_text('[job]\nname = "text"\n' + stream.replace('padding = { text = "tokenizer" }\n', ""))
    assert run_module("loader_server", "index", str(job))[0] == 0
    code, printed, errors = run_module("loader_server", "plan", str(job))
    assert code == 0, errors
    assert f'tokenizers: the padding token of "text" is {tokenizer.token_to_id("[PAD]")}, and batches are' in printed
    job.write_text('[job]\nname = "text"\n' + stream.replace('"tokenizer"', "0"))
    assert "padding token" not in run_module("loader_server", "plan", str(job))[1]
    job.write_text('[job]\nname = "text"\n' + stream.replace('"tokenizer"', "-5000000000"))
    code, _, errors = run_module("loader_server", "plan", str(job))
    assert code == 1
    assert 'a value that "text" can hold: an integer from -2147483648 to 2147483647, as it is int32' in errors
    job.write_text('[job]\nname = "text"\n[streams.train]\nsource = "pipeline"\nbase = "x"\npadding = { text = 3 }\n')
    assert "the pipeline itself makes whole batches" in run_module("loader_server", "index", str(job))[2]
