"""Features become what their forms say, and nothing else passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loader_server.sources.records.examples.feature_forms import (
    UnfitFeature,
    feature_forms,
    forms_of_examples,
    parsed_forms,
)
from loader_server.sources.records.examples.wire_format import features_of
from shared.errors import SettingsError
from tests.support.example_protos import SequenceExample, example


def value(form: str, raw: bytes) -> Any:
    (made,) = parsed_forms(feature_forms({"x": form}))
    return made.value(raw, features_of(raw).get("x"))


def steps(*of_each: list[float] | list[int] | list[bytes]) -> bytes:
    made = SequenceExample()
    for values in of_each:
        feature = made.feature_lists.feature_list["x"].feature.add()
        kind = {float: "float_list", int: "int64_list", bytes: "bytes_list"}[type(values[0])]
        getattr(feature, kind).value.extend(values)
    return made.SerializeToString()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("form", "raw", "expected"),
    [
        ("float32 [any]", example(x=[1.5, -2.0]), np.array([1.5, -2], np.float32)),
        ("float64 [2]", example(x=[1.5, -2.0]), np.array([1.5, -2])),
        ("float32 [any, 2]", example(x=[1.0, 2.0, 3.0, 4.0]), np.array([[1, 2], [3, 4]], np.float32)),
        ("float32", example(x=[2.5]), np.float32(2.5)),
        ("int64 [any]", example(x=[300, -1]), np.array([300, -1])),
        ("int16", example(x=-300), np.int16(-300)),
        ("uint8 [any]", example(x=[0, 255]), np.array([0, 255], np.uint8)),
        ("uint64", example(x=7), np.uint64(7)),
        ("bool [any]", example(x=[0, 1]), np.array([False, True])),
        ("int16 [any]", example(x=np.array([1, -2], "<i2").tobytes()), np.array([1, -2], np.int16)),
        ("uint8 [2, 2]", example(x=b"abcd"), np.array([[97, 98], [99, 100]], np.uint8)),
        ("float32 [any]", steps([1.0], [2.0]), np.array([1, 2], np.float32)),
        ("float32 [any, 2]", steps([1.0, 2.0], [3.0, 4.0]), np.array([[1, 2], [3, 4]], np.float32)),
        ("int32 [any]", steps([5], [-6]), np.array([5, -6], np.int32)),
        ("float32 [any]", example(y=1.0), np.zeros(0, np.float32)),
        ("int32 [any]", example(x=[]), np.zeros(0, np.int32)),
        ("float32 [any, 2]", example(y=1.0), np.zeros((0, 2), np.float32)),
    ],
)
def test_numbers(form: str, raw: bytes, expected: Any) -> None:
    found = value(form, raw)
    assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@pytest.mark.parametrize(
    ("form", "raw", "expected"),
    [
        ("text", example(x="zwei Bäume"), "zwei Bäume"),
        ("bytes", example(x=b"\xff"), b"\xff"),
        ("text [any]", example(x=["a", "b"]), ["a", "b"]),
        ("bytes [2]", example(x=[b"a", b"b"]), [b"a", b"b"]),
        ("text [any]", steps([b"a"], [b"b"]), ["a", "b"]),
        ("text [any]", example(y=1), []),
    ],
)
def test_texts_and_bytes(form: str, raw: bytes, expected: object) -> None:
    assert value(form, raw) == expected


@pytest.mark.parametrize(
    ("form", "raw", "reason", "said"),
    [
        ("int64", example(y=1), "missing_feature", 'expected a value of "x", got none'),
        ("float32 [3]", example(x=[]), "missing_feature", "got none"),
        ("text", example(y=1), "missing_feature", "got none"),
        ("int64", example(x=[1, 2]), "other_shape", 'expected "x" as int64, got 2 values'),
        ("float32 [3]", example(x=[1.0, 2.0]), "other_shape", r'expected "x" as float32 \[3\], got 2 values'),
        ("float32 [any, 2]", example(x=[1.0, 2.0, 3.0]), "other_shape", "got 3 values"),
        ("float32 [any, 2]", steps([1.0, 2.0], [3.0, 4.0, 5.0]), "other_shape", "got steps of 2, 3 values"),
        ("float32 [any]", steps([1.0, 2.0], [3.0, 4.0]), "other_shape", "got steps of 2 values"),
        ("int16 [any]", example(x=b"abc"), "other_shape", "got 3 bytes"),
        ("int16 [any]", example(x=[b"ab", b"cd"]), "other_shape", "got 2 values"),
        ("text [2]", example(x=["a"]), "other_shape", "got 1 values"),
        ("float32", example(x=1), "other_kind", 'expected "x" as float32, got integers'),
        ("int64", example(x=1.0), "other_kind", "got floats"),
        ("text", example(x=1), "other_kind", "got integers"),
        ("text", example(x=b"ab\xff"), "not_utf8", 'expected "x" in UTF-8, got the byte 0xff after 2 others'),
        ("int8", example(x=128), "out_of_range", r'expected "x" from -128 to 127 \(int8\), got 128'),
        ("uint64", example(x=-1), "out_of_range", "got -1"),
        ("bool", example(x=2), "out_of_range", r"from 0 to 1 \(bool\), got 2"),
    ],
)
def test_what_does_not_have_its_form_is_refused_in_words(form: str, raw: bytes, reason: str, said: str) -> None:
    with pytest.raises(UnfitFeature, match=said) as refused:
        value(form, raw)
    assert refused.value.reason == reason


# --- where forms come from ---


def forms(*raws: bytes) -> dict[str, str]:
    return {form.key: str(form) for form in forms_of_examples([(raw, features_of(raw)) for raw in raws])}


@pytest.mark.parametrize("kind", ["float_list", "int64_list"])
def test_a_step_without_values_does_not_fit(kind: str) -> None:
    made = SequenceExample()
    getattr(made.feature_lists.feature_list["x"].feature.add(), kind).SetInParent()
    form = "float32 [any]" if kind == "float_list" else "int64 [any]"
    with pytest.raises(UnfitFeature) as refused:
        value(form, made.SerializeToString())
    assert "steps of 0 values" in str(refused.value.args)


def test_forms_are_those_of_the_first_records() -> None:
    found = forms(example(a=[1.0, 2.0], b=1, c="x", d=[1], e=[1, 2]), example(a=[1.0], b=2, c="y", e=[1, 2]))
    assert found == {"a": "float32 [any]", "b": "int64", "c": "bytes", "d": "int64 [any]", "e": "int64 [any]"}


def test_forms_of_feature_lists_have_steps() -> None:
    assert forms(steps([1.0, 2.0]), steps([1.0, 2.0], [3.0, 4.0])) == {"x": "float32 [any, 2]"}
    assert forms(steps([1], [2])) == {"x": "int64 [any]"}
    assert forms(steps([b"a"])) == {"x": "bytes [any]"}


UNREADABLE = ["float", "float32 [", "float32[any,]", "int64 [0]", "text [any, 2]", "int8 [2, any]", 3]


@pytest.mark.parametrize("said", UNREADABLE)
def test_a_form_that_cannot_be_read_is_refused_with_examples(said: object) -> None:
    with pytest.raises(SettingsError, match=r'features, "x": expected a dtype, and axes.*Write for instance features'):
        feature_forms({"x": said})


def test_features_are_a_table() -> None:
    for said in ({}, "audio", ["audio"]):
        with pytest.raises(SettingsError, match="features: expected a dtype"):
            feature_forms(said)
    assert feature_forms({"y": "text", "x": "float32[any,80]"}) == (("x", "float32 [any, 80]"), ("y", "text"))
