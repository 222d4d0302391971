"""Who made a sample longer than planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loader_server.transforms.chain import Chain
from loader_server.transforms.declare import transform
from loader_server.transforms.overrun import blame_for_length
from shared.wire.batch_layout import Field

RAW = (Field(key="audio", dtype="float32", shape=(None,)),)
HERE = __name__


@transform({"audio": ("float32", None)}, lengths={"audio": lambda lengths: lengths["audio"] // 2})
def halved(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["audio"] = sample["audio"][: len(sample["audio"]) // 2]


@transform()
def grown_by_draw(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["audio"] = np.pad(sample["audio"], (0, int(rng.integers(1, 100))))


def undeclared(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["audio"] = np.repeat(sample["audio"], 2)


def blamed(*names: str, length: int = 10, indexed: int = 10) -> str:
    chain = Chain.make(tuple(f"{HERE}:{name}" for name in names), {}, "job", RAW)
    sample = {"audio": np.zeros(length, np.float32), "audio_rate": 8000}
    return blame_for_length(chain, sample, {"audio": indexed, "audio_rate": 8000}, (1, 2, 3))


def test_the_first_transform_that_breaks_its_word_is_named() -> None:
    drawn = int(Chain.make((f"{HERE}:grown_by_draw",), {}, "job", RAW).apply(
        {"audio": np.zeros(5, np.float32)}, seed=1, epoch=2, number=3
    )["audio"].size)  # fmt: skip
    wanted = f'The transform {HERE}:grown_by_draw declares at most 5 steps of "audio" and made {drawn}: mend it.'
    assert blamed("halved", "grown_by_draw", "halved") == wanted


def test_a_declared_one_is_named_before_one_that_declares_nothing() -> None:
    assert ":grown_by_draw declares at most 20 steps" in blamed("undeclared", "grown_by_draw")


@pytest.mark.parametrize("names", [("undeclared",), ("halved", "undeclared", "undeclared")])
def test_else_one_that_declares_nothing(names: tuple[str, ...]) -> None:
    assert blamed(*names) == (
        f"The transform {HERE}:undeclared made fewer steps while indexing: declare the most that it makes, "
        "or index again."
    )


def test_a_source_whose_samples_grew() -> None:
    wanted = 'The source gave 11 steps of "audio" where the index says 10: run loader-server index.'
    assert blamed("halved", length=11) == wanted


def test_texts_count_in_characters() -> None:
    chain = Chain.make(("characters",), {}, "job", ())
    assert "The source gave 4" in blame_for_length(chain, {"text": "four"}, {"text": 3}, (1, 2, 3))


def widened(sample: dict[str, Any], rng: np.random.Generator) -> None:
    sample["image"] = np.pad(sample["image"], ((0, 0), (0, 2)))


def test_a_second_axis_is_blamed_like_the_first() -> None:
    raw = (Field(key="image", dtype="uint8", shape=(None, None)),)
    indexed = {"image": 3, "image_width": 4}
    chain = Chain.make((f"{HERE}:widened",), {}, "job", raw)
    assert ":widened made fewer steps" in blame_for_length(
        chain, {"image": np.zeros((3, 4), np.uint8)}, indexed, (1, 2, 3)
    )
    grown = blame_for_length(chain, {"image": np.zeros((3, 5), np.uint8)}, indexed, (1, 2, 3))
    assert grown == 'The source gave 5 steps of "image_width" where the index says 4: run loader-server index.'
