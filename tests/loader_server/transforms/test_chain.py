"""Chains: what they declare, what they make, and what they refuse."""

import importlib.metadata
import pickle
import sys
import textwrap
import threading

import numpy as np
import pytest

from loader_server.sources.blame import error_text
from loader_server.transforms import chain as chain_module
from loader_server.transforms.chain import Chain
from loader_server.transforms.generators import generator_for
from shared.errors import ReadError, SampleError, SettingsError
from shared.wire.batch_layout import Field
from tests.support.corpora import tone

RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),)

FUNCTIONS = """
import numpy as np
from loader_server.transforms.declare import transform

@transform()
def noise(sample, rng):
    sample["audio"] = sample["audio"] + rng.standard_normal(sample["audio"].shape, dtype="float32")

@transform({"audio": ("float32", None)}, lengths={"audio": lambda lengths: lengths["audio"] // 2})
def halved(sample, rng):
    return {**sample, "audio": sample["audio"][: len(sample["audio"]) // 2]}

@transform({"speaker": ("int32",), "ones": ("int8", None, 2)}, lengths={"ones": lambda lengths: 5})
def speaker(sample, rng):
    sample["speaker"] = 3
    sample["ones"] = np.ones((5, 2), np.int8)

@transform(removes=("audio",))
def silent(sample, rng):
    del sample["audio"]

@transform({"audio": ("float32", None, 4)})
def wrong_shape(sample, rng): pass

@transform()
def wrong_dtype(sample, rng):
    sample["audio"] = sample["audio"].astype("float64")

@transform({"extra": ("float32", None)})
def forgotten_length(sample, rng): pass

@transform({"audio": ("float32", None)}, lengths={"audio": lambda lengths: lengths["audio"] / 2})
def fractional(sample, rng): pass

@transform(lengths={"audio": lambda lengths: np.array([1, 2, 3])})
def too_many(sample, rng): pass

@transform()
def numbered(sample, rng): pass

@transform()
def raising(sample, rng):
    raise KeyError("speaker")

@transform()
def raising_what(sample, rng):
    raise sample["what"]

@transform()
def reading(sample, rng):
    open("/nowhere/noise.wav")

@transform()
def returning(sample, rng):
    return 7

def undeclared(sample, rng):
    sample["audio"] = np.repeat(sample["audio"], 2)
    sample["extra"] = np.zeros((3, 4), np.int16)

def ragged(sample, rng):
    sample["audio"] = [[1], [1, 2]]

not_a_function = 3
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A user's module, importable under a name of its own in each test."""
    name = f"user_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FUNCTIONS))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def made(users, *names, raw=RAW, tables=None):
    return Chain.make(
        tuple(f"{users}:{n}" if n not in ("logmel", "characters") else n for n in names), tables or {}, "job", raw
    )


def sample():
    return {"audio": tone(2, 1000, 8000), "audio_rate": 8000, "text": "two"}


def applied(chain, seed=1, **more):
    return chain.apply({**sample(), **more}, seed=seed, epoch=0, number=0)


def lengths():
    return {"audio": np.array([1000, 400]), "audio_rate": np.array([8000, 8000]), "text": np.array([3, 9])}


def test_built_ins_declare_fields_and_lengths(users):
    chain = made(users, "logmel", "characters", tables={"logmel": {"rate": 8000, "bands": 40}})
    assert chain.fields == (
        Field(key="audio", dtype="float32", shape=(None, 40), per_second=100.0),
        Field(key="text", dtype="int32", shape=(None,)),
    )
    assert not chain.measured
    assert {key: value.tolist() for key, value in chain.lengths(lengths()).items()} == {
        "audio": [11, 3],
        "text": [3, 9],
    }
    assert {key: value.shape for key, value in applied(chain).items()} == {"audio": (11, 40), "text": (3,)}


def test_a_chain_of_nothing_gives_the_raw_fields(users):
    chain = made(users)
    assert chain.fields == RAW
    assert list(applied(chain)) == ["audio"]
    assert chain.lengths(lengths())["audio"].tolist() == [1000, 400]


def test_declared_user_functions_change_lengths_add_keys_and_remove_them(users):
    chain = made(users, "halved", "speaker")
    assert chain.lengths(lengths())["audio"].tolist() == [500, 200]
    assert chain.lengths(lengths())["ones"].tolist() == [5, 5]
    out = applied(chain)
    assert out["audio"].shape == (500,)
    assert out["speaker"].dtype == np.int32
    assert out["speaker"] == 3
    assert [field.key for field in made(users, "silent").fields] == []


def test_steps_a_second_pass_through_what_keeps_the_length_only(users):
    assert made(users, "noise").fields[0].per_second == 8000.0
    assert made(users, "halved").fields[0].per_second is None


def test_augmentation_hangs_on_seed_epoch_and_sample_only(users):
    chain = made(users, "noise")
    first = applied(chain)["audio"].tobytes()
    assert applied(chain)["audio"].tobytes() == first
    keys = [{"seed": 2, "epoch": 0, "number": 0}, {"seed": 1, "epoch": 1, "number": 0}]
    keys.append({"seed": 1, "epoch": 0, "number": 1})
    others = {chain.apply(sample(), **key)["audio"].tobytes() for key in keys}
    assert len(others | {first}) == 4


def test_the_numbers_of_a_sample_are_those_of_its_generator(users):
    rng = generator_for(7, 1, 42)
    expected = sample()["audio"] + rng.standard_normal(1000, dtype="float32")
    expected += rng.standard_normal(1000, dtype="float32")
    out = made(users, "noise", "noise").apply(sample(), seed=7, epoch=1, number=42)
    assert (out["audio"] == expected).all()


def test_a_generator_is_made_for_those_who_draw_only(users, monkeypatch):
    asked = []
    monkeypatch.setattr(chain_module, "generator_for", lambda *key: asked.append(key) or generator_for(*key))
    made(users, "logmel", "characters").apply(sample(), seed=7, epoch=1, number=42)
    assert asked == []
    made(users, "logmel", "noise").apply(sample(), seed=7, epoch=1, number=42)
    assert asked == [(7, 1, 42)]


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        (
            "wrong_shape",
            "shape",
            r'job, after the transforms: expected "audio" as float32 \[any, 4\], got float32 \[1000\]',
        ),
        ("wrong_dtype", "dtype", r'expected "audio" as float32 \[any\], got float64 \[1000\]'),
        ("raising", "transform", r":raising to succeed, got KeyError: 'speaker'"),
        ("returning", "transform", r"it returned a int"),
    ],
)
@pytest.mark.fault(7)
def test_what_does_not_fit_is_a_sample_error_with_its_reason(users, name, reason, message):
    with pytest.raises(SampleError, match=message) as caught:
        applied(made(users, name))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", float("nan")), ("int64", float("inf")), ("int64", 2**70), ("int64", 1.5), ("uint8", -1),
        ("uint8", 256), ("bool", 2),
    ],
)  # fmt: skip
def test_a_number_that_its_dtype_cannot_hold_is_a_sample_error(users, dtype, value):
    chain = made(users, "numbered", raw=(*RAW, Field(key="n", dtype=dtype, shape=())))
    with pytest.raises(SampleError, match=rf'after the transforms: expected "n" as {dtype} \[\], got {value}'):
        applied(chain, n=value)


@pytest.mark.parametrize(("dtype", "value"), [("int64", 2.0), ("bool", 1), ("uint8", True), ("float32", 0.1)])
def test_a_number_that_its_dtype_holds_is_converted(users, dtype, value):
    chain = made(users, "numbered", raw=(*RAW, Field(key="n", dtype=dtype, shape=())))
    assert applied(chain, n=value)["n"] == np.asarray(value, dtype)


@pytest.mark.fault(31)
def test_a_transform_that_cannot_read_stops_the_job_and_masks_nothing(users):
    with pytest.raises(ReadError, match=r":reading to read what it needs, got FileNotFoundError: .*/nowhere/noise.wav"):
        applied(made(users, "reading"))


@pytest.mark.fault(33)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), OSError("no image")], ids=repr)
def test_whatever_a_transform_raises_is_a_sample_error_where_batches_are_built(users, error):
    def building():
        try:
            applied(made(users, "raising_what"), what=error)
        except SampleError as caught:
            outcome.append((caught.reason, caught.got))

    outcome = []
    thread = threading.Thread(target=building)
    thread.start()
    thread.join()
    assert outcome == [("transform", error_text(error))]


def test_ctrl_c_in_the_middle_of_a_transform_ends_an_indexing(users):
    with pytest.raises(KeyboardInterrupt):
        applied(made(users, "raising_what"), what=KeyboardInterrupt())


def test_exhausted_memory_says_nothing_about_a_sample(users):
    with pytest.raises(MemoryError):
        applied(made(users, "raising_what"), what=MemoryError())


def test_an_undeclared_function_is_measured(users):
    chain = made(users, "undeclared")
    assert chain.measured
    fields, measured = chain.measure(sample(), 0, "a.wav")
    assert measured == {"audio": 2000, "extra": 3}
    assert [(f.key, f.dtype, f.shape) for f in fields] == [("audio", "float32", (None,)), ("extra", "int16", (None, 4))]
    assert applied(chain.bound(fields))["extra"].shape == (3, 4)


def test_a_measured_transform_draws_by_the_number_of_the_sample(users):
    chain = made(users, "noise", "undeclared")
    measured = {number: sample() for number in (3, 4)}
    for number, one in measured.items():
        chain.measure(one, number, "a.wav")
        again = chain.apply(sample(), seed=0, epoch=0, number=number)
        assert (one["audio"] == again["audio"]).all()
    assert (measured[3]["audio"] != measured[4]["audio"]).any()


def test_what_is_declared_keeps_its_shape_where_lengths_are_measured(users):
    fields, measured = made(users, "speaker", "undeclared").measure(sample(), 0, "a.wav")
    assert next(f for f in fields if f.key == "speaker") == Field(key="speaker", dtype="int32", shape=())
    assert "speaker" not in measured


def test_fingerprints_tell_names_settings_and_source_texts_apart(users, tmp_path):
    plain = made(users, "noise")
    assert plain.fingerprint == made(users, "noise").fingerprint
    assert plain.recipe != made(users, "noise", "noise").recipe
    assert made(users, "logmel").recipe != made(users, "logmel", tables={"logmel": {"bands": 3}}).recipe
    with next(tmp_path.glob("user_*.py")).open("a") as file:
        file.write("# changed\n")
    assert plain.recipe != made(users, "noise").recipe


def test_fingerprint_hangs_on_package_versions_and_the_recipe_does_not(users, monkeypatch):
    before = made(users, "noise")
    recipe, fingerprint = before.recipe, before.fingerprint
    monkeypatch.setattr("loader_server.transforms.chain.version_of", lambda name: "0.0")
    assert made(users, "noise").recipe == recipe
    assert made(users, "noise").fingerprint != fingerprint


def test_a_chain_of_text_needs_no_package_for_sound(users, monkeypatch):
    version = importlib.metadata.version

    def only_numpy(name):
        if name != "numpy":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("loader_server.transforms.chain.version_of", only_numpy)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert made(users, "characters", raw=()).fingerprint


def test_a_chain_crosses_to_another_process(users):
    chain = made(users, "logmel", "undeclared").bound(RAW)
    again = pickle.loads(pickle.dumps(chain))
    assert (again.fields, again.recipe) == (chain.fields, chain.recipe)


def test_fingerprint_tells_versions_of_our_own_bytes_apart_and_the_recipe_does_not(users, monkeypatch):
    before = made(users, "logmel")
    recipe, fingerprint = before.recipe, before.fingerprint
    monkeypatch.setattr("loader_server.transforms.chain.BYTES_VERSION", 1)
    assert (before.recipe, before.fingerprint == fingerprint) == (recipe, False)


@pytest.mark.parametrize(
    ("names", "tables", "message"),
    [
        (
            ("logmell",),
            {},
            r'job, transforms: expected centre_crop, .*logmel.* or module:function, perhaps "logmel", got "logmell"',
        ),
        (("logmel",), {"logmel": {"band": 3}}, r'job, logmel: expected a known setting, perhaps "bands", got "band"'),
        (
            ("logmel",),
            {"logml": {}},
            r'settings of a transform of this stream, perhaps "logmel", got the table logml',
        ),
        (
            ("no_such_module_at_all:f",),
            {},
            r'expected the module "no_such_module_at_all" to be importable, got ModuleNotFound',
        ),
        (("characters",), {"characters": {"unknown": "mas"}}, r'one of "drop", "mask", perhaps "mask", got \'mas\''),
    ],
)
def test_names_and_settings_that_are_not_known_are_refused_with_the_nearest(names, tables, message):
    with pytest.raises(SettingsError, match=message):
        Chain.make(names, tables, "job", RAW)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noize", r'expected a function "noize" in user_\d+, perhaps "noise", got nothing of that name'),
        ("not_a_function", r"got a int"),
        (
            "forgotten_length",
            r'user_\d+:forgotten_length: expected a length of the padded output "extra", got none declared',
        ),
    ],
)
def test_user_functions_that_cannot_be_are_refused(users, name, message):
    with pytest.raises(SettingsError, match=message):
        made(users, name)


def test_a_transcript_that_the_source_does_not_have_is_named(users):
    with pytest.raises(
        SettingsError, match=r"job, characters: expected a length of 'text', got audio, audio_rate\. The source"
    ):
        made(users, "characters").lengths({"audio": np.array([1]), "audio_rate": np.array([8000])})


def test_fractional_lengths_are_refused(users):
    with pytest.raises(SettingsError, match=r"expected lengths that are whole numbers, got float64\. Divide with //"):
        made(users, "fractional").lengths(lengths())


def test_lengths_of_another_number_of_samples_are_refused(users):
    with pytest.raises(SettingsError, match=r"expected a length for each of 2 samples, or one for all, got lengths of"):
        made(users, "too_many").lengths(lengths())


def test_lists_of_unequal_lengths_are_refused_where_lengths_are_measured(users):
    with pytest.raises(SampleError, match=r'a\.wav: expected "audio" of a dtype .*got values of unequal lengths'):
        made(users, "undeclared", "ragged").measure(sample(), 0, "a.wav")
