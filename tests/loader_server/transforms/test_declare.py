"""Declarations are checked when they are made."""

from dataclasses import dataclass

import pytest

from loader_server.transforms.declare import Declaration, Outputs, declaration_of, placing, transform
from shared.errors import SettingsError
from shared.settings.parsers import number, setting
from shared.wire.batch_layout import Field


@dataclass(frozen=True)
class Level:
    level: float = setting(number(0), "loudness", default=0.01)


def test_a_declaration_becomes_fields():
    @transform({"audio": ("float32", None, 80), "speaker": ("int32",)}, per_second={"audio": 50.0}, removes=("text",))
    def change(sample, rng): ...

    made = declaration_of(change).outputs
    assert made is not None
    assert made.fields == (
        Field(key="audio", dtype="float32", shape=(None, 80), per_second=50.0),
        Field(key="speaker", dtype="int32", shape=()),
    )
    assert made.removes == ("text",)


def test_a_plain_function_declares_nothing_and_may_draw():
    assert declaration_of(lambda sample, rng: None) == Declaration(outputs=None, draws=True, settings=None, packages=())


def test_a_declared_one_changes_nothing_and_draws_unless_it_says_otherwise():
    assert declaration_of(transform()(lambda sample, rng: None)) == Declaration(outputs=Outputs(), draws=True)
    assert not declaration_of(transform(draws=False)(lambda sample, rng: None)).draws


def test_settings_packages_and_being_measured_are_declared():
    @transform(measured=True, settings=Level, packages=["soxr"])
    def change(sample, rng, settings): ...

    assert declaration_of(change) == Declaration(outputs=None, settings=Level, packages=("soxr",))


def test_a_class_is_declared_like_a_function_and_so_are_those_that_inherit():
    @transform(settings=Level, draws=False)
    class Change: ...

    class Other(Change): ...

    assert (
        declaration_of(Change) == declaration_of(Other) == Declaration(outputs=Outputs(), settings=Level, draws=False)
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            ("float", None),
            r'the declaration of .*: expected "audio" as \(dtype, axes …\) with a dtype of bool, .*got \(\'float\'',
        ),
        (
            ("float32", 80, None),
            r'expected axes of "audio" that are whole numbers, the first one or two also None, got \(80, None\)',
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


@dataclass
class Thawed:
    level: float = setting(number(0), "loudness", default=0.01)


@dataclass(frozen=True)
class Bare:
    level: float = 0.01


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"settings": Thawed},
            r"expected settings that are a frozen dataclass of setting\(…\) fields, got <class .*Th",
        ),
        ({"settings": Bare}, r"frozen dataclass of setting\(…\) fields, got <class .*Bare"),
        ({"settings": dict}, r"frozen dataclass of setting\(…\) fields, got <class 'dict'>"),
        ({"settings": Level()}, r"frozen dataclass of setting\(…\) fields, got Level"),
        (
            {"settings": Level},
            r"a function \(sample, rng, settings\), as it declares settings, got change\(sample, rng\)",
        ),
        ({"removes": "audio"}, r"expected removes that are a tuple of names, .*got 'audio'"),
        ({"packages": "soxr"}, r"expected packages that are a tuple of names, .*got 'soxr'"),
        ({"packages": (1,)}, r"expected packages that are a tuple of names, .*got \(1,\)"),
        (
            {"measured": True, "outputs": {"audio": ("float32", None)}, "lengths": {"audio": len}},
            "expected measured=True alone, or with outputs whose lengths are measured, got lengths",
        ),
        ({"measured": True, "removes": ("audio",)}, "expected measured=True alone, .* got removes without outputs"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(declared, message):
    def change(sample, rng): ...

    with pytest.raises(SettingsError, match=r"^the declaration of .*test_declare:.*change: .*" + message):
        transform(**declared)(change)


@pytest.mark.parametrize(
    ("known", "placed"), [("", "job"), ("window", "job, window"), ("job, window", "job, window")], ids=repr
)
def test_errors_of_settings_are_told_their_place(known, placed):
    with pytest.raises(SettingsError) as caught, placing("job"):
        raise SettingsError(expected="this", got="that", where=known, remedy="Mend it.")
    assert str(caught.value) == f"{placed}: expected this, got that. Mend it."
