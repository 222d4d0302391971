"""A model that begins with another's values: what fits by name and shape, what is refused, and where they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DataError, SettingsError
from shared.quick_import import quick_import
from trainer_client.training.checkpoints.checkpoint_folder import CheckpointFolder
from trainer_client.training.checkpoints.initial_values import InitialValues, match_values, variable_names

with quick_import():
    import keras

from trainer_client.training.checkpoints.saved_model import model_record, plain_arrays

MODEL = {"encoder/dense/kernel": (3, 2), "encoder/dense/bias": (2,), "head/kernel": (2, 1)}


def matched(variables, values, *parts):
    return match_values(variables, values, parts, "there")


# --- what fits what ---


def test_all_of_equal_names_and_shapes_are_matched():
    found = matched(MODEL, dict(reversed(MODEL.items())))
    assert dict(found.pairs) == {name: name for name in MODEL}
    assert (found.kept, found.unused) == ([], [])
    assert found.line("there") == "LOADED: 3 of 3 variables from there"


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ({name: MODEL[name] for name in list(MODEL)[:2]}, r"got no value for head/kernel\."),
        ({}, "got no value for encoder/dense/kernel, encoder/dense/bias, head/kernel"),
        (MODEL | {"head/kernel": (2, 5)}, r"got other shapes: head/kernel \[2, 5\] for \[2, 1\]"),
        (MODEL | {"tail/kernel": (2, 5)}, "got values of no variable: tail/kernel"),
        (
            {"encoder/dense/kernel": (4, 2), "encoder/dense/bias": (2,), "old/kernel": (2, 1)},
            r"no value for head/kernel; other shapes: encoder/dense/kernel \[4, 2\] for \[3, 2\]; values of no "
            "variable: old/kernel",
        ),
    ],
    ids=["missing", "nothing", "another shape", "surplus", "all of it"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name_with_the_way_out(values, got):
    with pytest.raises(DataError, match=rf"there: expected a value for each of 3 variables(.|\n)*{got}(.|\n)*name it"):
        matched(MODEL, values)


def test_a_part_is_loaded_alone_and_the_rest_is_listed():
    values = MODEL | {"head/kernel": (2, 5), "tail/kernel": (9,)}
    found = matched(MODEL, values, "encoder")
    assert dict(found.pairs) == {name: name for name in list(MODEL)[:2]}
    assert (found.kept, found.unused) == (["head/kernel"], ["head/kernel", "tail/kernel"])
    assert found.line("there") == (
        "LOADED: 2 of 3 variables from there; own values: head/kernel; not taken from there: head/kernel, tail/kernel"
    )


def test_what_does_not_fit_within_a_part_is_refused_as_well():
    with pytest.raises(DataError, match=r"each of 2 variables.* got other shapes: encoder/dense/bias \[3\] for \[2\]"):
        matched(MODEL, MODEL | {"encoder/dense/bias": (3,)}, "encoder")
    with pytest.raises(DataError, match="values of no variable: encoder/more"):
        matched(MODEL, MODEL | {"encoder/more": (3,)}, "encoder")
    with pytest.raises(DataError, match="no value for head/kernel"):
        matched(MODEL, {}, "head")


@pytest.mark.parametrize(
    ("part", "of"),
    [
        ("encoder", 2), ("encoder/dense", 2), ("dense", 2), ("enc*", 2), ("encoder/*/bias", 1), ("kernel", 2), ("*", 3),
        ("/head/", 1), ("[eh]*", 3),
    ],
)  # fmt: skip
def test_a_part_is_any_run_of_layers_on_the_path_or_a_pattern_of_them(part, of):
    assert len(matched(MODEL, MODEL, part).pairs) == of


@pytest.mark.parametrize("part", ["enc", "dense/encoder", "encoder/kernel", "", "encoder/dense/kernel/more"])
def test_a_part_that_the_model_lacks_is_refused(part):
    with pytest.raises(SettingsError, match=r"expected parts of the model, such as encoder/dense/kernel, .*got"):
        matched(MODEL, MODEL, "head", part)


def test_names_that_differ_in_the_numbers_of_layers_alone_are_matched_in_order():
    """In a notebook, where a model is made a second time."""
    variables = {"dense_2/kernel": (3, 3), "dense_3/kernel": (3, 3)}
    assert dict(matched(variables, {"dense/kernel": (3, 3), "dense_1/kernel": (3, 3)}).pairs) == {
        "dense_2/kernel": "dense/kernel", "dense_3/kernel": "dense_1/kernel",
    }  # fmt: skip
    overlapping = {"dense_1/kernel": (3, 3), "dense_2/kernel": (3, 3)}
    assert list(matched(variables, overlapping).pairs.values()) == list(overlapping)


@pytest.mark.parametrize(
    "values",
    [
        {"dense/kernel": (3, 3)},
        {"dense/kernel": (3, 3), "dense_1/kernel": (3, 2)},
        {"dense/kernel": (3, 3), "other_1/kernel": (3, 3)},
        {"dense/kernel": (3, 3), "dense_1/kernel": (3, 3), "dense_2/bias": (1,)},
    ],
)
def test_other_names_are_not_matched_in_order(values):
    with pytest.raises(DataError):
        matched({"dense_2/kernel": (3, 3), "dense_3/kernel": (3, 3)}, values)


def test_a_part_is_matched_by_exact_names():
    with pytest.raises(DataError, match="no value for dense_2/kernel"):
        matched({"dense_2/kernel": (3, 3)}, {"dense/kernel": (3, 3)}, "dense_2")


def test_seeds_stay_the_runs_own():
    seed = {"drop/seed_generator/seed_generator_state": (2,), "drop/seed_generator/seed_generator_state (2)": (2,)}
    for variables, values in ((MODEL | seed, MODEL), (MODEL, MODEL | seed), (MODEL | seed, MODEL | seed)):
        found = matched(variables, values)
        assert (len(found.pairs), found.kept, found.unused) == (3, [], [])


def test_long_lists_are_cut_in_lines_and_errors():
    many = {f"layer/{at}": (1,) for at in range(7)}
    line = matched(MODEL | many, MODEL, *MODEL).line("there")
    assert line.endswith("; own values: layer/0, layer/1, layer/2, layer/3, layer/4 and 2 more")


@given(st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from([(1,), (2,)])), st.dictionaries(
    st.sampled_from("abcdefg"), st.sampled_from([(1,), (2,)])), st.sets(st.sampled_from("abcdefg")))  # fmt: skip
def test_each_variable_is_loaded_with_its_own_shape_or_kept_and_nothing_is_silent(variables, values, parts):
    try:
        found = matched(variables, values, *sorted(parts))
    except SettingsError:
        assert parts - set(variables)
        return
    except DataError:
        wanted = parts or {*variables, *values}
        assert {name: variables.get(name) for name in wanted} != {name: values.get(name) for name in wanted}
        return
    assert all(variables[name] == values[value] for name, value in found.pairs.items())
    assert {*found.pairs, *found.kept} == set(variables)
    assert {*found.pairs.values(), *found.unused} == set(values)
    assert set(found.pairs) == (parts or set(variables))


# --- a model's names, and files ---


def made(units=4, **layers):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(units, name="encoder")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.5, seed=3)(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden), **layers)
    model.compile("adam", "mse")
    return model


def spoilt(model):
    """Give each variable another value, and return all."""
    for at, variable in enumerate(model.variables):
        variable.assign(keras.ops.cast(keras.ops.ones_like(variable), variable.dtype) * (at + 1))
    return [variable.numpy() for variable in model.variables]


def checkpoint(folder, model):
    record = {"epoch": 1, "step": 3, **model_record(model)}
    return CheckpointFolder(folder, 3).write(plain_arrays([*model.variables, *model.optimizer.variables]), record)


class Nested(keras.Model):
    def __init__(self, **how):
        super().__init__(**how)
        self.first = keras.layers.Dense(2, name="same")
        self.second = keras.layers.Dense(2, name="same")

    def call(self, inputs):
        return self.second(self.first(inputs))


def test_names_do_not_begin_with_the_models_own_and_are_told_apart():
    for name in ("small", "large"):
        model = Nested(name=name)
        model(np.zeros((1, 2), np.float32))
        assert variable_names(model) == ["same/kernel", "same/bias", "same/kernel (2)", "same/bias (2)"]


def written(way, tmp_path, model):
    """The path to the model's values, written in this way."""
    if way == "exported":
        model.save(tmp_path / "model.keras")
        return tmp_path / "model.keras"
    if way == "arrays":
        names = variable_names(model)
        np.savez(tmp_path / "own.npz", **{name: v.numpy() for name, v in zip(names, model.variables, strict=True)})
        return tmp_path / "own.npz"
    path = checkpoint(tmp_path / "run", model)
    return path if way == "one checkpoint" else path.parent


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras' own saving, with this numpy
@pytest.mark.heritage("L12")
@pytest.mark.parametrize("way", ["folder", "one checkpoint", "exported", "arrays"])
def test_values_come_from_a_folder_a_checkpoint_an_exported_model_or_plain_arrays(way, tmp_path, capsys):
    source, model = made(name="source"), made(name="other")
    want = spoilt(source)
    path = written(way, tmp_path, source)
    seeds = [v.numpy() for v in model.variables if v.path.endswith("seed_generator_state")]
    InitialValues(path)(model)
    for variable, value in zip(model.variables, want, strict=True):
        if variable.path.endswith("seed_generator_state"):
            np.testing.assert_array_equal(variable.numpy(), seeds[0])
        else:
            np.testing.assert_array_equal(variable.numpy(), value)
    file = path / "00000001.npz" if way == "folder" else path
    assert capsys.readouterr().out == f"LOADED: 8 of 8 variables from {file}\n"


@pytest.mark.parametrize("first", [1, 2], ids=["names that overlap", "other names"])
def test_layers_with_other_numbers_get_the_values_of_those_in_their_place(first, tmp_path, capsys):
    """As for a model that is made a second time in a notebook: dense_1 gets what dense had, and dense_2 what dense_1
    had.
    """

    def numbered(*names):
        layers = [keras.layers.Dense(3, name=name) for name in names]
        model = keras.Sequential([keras.Input((3,)), *layers])
        model.compile("sgd", "mse")
        return model

    source, model = numbered("dense", "dense_1"), numbered(f"dense_{first}", f"dense_{first + 1}")
    want = spoilt(source)
    InitialValues(checkpoint(tmp_path, source))(model)
    for variable, value in zip(model.variables, want, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert capsys.readouterr().out == f"LOADED: 4 of 4 variables from {tmp_path / '00000001.npz'}\n"


def test_a_part_alone_is_loaded_of_a_model_that_is_larger(tmp_path, capsys):
    source, model = made(units=5), made()
    want = spoilt(source)
    before = [variable.numpy() for variable in model.variables]
    initial = InitialValues(checkpoint(tmp_path, source), parts=["head/bias", "nor*/moving_mean"], model=model)
    with pytest.raises(DataError, match=r"other shapes: norm/moving_mean \[5\] for \[4\]"):
        initial()
    assert all(np.array_equal(one, other.numpy()) for one, other in zip(before, model.variables, strict=True))
    InitialValues(tmp_path, parts=["head/bias"])(model, prints=False)
    assert model.get_layer("head").bias.numpy() == want[variable_names(source).index("head/bias")]
    assert capsys.readouterr().out == ""


def test_what_is_no_source_of_values_is_refused_before_anything_is_loaded(tmp_path):
    (tmp_path / "model.h5").touch()
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "saved_model.pb").touch()
    for name, got in (("none", "got nothing"), ("model.h5", r"ends in \.h5"), ("exported", "got a SavedModel")):
        with pytest.raises(SettingsError, match=rf"{name}: expected a folder of checkpoints(.|\n)*{got}"):
            InitialValues(tmp_path / name)


def test_what_cannot_be_read_is_refused(tmp_path):
    model = made()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="got a folder without any"):
        InitialValues(empty)(model)
    for name in ("damaged.npz", "damaged.keras"):
        (tmp_path / name).write_bytes(b"PK damaged")
        with pytest.raises(DataError, match=rf"{name}: expected a checkpoint(.|\n)*that cannot be"):
            InitialValues(tmp_path / name)(model)
    CheckpointFolder(tmp_path / "old", 1).write(plain_arrays(model.variables), {"model_variables": 9})
    with pytest.raises(DataError, match="one without names, of an earlier release"):
        InitialValues(tmp_path / "old")(model)
    path = checkpoint(tmp_path / "cut", model)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError):
        InitialValues(path)(model)


def test_a_model_without_variables_cannot_get_any(tmp_path):
    path = checkpoint(tmp_path, made())
    with pytest.raises(SettingsError, match="expected a model that has its variables, got none"):
        InitialValues(path)()
    with pytest.raises(SettingsError, match="got one that was never called"):
        InitialValues(path, model=keras.Sequential([keras.layers.Dense(1)]))()


def test_values_in_half_the_bits_are_cast(tmp_path):
    source = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="bfloat16", name="head")])
    source.compile("sgd", "mse")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="head")])
    InitialValues(checkpoint(tmp_path, source))(model)
    np.testing.assert_array_equal(model.variables[0].numpy(), source.variables[0].numpy().astype(np.float32))
