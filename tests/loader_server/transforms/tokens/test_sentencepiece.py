"""`sentencepiece`: the library's own ids, by the right model, and what cannot be used refused before any sample."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms import find
from loader_server.transforms.chain import Chain
from loader_server.transforms.padding import padding_tokens
from loader_server.transforms.tokens.token_ids import TextEncoder
from shared.errors import SettingsError
from tests.support.token_models import TEXTS, assert_same_together, train_sentencepiece

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    train_sentencepiece(folder / "a.model")
    train_sentencepiece(folder / "b.model", [text[::-1] for text in TEXTS], bos_id=-1)
    return folder


def made(folder: Path, **table: Any) -> Chain:
    return Chain.make(("sentencepiece",), {"sentencepiece": table}, "job", (), FilePlaces(folder))


def measured(chain: Chain, **sample: Any) -> dict[str, np.ndarray]:
    fields, lengths = chain.measure(dict(sample), 0, "sample 0")
    values = chain.bound(fields).apply(dict(sample), seed=0, epoch=0, number=0)
    assert {key: len(value) for key, value in values.items()} == lengths
    return values


def test_a_text_becomes_the_librarys_ids(folder: Path) -> None:
    values = measured(made(folder, models={"text": "a.model"}), text="the big Bär is blue")
    assert values["text"].dtype == np.int32
    assert values["text"].tolist() == SentencePieceProcessor(model_file=f"{folder}/a.model").encode(
        "the big Bär is blue"
    )


def test_each_key_has_its_model_and_its_ends(folder: Path) -> None:
    table = {"models": {"source": "a.model", "target": "b.model"}, "bos": "source", "eos": ["source", "target"]}
    values = measured(made(folder, **table, dtype="uint16"), source="the fox", target="xof eht")
    source, target = (SentencePieceProcessor(model_file=f"{folder}/{name}.model") for name in "ab")
    assert values["source"].tolist() == [1, *source.encode("the fox"), 2]
    assert values["target"].tolist() == [*target.encode("xof eht"), target.eos_id()]
    assert {value.dtype for value in values.values()} == {np.dtype(np.uint16)}


def test_keys_that_are_encoded_alike_are_encoded_together(folder: Path) -> None:
    names = ("source", "target", "third")
    own = made(folder, models=dict.fromkeys(names, "a.model"), bos=["third"])
    model = SentencePieceProcessor(model_file=f"{folder}/a.model")
    texts = {"source": ["the fox", ""], "target": ["is blue", "the big"], "third": ["big", "the"]}
    columns: dict[str, Any] = {key: list(of_key) for key, of_key in texts.items()}
    (step,) = own.steps
    assert isinstance(step.call, TextEncoder)
    assert len(step.call._keys) == 2, "bos sets the third apart"
    step.call.on_columns(columns)
    for key, of_key in texts.items():
        ids = [model.encode(text, add_bos=key == "third") for text in of_key]
        assert columns[key].values.tolist() == list(chain.from_iterable(ids))
        assert columns[key].lengths.tolist() == list(map(len, ids))


@pytest.mark.parametrize("count", [0, 1, 31, 32, 100])
def test_texts_have_the_same_ids_together_and_alone(folder: Path, count: int) -> None:
    """Few of them, and so many that the library gets them at once."""
    words = ["", " ", "Bär\u2581\t", *TEXTS * count][:count]
    for more in ({}, {"bos": "text", "eos": "text", "dtype": "uint16"}):
        assert_same_together(made(folder, models={"text": "a.model"}, **more), words)


def test_a_text_of_which_nothing_is_left_has_no_ids(folder: Path) -> None:
    values = measured(made(folder, models={"text": "a.model"}), text="  ")
    assert (values["text"].shape, values["text"].dtype) == ((0,), np.int32)


def test_lengths_are_measured_and_nothing_is_drawn(folder: Path) -> None:
    chain = made(folder, models={"text": "a.model"})
    assert chain.measured
    assert not chain.draws
    assert "sentencepiece" in chain.steps[0].packages


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"models": {"text": "c.model"}},
            r"expected a file that can be read, got No such file or directory: .*c\.model",
        ),
        ({"models": {"text": "no.model"}}, r"models, .*no\.model: expected a SentencePiece model, got .*\. Name the"),
        ({"models": {"text": "empty.model"}}, r"models, .*empty\.model: expected a SentencePiece model, got .*\. Name"),
        ({"models": "a.model"}, r"models: expected a table such as { text = … }"),
        (
            {"models": {"text": "a.model"}, "bos": ["txt"]},
            r'bos: expected keys of models \(text\), perhaps "text", got "t',
        ),
        (
            {"models": {"text": "b.model"}, "bos": "text"},
            r"bos: expected a model with a piece for bos, got none in .*b\.mo",
        ),
        ({}, r'expected "models" \(the model of each key'),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_sample(folder: Path, table: dict[str, Any], said: str) -> None:
    (folder / "no.model").write_text("this is no model")
    (folder / "empty.model").write_text("")
    with pytest.raises(SettingsError, match=f"^job, sentencepiece.*{said}"):
        made(folder, **table)


def test_a_key_that_no_sample_has_is_an_error_of_the_job(folder: Path) -> None:
    chain = made(folder, models={"txt": "a.model"})
    said = 'models: expected a text "txt" in every sample, perhaps "text", got samples with the texts "text"'
    with pytest.raises(SettingsError, match=said):
        chain.measure({"text": "the", "label": 3}, 0, "sample 0")
    with pytest.raises(SettingsError, match="got samples without a text"):
        chain.measure({"label": 3}, 0, "sample 0")


def test_without_the_library_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(find, "version_of", absent)
    with pytest.raises(
        SettingsError, match=r"got none of that name is installed\. Run `pip install 'stoker\[sentencepiece\]'`\.$"
    ):
        made(folder, models={"text": "a.model"})


@pytest.mark.parametrize("token", [-1, 0, 3])
def test_the_padding_token_is_that_which_the_model_was_trained_with(tmp_path: Path, token: int) -> None:
    others = {"unk_id": 4} if token == 0 else {}
    train_sentencepiece(tmp_path / "a.model", pad_id=token, **others)
    (step,) = made(tmp_path, models={"text": "a.model"}).steps
    assert padding_tokens([step]) == ({} if token < 0 else {"text": token})
