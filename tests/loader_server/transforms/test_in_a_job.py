"""Transforms of a job file, from their tables to the bytes of batches."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from shared.errors import SettingsError
from shared.wire.batch_layout import Field
from tests.support.loaders import write_job

OWN = """
from dataclasses import dataclass
import numpy as np
from loader_server.transforms import number, setting, texts, transform

@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings:
    level: float = setting(number(0), "standard deviation of the noise", default=0.01)

@transform(settings=NoiseSettings, packages=("numpy",))
def noise(sample, rng, settings):
    sample["audio"] = sample["audio"] + settings.level * rng.standard_normal(len(sample["audio"]), dtype="float32")

@dataclass(frozen=True, slots=True, kw_only=True)
class WordsSettings:
    known: tuple[str, ...] = setting(texts, "the words that are numbered from 1")

@transform(settings=WordsSettings, measured=True, draws=False)
class Words:
    def __init__(self, settings):
        self.numbers = {word: place for place, word in enumerate(settings.known, 1)}

    def __call__(self, sample, rng):
        sample["text"] = np.array([self.numbers.get(word, 0) for word in sample["text"].split()], np.int32)
"""

RAW = (Field(key="audio", dtype="float32", shape=(None,), per_second=8000.0),)
TRANSFORMS = ("my.augment:noise", "logmel", "my.augment:Words")
TABLES = """
[streams.train."my.augment:noise"]
level = {level}

[streams.train.Words]
known = ["one", "two", "three"]

[streams.dev.noise]
level = 0
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Opens a job file with these transforms, further settings and tables; the modules that it names are beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("my", "my.augment", "my.orders"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "augment.py").write_text(textwrap.dedent(OWN))
    (tmp_path / "my" / "orders.py").write_text("def order(sample, rng): pass\n")
    path = write_job(tmp_path, samples=8, transforms=("TRANSFORMS",), stream="SETTINGS")
    written = path.read_text()

    def job(tables, transforms=TRANSFORMS, settings=""):
        text = written.replace("['TRANSFORMS']", str(list(transforms))).replace("SETTINGS", settings)
        path.write_text(text.replace("[streams.dev]", f"{tables}\n[streams.dev]"))
        return JobFile(path)

    return job


def opened(job, name="train"):
    index_streams(job, [name], processes=1)
    return Stream(job, name)


def values(stream, epoch=0, sample=0):
    return stream.values(epoch, sample, next(iter(stream.source.read([sample]))))


def test_own_and_built_in_transforms_get_their_tables(job):
    (loud, quiet) = (opened(job(TABLES.format(level=level).split("[streams.dev")[0])) for level in (9, 0))
    assert loud.chain.fields[0].shape == (None, 40)
    assert loud.digest == quiet.digest
    assert loud.builder != quiet.builder
    assert (values(loud)["audio"] > values(quiet)["audio"] + 3).mean() > 0.5
    assert np.array_equal(values(loud)["text"], values(quiet)["text"])
    assert set(values(quiet)["text"].tolist()) <= {0, 1, 2, 3}
    assert values(loud, sample=1)["audio"].tobytes() == values(loud, sample=1)["audio"].tobytes()
    assert values(loud, epoch=1)["audio"].tobytes() != values(loud)["audio"].tobytes()
    loud.close()
    quiet.close()


def test_a_stream_that_is_like_another_has_its_tables_too(job):
    names = (TRANSFORMS[0], "logmel")
    made = job("[streams.train.noise]\nlevel = 3\n[streams.dev.logmel]\nbands = 20", names)
    train, dev = (made.recipes[name].chain(RAW) for name in ("train", "dev"))
    assert [chain.steps[0].call.keywords["settings"].level for chain in (train, dev)] == [3, 3]
    assert [chain.fields[0].shape[1] for chain in (train, dev)] == [40, 20]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("[streams.train.noise]\nlevle = 3", r'\[streams.train\], my.augment:noise: .*perhaps "level", got "levle"'),
        ("[streams.train.noyse]\nlevel = 3", r'settings of a transform of this stream, perhaps "noise", got the table'),
        ("[streams.train.characters]", r"got the table characters\. Its transforms are my.augment:noise, logmel, my"),
        ("", r'my.augment:Words: expected "known" \(the words that are numbered from 1\), got no such setting'),
    ],
)
def test_tables_that_do_not_fit_are_refused_before_anything_is_read(job, tables, message):
    with pytest.raises(SettingsError, match=message):
        job(tables).recipes["train"].chain(RAW)


def test_a_value_in_place_of_a_table_is_refused(job):
    with pytest.raises(SettingsError, match=r"noise: expected a table of settings of my.augment:noise, got 0\.5"):
        job("", settings="noise = 0.5").recipes["train"].chain(RAW)


def test_a_setting_of_the_stream_is_never_taken_for_a_table(job):
    recipe = job('[streams.train."my.orders:order"]', ("my.orders:order", "logmel"), 'order = "sorted"').recipes[
        "train"
    ]
    assert recipe.plan.order == "sorted"
    with pytest.raises(SettingsError, match=r"expected no table for my\.orders:order, which declares no settings"):
        recipe.chain(RAW)
