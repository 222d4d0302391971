"""A user's module: which pieces are found, by which name, with which parameters, and what is said of missing ones."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import SettingsError
from trainer_client.training.runs.model_module import EXAMPLES, ModelModule

COUNT = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module and gives its pieces."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text, *, model="", names=None, **parameters):
        name = f"users_{next(COUNT)}"
        (tmp_path / f"{name}.py").write_text(text)
        return ModelModule(f"{name}{model}", parameters, names or {})

    return write


def test_pieces_are_found_by_their_usual_names(module):
    one = module("loss = 'mse'\ndef model(): return 'a model'\ndef eval_metrics(): return ['mae']")
    assert (one.require("loss"), one.make("model"), one.make_if_there("eval_metrics")) == ("mse", "a model", ["mae"])
    assert (one.find("feed_keys"), one.make_if_there("dataset_pipeline")) == (None, None)


def test_or_by_the_name_that_the_user_gives(module):
    other = module("steep = 'mae'")
    text = "loss = 'mse'\nrough = 'huber'\ndef small(): return 'small'"
    one = module(text, model=":small", names={"loss": f"{other.name}:steep", "eval_metrics": ""})
    assert (one.make("model"), one.require("loss")) == ("small", "mae")
    assert module(text, names={"loss": "rough"}).require("loss") == "huber"


def test_a_function_gets_the_parameters_that_it_has(module):
    text = "def model(units, rate=0.5): return units, rate\ndef eval_metrics(k): return k"
    one = module(text, units=3, k=5)
    assert (one.make("model"), one.make("eval_metrics")) == ((3, 0.5), 5)
    one.refuse_unknown_parameters()
    every = module("def model(**all): return all", units=3, k=5)
    assert every.make("model") == {"units": 3, "k": 5}
    every.refuse_unknown_parameters()


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("loss = 1", {}, "--model: expected model in {0}, got nothing of that name. Write, for example:\ndef model(un"),
        ("def modle(): 1", {}, 'expected model in {0}, perhaps "modle", got nothing of that name.'),
        ("def big(): 1", {"model": ":bigg"}, 'expected bigg in {0}, perhaps "big", got nothing of that name.'),
        ("model = 7", {}, "{0}: expected model, a function, got a int. Write, for example:\ndef model"),
        ("import no_such", {}, 'expected the module "{0}" to be importable, got ModuleNotFoundError: No module named'),
        ("1 / 0", {}, "importable, got ZeroDivisionError: division by zero. Name it as an import does, without .py,"),
    ],
)
def test_a_piece_that_is_missing_is_named_with_an_example(module, text, how, words):
    one = module(text, **how)
    with pytest.raises(SettingsError) as caught:
        one.make("model")
    assert words.format(one.name) in str(caught.value)


def test_the_keys_of_the_data_are_what_a_dataset_takes(module):
    assert module("feed_keys = {'inputs': 'x', 'weights': 'w'}").feed_keys() == {"inputs": "x", "weights": "w"}
    for text, got in (("{'input': 'x'}", "input"), ("'x'", "a str")):
        one = module(f"feed_keys = {text}")
        with pytest.raises(SettingsError) as caught:
            one.feed_keys()
        assert f"feed_keys, a dict with some of inputs, targets, weights and map, got {got}. " in str(caught.value)
        assert "Write, for example:\nfeed_keys = " in str(caught.value)


def test_a_model_is_known_by_its_name_and_its_source(module):
    one, other = module("def model(): 1", model=":small"), module("def model(): 2")
    assert (one.full_name, other.full_name) == (f"{one.name}:small", f"{other.name}:model")
    assert one.digest() == module("def model(): 1").digest() != other.digest()


def test_a_function_that_is_called_later_is_one(module):
    assert module("1").find_function("prediction_processor") is None
    assert module("def prediction_processor(rows): return rows").find_function("prediction_processor")(3) == 3
    with pytest.raises(SettingsError, match="expected prediction_processor, a function, got a str"):
        module("prediction_processor = 'print'").find_function("prediction_processor")


def test_a_parameter_that_no_function_has_is_refused(module):
    one = module("def model(units=3, rate=0.5): 1", unit=3)
    one.make("model")
    with pytest.raises(SettingsError) as caught:
        one.refuse_unknown_parameters()
    assert str(caught.value) == (
        '--param: expected a parameter of its functions (rate, units), perhaps "units", got "unit". '
        f"Mend its name, or give a function of {one.name} this parameter."
    )


@pytest.mark.parametrize("piece", EXAMPLES)
def test_every_example_is_one(module, piece):
    keras = "import types, unittest.mock\nkeras = types.SimpleNamespace(losses=unittest.mock.MagicMock())\n"
    assert module(keras + EXAMPLES[piece]).require(piece) is not None
