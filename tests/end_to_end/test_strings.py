"""Strings of a running job's batches: in memory and by TCP, for two ranks, after a resume, and for TensorFlow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import loader_server
import trainer_client
from tests.loader_server.batches.test_batch_strings import SAMPLES, write_table
from tests.support.loaders import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.loaders import Loaders

JOB = """
[job]
name = "x"
listen = "tcp://127.0.0.1:*"
float32 = "bfloat16"
compression = "lz4"

[streams.train]
source = "parquet"
paths = ["a.parquet"]
length = "tokens"
budget = "200 steps"
strings = ["text", "id"]

[streams.ranks]
like = "train"
evaluation = false

[streams.packed]
like = "train"
evaluation = false
packing = "50 steps"
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loaders, Path, dict[str, list[Any]]]]:
    folder = tmp_path_factory.mktemp("strings")
    table = write_table(folder)
    (folder / "job.toml").write_text(JOB)
    with running(folder / "job.toml", workers=2) as loaders:
        yield loaders, folder / "job.toml", table


def strings_of(batch: Mapping[str, Any], table: dict[str, list[Any]]) -> dict[int, str]:
    """The id of each sample of a batch, by its number, if all of its strings are the sample's own."""
    found = dict[int, str]()
    for row, tag in enumerate(batch["tag"].tolist()):
        assert (batch["id"][row], batch["text"][row]) == (
            ("", "") if tag < 0 else (table["id"][tag], table["text"][tag])
        )
        if tag >= 0:
            found[tag] = batch["id"][row]
    return found


@pytest.mark.parametrize("shared_memory", [True, False])
def test_each_sample_comes_with_its_strings_in_the_bytes_that_are_shown(
    served: tuple[Loaders, Path, dict[str, list[Any]]], shared_memory: bool
) -> None:
    loaders, path, table = served
    opened, found = loader_server.open(path).stream("train"), dict[int, str]()
    with trainer_client.connect(loaders.endpoint, shared_memory=shared_memory, verify=True) as feed:
        for batch in feed:
            found |= strings_of(batch, table)
            assert opened.batch(batch.number).digest == batch.digest
        assert [sorted(shape.lengths) for shape in feed.shapes] == [["tokens"]] * len(feed.shapes)
    assert found == dict(enumerate(table["id"]))


def test_two_ranks_and_a_resume_have_each_string_once(served: tuple[Loaders, Path, dict[str, list[Any]]]) -> None:
    loaders, _, table = served
    found, states = list[str](), dict[int, Any]()

    def read(rank: int, most: int) -> None:
        with trainer_client.connect(loaders.endpoint, stream="ranks", rank=rank, world=2) as feed:
            if rank in states:
                feed.restore(states[rank])
            for count, batch in enumerate(feed, 1):
                found.extend(strings_of(batch, table).values())
                feed.trained()
                if count == most:
                    break
            states[rank] = feed.state()

    for most in (3, 10_000):
        threads = [threading.Thread(target=read, args=(rank, most)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
    assert sorted(found) == table["id"]


@pytest.mark.parametrize("stream", ["train", "packed"])
def test_tensorflow_has_them_as_tensors_of_strings(
    served: tuple[Loaders, Path, dict[str, list[Any]]], stream: str
) -> None:
    loaders, _, table = served
    found = list[str]()
    with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
        data = feed.dataset(map=lambda batch: (batch["id"], batch["text"], batch["tag"]))
        assert [spec.dtype.name for spec in data.element_spec] == ["string", "string", "int64"]
        for ids, texts, _ in data:
            assert ids.shape == texts.shape
            pairs = zip(ids.numpy().ravel(), texts.numpy().ravel(), strict=True)
            for identity, text in ((identity.decode(), text.decode()) for identity, text in pairs if identity):
                assert text == table["text"][table["id"].index(identity)]
                found.append(identity)
    assert sorted(found) == table["id"]
    assert len(found) == SAMPLES


@pytest.mark.parametrize(("inputs", "times"), [("tokens", 1), ("id", 0), (("tokens", "id"), 0)])
def test_elements_with_strings_are_not_put_on_a_device(
    served: tuple[Loaders, Path, dict[str, list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
    inputs: str | tuple[str, ...],
    times: int,
) -> None:
    import tensorflow as tf

    from trainer_client.tf import dataset

    devices = list[str]()
    monkeypatch.setattr(dataset, "_accelerator", lambda: "/gpu:0")
    monkeypatch.setattr(
        tf.data.experimental, "prefetch_to_device", lambda *at: devices.append(at[0]) or (lambda data: data)
    )
    with trainer_client.connect(served[0].endpoint) as feed:
        next(iter(feed.dataset(inputs=inputs)))
    assert devices == ["/gpu:0"] * times


def test_warming_up_has_empty_strings(served: tuple[Loaders, Path, dict[str, list[Any]]]) -> None:
    loaders, _, _ = served
    for stream, shape in (("train", 1), ("packed", 2)):
        seen = list[Any]()
        with trainer_client.connect(loaders.endpoint, stream=stream) as feed:
            feed.warm_up(seen.append, map=lambda batch: (batch["id"], batch["tag"]))
        assert {ids.dtype.name for ids, _ in seen} == {"string"}
        assert {len(ids.shape) for ids, _ in seen} == {shape}
        assert not any(identity for ids, _ in seen for identity in ids.numpy().ravel())
