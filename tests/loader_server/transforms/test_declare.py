"""Declarations are checked when they are made."""

import pytest

from loader_server.transforms.declare import declaration_of, transform
from shared.errors import SettingsError
from shared.wire.layout import Field


def test_a_declaration_becomes_fields():
    @transform({"audio": ("float32", None, 80), "speaker": ("int32",)}, per_second={"audio": 50.0}, removes=("text",))
    def change(sample, rng): ...

    made = declaration_of(change)
    assert made is not None
    assert made.outputs == (
        Field(key="audio", dtype="float32", shape=(None, 80), per_second=50.0),
        Field(key="speaker", dtype="int32", shape=()),
    )
    assert made.removes == ("text",)


def test_a_plain_function_declares_nothing():
    assert declaration_of(lambda sample, rng: None) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            ("float", None),
            r'the declaration of .*: expected "audio" as \(dtype, axes …\) with a dtype of bool, .*got \(\'float\'',
        ),
        (
            ("float32", 80, None),
            r'expected axes of "audio" that are whole numbers, the first one or None, got \(80, None\)',
        ),
        (("float32", 0), r"got \(0,\)"),
        ("float32", r"with a dtype of .*got 'float32'"),
        ((), r"with a dtype of .*got \(\)"),
    ],
)
def test_what_cannot_cross_is_refused_where_it_is_declared(spec, message):
    def change(sample, rng): ...

    with pytest.raises(SettingsError, match=message):
        transform({"audio": spec})(change)
