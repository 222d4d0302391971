"""What a source has without saying anything, and what it has to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader_server.sources.source import Indexed, Source


class Bare(Source):
    """Says nothing."""


@pytest.fixture
def bare() -> Bare:
    source = Bare(None, Path())
    numbers = {"length_a": np.arange(3), "bytes": np.arange(3), "length_b": np.arange(3) * 2}
    source.open(Indexed(samples=3, numbers=numbers, strings={}, fingerprint="f", place=Path("state/index-train")))
    return source


def test_lengths_are_the_columns_that_are_called_so(bare: Bare) -> None:
    assert {key: column.tolist() for key, column in bare.lengths.items()} == {"a": [0, 1, 2], "b": [0, 2, 4]}


def test_a_sample_is_called_by_its_number_in_the_index(bare: Bare) -> None:
    assert (bare.name(2), bare.place(2)) == ("state/index-train, line 2", ("state/index-train", 2))
    assert bare.identity(2) == "sample 2 of f"


def test_nothing_has_to_be_read_and_all_is_one_part(bare: Bare) -> None:
    assert list(bare.read([2, 0])) == [b"", b""]
    assert (bare.samples, bare.parts, bare.gathers, bare.measurable) == (3, (0,), False, True)
    assert bare.modules == (__name__,)
    assert bare.conclude({}) == {}
    bare.close()


def test_segments_are_of_4096_samples_and_nothing_has_to_be_read_before_gathering(bare: Bare) -> None:
    assert bare.segments.tolist() == [0, 3]
    bare.open(Indexed(samples=8193, numbers={}, strings={}))
    assert bare.segments.tolist() == [0, 4096, 8192, 8193]
    assert (bare.reads_ahead, bare.unread(np.array([1, 2])).tolist()) == (False, [])


@pytest.mark.parametrize("sample", [-1, 3])
def test_a_number_that_no_sample_has_is_refused(bare: Bare, sample: int) -> None:
    with pytest.raises(IndexError, match=f"expected a sample from 0 to 2, got {sample}"):
        bare.checked(sample)
    assert [bare.checked(one) for one in (0, 2)] == [0, 2]


@pytest.mark.parametrize(
    "ask",
    [
        lambda source: source.fields,
        lambda source: source.survey(),
        lambda source: source.probe(0),
        lambda source: source.decode(0, b""),
        lambda source: source.gather(np.zeros(1, np.int64), {}),
    ],
)
def test_what_only_the_format_knows_has_to_be_said(bare: Bare, ask: Any) -> None:
    with pytest.raises(NotImplementedError):
        ask(bare)
