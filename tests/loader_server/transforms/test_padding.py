"""`padding`: what fills cells without a sample, what it may be, and that without it nothing changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from loader_server.commands.index import index_missing
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from loader_server.transforms.padding import padding_of, words_of, zeros_for_tokens
from shared.errors import SettingsError
from shared.settings.job import StreamSettings
from shared.settings.tables import read_table
from shared.wire.batch_layout import Field
from tests.support.loaders import write_job

if TYPE_CHECKING:
    from pathlib import Path

    from loader_server.transforms.find import NamedTransform

DTYPES = ("int32", "uint16", "int64", "uint8", "float32", "float16", "float64", "bool")
FIELDS = tuple(Field(key=dtype, dtype=dtype, shape=(None,)) for dtype in DTYPES)


def steps(**tokens: int) -> list[NamedTransform]:
    step: Any = SimpleNamespace(name="tokenizers", call=SimpleNamespace(padding_tokens=tokens))
    plain: Any = SimpleNamespace(name="mine", call=len)
    return [plain, step]


def padding(written: dict[str, Any], float32: str = "float32", **tokens: int) -> dict[str, np.generic]:
    settings = read_table(StreamSettings, {"length": "int32", "padding": written}, "job")
    return padding_of(settings.padding, FIELDS, steps(**tokens), float32, "job, [streams.train]")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("int32", -(2**31)), ("uint16", 65535), ("int64", 2**63 - 1), ("uint8", 255), ("float32", -23.0),
        ("float16", 65504), ("float64", 1e300), ("bool", True),
    ],
)  # fmt: skip
def test_a_value_that_its_dtype_can_hold_is_that_value_of_the_dtype(key: str, value: float) -> None:
    (found,) = padding({key: value}).items()
    assert found == (key, value)
    assert found[1].dtype == key


@pytest.mark.parametrize(
    ("key", "value", "held"),
    [
        ("int32", 2**31, "an integer from -2147483648 to 2147483647, as it is int32, got 2147483648"),
        ("int32", 3.0, "an integer from .*, got 3.0"),
        ("int32", True, "an integer from .*, got true"),
        ("uint16", -100, "an integer from 0 to 65535, as it is uint16, got -100"),
        ("uint8", 256, "an integer from 0 to 255"),
        ("float32", 1e39, "a finite number, as it is float32"),
        ("float32", float("nan"), "a finite number"),
        ("float64", float("-inf"), "a finite number"),
        ("float64", True, "a finite number"),
        ("float16", 70000, "a finite number, as it is float16"),
        ("bool", 1, "true or false"),
    ],
)
def test_a_value_that_its_dtype_cannot_hold_is_refused_with_its_place(key: str, value: float, held: str) -> None:
    with pytest.raises(SettingsError, match=rf'"{key}" can hold: {held}') as refused:
        padding({key: value})
    assert refused.value.where == f"job, [streams.train], padding.{key}"


def test_a_float_is_rounded_as_the_values_beside_it_are() -> None:
    assert padding({"float32": -23.02}, "bfloat16")["float32"] == -23.0
    assert padding({"float32": -23.02}, "float16")["float32"] == np.float16(-23.02)
    assert padding({"float64": -23.02}, "float16")["float64"] == -23.02
    with pytest.raises(SettingsError, match="a finite number as float16"):
        padding({"float32": 70000}, "float16")


def test_zero_is_what_goes_without_saying() -> None:
    assert padding({"int32": 0, "float32": -0.0, "bool": False}) == {}
    assert words_of({}) == ()
    assert words_of({"b": np.int32(3), "a": np.float32(0.5)}) == ("padding a=0.5", "padding b=3")


def test_a_tokenizers_own_padding_token_is_taken_by_name() -> None:
    assert padding({"int32": "tokenizer"}, int32=5) == {"int32": 5}
    with pytest.raises(SettingsError, match=r'a tokenizer of "uint8" that has a padding token, got none'):
        padding({"uint8": "tokenizer"}, int32=5)
    with pytest.raises(SettingsError, match=r"an integer from 0 to 255, as it is uint8, got 300"):
        padding({"uint8": "tokenizer"}, uint8=300)


def test_tokens_that_are_padded_with_0_by_nobodys_choice_are_named() -> None:
    assert zeros_for_tokens(steps(text=3), ()) == {"text": ("tokenizers", 3)}
    assert zeros_for_tokens(steps(text=0), ()) == {}
    assert zeros_for_tokens(steps(text=3), (("text", 0),)) == {}


@pytest.mark.parametrize("written", [3, {}, {"int32": "pad"}, {"int32": [1]}, {"int32": {"a": 1}}])
def test_anything_but_a_table_of_values_is_refused(written: Any) -> None:
    with pytest.raises(SettingsError, match="a table such as"):
        padding(written)


def test_a_key_that_samples_do_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r'a key of this stream.s samples \("int32", .*\), perhaps "float32"'):
        padding({"floats32": 1})


def test_it_is_part_of_the_digest_if_it_is_not_0_and_a_stream_that_is_like_another_has_it_too(tmp_path: Path) -> None:
    path = write_job(tmp_path, samples=4)
    index_missing(JobFile(path))

    def opened(setting: str, name: str = "train") -> Stream:
        (tmp_path / "other.toml").write_text(path.read_text().replace("shapes = 4", f"shapes = 4\n{setting}"))
        return Stream(JobFile(tmp_path / "other.toml"), name)

    plain, zero = opened(""), opened("padding = { text = 0 }")
    padded, other = opened("padding = { text = 1 }"), opened("padding = { text = 2 }")
    assert plain.digest == zero.digest
    assert len({plain.digest, padded.digest, other.digest}) == 3
    assert len({plain.shared, padded.shared, other.shared}) == 3
    assert plain.plan.digest == padded.plan.digest, "which batch has which samples stays as it was"
    assert plain.steady == padded.steady, "and what is kept of samples too"
    assert opened("padding = { text = 1 }", "dev").padding == {"text": 1}
