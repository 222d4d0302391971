"""Files that settings name: found beside the job file, counted by their content, refused where they are missing."""

from __future__ import annotations

import pickle
import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pytest

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.chain import Chain
from shared.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
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
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"named_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "words.txt").write_text("zero one two")
    return f"{module}:Words"


def made(name: str, base: Path, **settings: object) -> Chain:
    return Chain.make((name,), {"Words": settings}, "job", (), FilePlaces(base))


def numbers(chain: Chain, text: str = "two one") -> list[int]:
    return chain.apply({"text": text}, seed=0, epoch=0, number=0)["text"].tolist()


def test_a_file_is_looked_for_below_the_job_files_folder(name: str, tmp_path: Path) -> None:
    assert numbers(made(name, tmp_path, vocabulary="words.txt")) == [2, 1]
    assert numbers(made(name, tmp_path / "no folder", vocabulary=str(tmp_path / "words.txt"))) == [2, 1]
    assert made(name, tmp_path, vocabulary="words.txt").steps[0].call.settings.most == 9


def test_a_process_that_gets_the_chain_finds_the_file_as_well(name: str, tmp_path: Path) -> None:
    chain = made(name, tmp_path, vocabulary="words.txt")
    again = pickle.loads(pickle.dumps(chain))
    assert numbers(again) == [2, 1]
    assert again.recipe == chain.recipe


def test_a_file_counts_by_its_content_and_not_by_its_name(name: str, tmp_path: Path) -> None:
    first = made(name, tmp_path, vocabulary="words.txt")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "other.txt").write_text("zero one two")
    copy = made(name, tmp_path / "copy", vocabulary="other.txt")
    assert (copy.recipe, copy.fingerprint, list(copy.shaping)) == (first.recipe, first.fingerprint, [*first.shaping])
    (tmp_path / "words.txt").write_text("zero two one")
    changed = made(name, tmp_path, vocabulary="words.txt")
    assert changed.recipe != first.recipe
    assert changed.fingerprint != first.fingerprint
    assert made(name, tmp_path, vocabulary="words.txt", most=3).recipe != changed.recipe


def test_a_file_that_changed_is_read_again_in_the_same_process(name: str, tmp_path: Path) -> None:
    before = made(name, tmp_path, vocabulary="words.txt")
    (tmp_path / "words.txt").write_text("one two")
    assert numbers(made(name, tmp_path, vocabulary="words.txt")) == [1, 0]
    assert numbers(before) == [2, 1]
    assert (
        made(name, tmp_path, vocabulary="words.txt").steps[0].call
        is made(name, tmp_path, vocabulary="words.txt").steps[0].call
    )


def test_files_by_key_are_files_as_well(name: str, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("a b")
    chain = made(name, tmp_path, vocabulary="words.txt", others={"target": "more.txt"})
    sample = chain.steps[0].call({"text": "one", "target": "b"}, np.random.default_rng()) or {}
    assert sample == {}
    assert chain.steps[0].call.words["target"] == ["a", "b"]
    (tmp_path / "more.txt").write_text("b a")
    assert made(name, tmp_path, vocabulary="words.txt", others={"target": "more.txt"}).recipe != chain.recipe


def test_a_file_that_is_not_there_is_named_with_the_remedy(name: str, tmp_path: Path) -> None:
    said = (
        rf"^job, {name}: expected a file that can be read, got No such file or directory: {tmp_path}/gone\.txt\. "
        r"Mend its name, which is relative to the job file, or put the file there\.$"
    )
    with pytest.raises(SettingsError, match=said):
        made(name, tmp_path, vocabulary="gone.txt")
    with pytest.raises(SettingsError, match=r"got Is a directory"):
        made(name, tmp_path, vocabulary=".")
    with pytest.raises(SettingsError, match=r"gone2"):
        made(name, tmp_path, others={"a": "words.txt", "b": "gone2"})
