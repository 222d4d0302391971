"""Finding transforms: their settings and the files that these name, what they depend on, and whether they draw."""

from __future__ import annotations

import importlib.metadata
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.own_code import own_code
from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms import find, number, setting, transform
from loader_server.transforms.chain import Chain
from loader_server.transforms.declare import BUILT_INS, built_in
from loader_server.transforms.find import find_transforms, settings_of_built_ins, table_names
from shared.errors import SettingsError
from shared.hashing import fingerprint
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from pathlib import Path

RAW = (Field(key="audio", dtype="float32", shape=(None,)),)

OWN = """
from dataclasses import dataclass
from loader_server.transforms import Outputs, SettingsError, number, setting, text, transform, whole

CONSTRUCTED = []

@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    level: float = setting(number(0), "standard deviation of the noise", default=0.5)

@transform(settings=NoiseSettings)
def noise(sample, rng, settings):
    sample["audio"] = sample["audio"] + settings.level * rng.standard_normal(len(sample["audio"]), dtype="float32")

@transform()
def plain(sample, rng): pass

@dataclass(frozen=True, kw_only=True)
class MaybeSettings:
    level: float = setting(number(0), "in each recipe", default=0.5)
    word: str = setting(text, "only where it is said", default=None)

@transform(settings=MaybeSettings)
def maybe(sample, rng, settings): pass

@transform(draws=False)
def liar(sample, rng):
    sample["audio"] += rng.standard_normal(len(sample["audio"]), dtype="float32")

@dataclass(frozen=True, kw_only=True)
class FrameSettings:
    size: int = setting(whole(1), "samples a frame")

    def __post_init__(self):
        if self.size == 13:
            raise ValueError("13 brings bad luck")

@transform(settings=FrameSettings, draws=False)
class Framed:
    def __init__(self, settings):
        if settings.size > 100:
            raise ValueError("frames that large are of no use")
        if settings.size > 50:
            raise SettingsError(expected="small frames", got=str(settings.size), where="size", remedy="Shrink them.")
        CONSTRUCTED.append(settings.size)
        self.size = settings.size
        self.outputs = Outputs.of(
            {"audio": ("float32", None, self.size)}, lengths={"audio": lambda lengths: lengths["audio"] // self.size}
        )

    def __call__(self, sample, rng):
        frames = len(sample["audio"]) // self.size
        sample["audio"] = sample["audio"][: frames * self.size].reshape(frames, self.size)

class Undeclared:
    def __call__(self, sample, rng):
        sample["audio"] = sample["audio"][::2]

class Uncallable:
    pass

class Demanding:
    def __init__(self, vocabulary):
        pass

@transform(packages=("soxr", "PyTest"))
def packaged(sample, rng): pass

@transform(packages=("no-such-package-at-all",))
def lacking(sample, rng): pass
"""

NAMING_FILES = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from loader_server.transforms import by_key, file, setting, transform, whole

@dataclass(frozen=True, kw_only=True)
class WordsSettings:
    vocabulary: str = setting(file, "a word a line", default="")
    others: tuple = setting(by_key(file), "the same, by key", default=())
    most: int = setting(whole(1), "at most", default=9)

@transform(
    {"text": ("int32", None)}, lengths={"text": lambda lengths: lengths["text"]}, settings=WordsSettings, draws=False
)
class Words:
    def __init__(self, settings):
        self.settings = settings
        named = {"text": settings.vocabulary, **dict(settings.others)}
        self.words = {key: Path(path).read_text().split() for key, path in named.items() if path}

    def __call__(self, sample, rng):
        for key, words in self.words.items():
            sample[key] = np.array([words.index(word) for word in sample[key].split()], np.int32)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module, importable under a name of its own in each test."""
    name = f"own_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def found(*names, **tables):
    return find_transforms(names, tables, "job")


def audio(chain, *, seed=1, epoch=0, number=0):
    return chain.apply({"audio": np.zeros(64, np.float32)}, seed=seed, epoch=epoch, number=number)["audio"]


def made(*names, **tables):
    return Chain.make(names, tables, "job", RAW)


# --- settings ---


def test_a_function_gets_its_settings_from_the_table_of_its_name(own):
    name = f"{own}:noise"
    quiet, loud = made(name, noise={"level": 0}), made(name, noise={"level": 8})
    assert not audio(quiet).any()
    assert (audio(loud) == 16 * audio(made(name))).all()


def test_the_full_name_of_a_table_works_always(own):
    name = f"{own}:noise"
    assert (audio(made(name, **{name: {"level": 8}})) == audio(made(name, noise={"level": 8}))).all()


def test_a_class_is_constructed_once_a_process_for_each_of_its_settings(own):
    name = f"{own}:Framed"
    chains = [made(name, Framed={"size": size}) for size in (8, 8, 4)]
    constructed = __import__(own).CONSTRUCTED
    assert constructed == [8, 4]
    assert [audio(chain).shape for chain in chains] == [(8, 8), (8, 8), (16, 4)]
    assert [chain.fields[0].shape for chain in chains] == [(None, 8), (None, 8), (None, 4)]
    assert chains[2].lengths({"audio": np.array([64, 9])})["audio"].tolist() == [16, 2]


def test_an_undeclared_class_is_measured(own):
    chain = made(f"{own}:Undeclared")
    assert chain.measured
    assert chain.draws
    assert chain.measure({"audio": np.zeros(64, np.float32)}, 0, "a.wav")[1] == {"audio": 32}


def test_names_of_tables():
    assert table_names(["logmel", "my.augment:noise"]) == {"logmel", "my.augment:noise", "noise"}


@pytest.mark.parametrize(
    ("names", "tables", "message"),
    [
        (
            ["noise"],
            {"noise": {"levle": 1}},
            r'^job, {own}:noise: expected a known setting, perhaps "level", got "levle"\. Known here: level',
        ),
        (["noise"], {"noise": {"level": -1}}, r"^job, {own}:noise, level: expected a number from 0 .*got -1"),
        (["Framed"], {}, r'^job, {own}:Framed: expected "size" \(samples a frame\), got no such setting'),
        (["Framed"], {"Framed": {"size": 13}}, r"^job, {own}:Framed: expected .* got ValueError: 13 brings bad luck"),
        (["Framed"], {"Framed": {"size": 101}}, r"^job, {own}:Framed: expected the transform {own}:Framed to be made "),
        (["Framed"], {"Framed": {"size": 51}}, r"^job, {own}:Framed, size: expected small frames, got 51\. Shrink"),
        (["noise"], {"noize": {}}, r'expected settings of a transform of this stream, perhaps "noise", got the table '),
        (["noise"], {"logmel": {}}, r"got the table logmel\. Its transforms are {own}:noise"),
        (
            ["noise"],
            {"noise": {}, "{own}:noise": {}},
            r'expected one table for {own}:noise, got two, called "noise" and',
        ),
        (["noise"], {"noise": 3}, r"^job, noise: expected a table of settings of {own}:noise, got 3"),
        (
            ["plain"],
            {"plain": {"level": 3}},
            r"^job, {own}:plain: expected no table for {own}:plain, which declares no settings, got one with level\. "
            r"Declare them with @transform\(settings=…\)",
        ),
        (["plain"], {"plain": {}}, r"which declares no settings, got one with nothing in it"),
        (["Uncallable"], {}, r"got TypeError: its instances cannot be called with \(sample, rng\)"),
        (["Demanding"], {}, r"expected the transform {own}:Demanding to be made .*missing 1 required positional"),
    ],
)
def test_wrong_settings_are_refused(own, names, tables, message):
    tables = {key.replace("{own}", own): table for key, table in tables.items()}
    with pytest.raises(SettingsError, match=message.replace("{own}", own)):
        found(*(f"{own}:{name}" for name in names), **tables)


def test_a_table_that_may_be_either_of_two_transforms_is_refused(own, tmp_path):
    (tmp_path / f"other_{own}.py").write_text(textwrap.dedent(OWN))
    names = (f"{own}:noise", f"other_{own}:noise")
    with pytest.raises(SettingsError, match=rf'got "noise", which may be {names[0]} or {names[1]}.*: "{names[0]}"\.'):
        found(*names, noise={})
    tables = {name: {"level": level} for name, level in zip(names, (1, 2), strict=True)}
    assert [step.call.keywords["settings"].level for step in found(*names, **tables)] == [1, 2]


def test_a_transform_that_is_named_twice_has_one_table(own):
    steps = found(f"{own}:noise", f"{own}:noise", noise={"level": 2})
    assert [step.call.keywords["settings"].level for step in steps] == [2, 2]


# --- fingerprints ---


def test_recipes_are_those_of_the_release_before_where_nothing_new_is_declared(own):
    assert made("logmel").recipe == "08d194b9f0a347af722ad358b992fa50"
    assert made(f"{own}:plain").recipe == fingerprint(f"{own}:plain", own_code([own]).sources)


def test_a_setting_that_is_left_out_and_has_no_default_is_no_part_of_the_recipe(own):
    """So a setting can be added without another digest for those who do not use it."""
    assert made(f"{own}:maybe").recipe == made(f"{own}:maybe", maybe={"level": 0.5}).recipe
    assert made(f"{own}:maybe").recipe != made(f"{own}:maybe", maybe={"word": "said"}).recipe


def test_own_settings_are_part_of_the_recipe_and_so_is_the_source(own, tmp_path):
    name = f"{own}:noise"
    recipes = {level: made(name, noise={"level": level}).recipe for level in (0.5, 1)}
    assert len(set(recipes.values())) == 2
    assert made(name).recipe == recipes[0.5]
    with (tmp_path / f"{own}.py").open("a") as file:
        file.write("# changed\n")
    assert made(name).recipe != recipes[0.5]


def test_versions_of_declared_packages_are_part_of_the_fingerprint_and_not_of_the_recipe(own, monkeypatch):
    name = f"{own}:packaged"
    before = made(name)
    assert dict(before.steps[0].packages).keys() == {"soxr", "PyTest"}
    version = importlib.metadata.version
    monkeypatch.setattr(find, "version_of", lambda name: "0.0" if name == "PyTest" else version(name))
    after = made(name)
    assert after.recipe == before.recipe
    assert after.fingerprint != before.fingerprint
    assert made(f"{own}:plain").fingerprint == made(f"{own}:plain").fingerprint


def test_built_ins_declare_packages_too():
    assert dict(found("logmel")[0].packages) == {"soxr": importlib.metadata.version("soxr")}


def test_a_package_that_is_not_installed_is_named(own):
    with pytest.raises(
        SettingsError, match=r"expected the package no-such-package-at-all, which the bytes of .*lacking"
    ):
        found(f"{own}:lacking")


# --- random numbers ---


@dataclass(frozen=True, slots=True, kw_only=True)
class DitherSettings:
    level: float = setting(number(0), "loudness", default=1)


@transform(settings=DitherSettings)
def dither(sample, rng, settings):
    sample["audio"] = sample["audio"] + settings.level * rng.random(len(sample["audio"]), dtype="float32")


@transform(draws=False)
def halved(sample, rng):
    sample["audio"] = sample["audio"] * np.float32(0.5)


OURS = {"dither": dither, "halved": halved}


def dithered(keys, names=("dither",)):
    """In a process of its own too: audio after built-in transforms, some of which draw."""
    BUILT_INS.update(OURS)
    chain = made(*names, **({"dither": {"level": 2}} if "dither" in names else {}))
    return [audio(chain, seed=seed, epoch=epoch, number=number).tobytes() for seed, epoch, number in keys]


@pytest.fixture
def built_ins(monkeypatch):
    for name, own in OURS.items():
        monkeypatch.setitem(BUILT_INS, name, own)


KEYS = [(seed, epoch, number) for seed in (0, 1) for epoch in (0, 1) for number in range(8)]


def test_a_built_in_that_draws_gets_other_numbers_for_each_sample_the_same_in_each_process(built_ins):
    here = dithered(KEYS)
    assert len(set(here)) == len(KEYS)
    assert dithered(KEYS) == here
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        assert list(pool.map(dithered, [KEYS, KEYS])) == [here, here]


def test_a_built_in_registers_itself_whichever_room_its_module_is_in(tmp_path):
    (tmp_path / "reversed.py").write_text(
        "from loader_server.transforms import transform\nfrom loader_server.transforms.declare import built_in\n"
        "@built_in('reversed')\n@transform(draws=False)\ndef turned(sample, rng): ...\n"
    )
    program = (
        f"from loader_server import transforms; transforms.__path__.append({str(tmp_path)!r});"
        "from loader_server.transforms.find import built_ins, find_transforms;"
        "print(find_transforms(('reversed',), {}, '')[0].call.__name__, *built_ins())"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    found, *names = printed.split()
    assert found == "turned"
    assert names == sorted({*names, "reversed", "logmel", "characters", "normalise", "tokenizers"})


def test_a_built_in_has_the_name_of_its_module():
    assert {name: target.__module__.rpartition(".")[2] for name, target in find.built_ins().items()} == {
        name: name for name in find.built_ins()
    }


def test_a_name_of_a_built_in_is_taken_once(built_ins):
    with pytest.raises(AssertionError, match=r"two transforms are called dither: \S+:dither, \S+:halved"):
        built_in("dither")(halved)


def test_a_transform_that_draws_nothing_can_be_shown(built_ins):
    assert "name='halved'" in repr(found("halved"))


def test_the_settings_of_every_built_in_are_known(built_ins):
    assert settings_of_built_ins().keys() >= {"logmel", "characters", "dither"}
    assert "halved" not in settings_of_built_ins()
    assert settings_of_built_ins()["dither"] is DitherSettings


@given(names=st.lists(st.sampled_from(["dither", "halved"]), max_size=4), one=st.integers(0), other=st.integers(0))
def test_samples_differ_if_anything_is_drawn_and_only_then(names, one, other):
    before = BUILT_INS.copy()
    try:
        first, second, again = dithered([(0, 0, one), (0, 0, other), (0, 0, one)], tuple(names))
    finally:
        BUILT_INS.clear()
        BUILT_INS.update(before)
    assert first == again
    assert (first == second) == (one == other or "dither" not in names)


@pytest.mark.fault(7)
def test_a_transform_that_draws_although_it_said_that_it_does_not_is_named(own):
    chain = made(f"{own}:plain", f"{own}:liar")
    with pytest.raises(SettingsError, match=rf"expected the transform {own}:liar to draw no random numbers, .*rng\.st"):
        audio(chain)


def test_a_declaration_that_is_refused_names_the_job_file_and_the_setting(tmp_path, monkeypatch):
    name = f"declared_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(
        "from loader_server.transforms import transform\n"
        '@transform({"audio": ("float", None)})\n'
        "def wrong(sample, rng): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError) as caught:
        find_transforms((f"{name}:wrong",), {}, "job.toml, [streams.train]")
    assert caught.value.where == f"job.toml, [streams.train], transforms, the declaration of {name}:wrong"
    assert "a dtype of" in caught.value.expected


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"named_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(NAMING_FILES))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "words.txt").write_text("zero one two")
    return f"{module}:Words"


def chain_of(name: str, base: Path, **settings: object) -> Chain:
    return Chain.make((name,), {"Words": settings}, "job", (), FilePlaces(base))


def numbers(chain: Chain, text: str = "two one") -> list[int]:
    return chain.apply({"text": text}, seed=0, epoch=0, number=0)["text"].tolist()


def test_a_file_is_looked_for_below_the_job_files_folder(name: str, tmp_path: Path) -> None:
    assert numbers(chain_of(name, tmp_path, vocabulary="words.txt")) == [2, 1]
    assert numbers(chain_of(name, tmp_path / "no folder", vocabulary=str(tmp_path / "words.txt"))) == [2, 1]
    assert chain_of(name, tmp_path, vocabulary="words.txt").steps[0].call.settings.most == 9


def test_a_process_that_gets_the_chain_finds_the_file_as_well(name: str, tmp_path: Path) -> None:
    chain = chain_of(name, tmp_path, vocabulary="words.txt")
    again = pickle.loads(pickle.dumps(chain))
    assert numbers(again) == [2, 1]
    assert again.recipe == chain.recipe


def test_a_file_counts_by_its_content_and_not_by_its_name(name: str, tmp_path: Path) -> None:
    first = chain_of(name, tmp_path, vocabulary="words.txt")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "other.txt").write_text("zero one two")
    copy = chain_of(name, tmp_path / "copy", vocabulary="other.txt")
    assert (copy.recipe, copy.fingerprint, list(copy.shaping)) == (first.recipe, first.fingerprint, [*first.shaping])
    (tmp_path / "words.txt").write_text("zero two one")
    changed = chain_of(name, tmp_path, vocabulary="words.txt")
    assert changed.recipe != first.recipe
    assert changed.fingerprint != first.fingerprint
    assert chain_of(name, tmp_path, vocabulary="words.txt", most=3).recipe != changed.recipe


def test_a_file_that_changed_is_read_again_in_the_same_process(name: str, tmp_path: Path) -> None:
    before = chain_of(name, tmp_path, vocabulary="words.txt")
    (tmp_path / "words.txt").write_text("one two")
    assert numbers(chain_of(name, tmp_path, vocabulary="words.txt")) == [1, 0]
    assert numbers(before) == [2, 1]
    assert (
        chain_of(name, tmp_path, vocabulary="words.txt").steps[0].call
        is chain_of(name, tmp_path, vocabulary="words.txt").steps[0].call
    )


def test_files_by_key_are_files_as_well(name: str, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("a b")
    chain = chain_of(name, tmp_path, vocabulary="words.txt", others={"target": "more.txt"})
    sample = chain.steps[0].call({"text": "one", "target": "b"}, np.random.default_rng()) or {}
    assert sample == {}
    assert chain.steps[0].call.words["target"] == ["a", "b"]
    (tmp_path / "more.txt").write_text("b a")
    assert chain_of(name, tmp_path, vocabulary="words.txt", others={"target": "more.txt"}).recipe != chain.recipe


def test_a_file_that_is_not_there_is_named_with_the_remedy(name: str, tmp_path: Path) -> None:
    said = (
        rf"^job, {name}: expected a file that can be read, got No such file or directory: {tmp_path}/gone\.txt\. "
        r"Mend its name, which is relative to the job file, or put the file there\.$"
    )
    with pytest.raises(SettingsError, match=said):
        chain_of(name, tmp_path, vocabulary="gone.txt")
    with pytest.raises(SettingsError, match=r"got Is a directory"):
        chain_of(name, tmp_path, vocabulary=".")
    with pytest.raises(SettingsError, match=r"gone2"):
        chain_of(name, tmp_path, others={"a": "words.txt", "b": "gone2"})
