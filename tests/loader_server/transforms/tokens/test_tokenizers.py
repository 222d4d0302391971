"""`tokenizers`: the library's own ids, special tokens as asked, no padding, no threads; what cannot be used refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from loader_server.sources.files.file_facts import FilePlaces
from loader_server.transforms.chain import Chain
from loader_server.transforms.padding import padding_tokens
from shared.errors import SettingsError
from tests.support.token_models import TEXTS, assert_same_together, train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers")
    train_tokenizer(folder / "a.json")
    train_tokenizer(folder / "b.json", [text[::-1] for text in TEXTS])
    return folder


def made(folder: Path, **table: Any) -> Chain:
    return Chain.make(("tokenizers",), {"tokenizers": table}, "job", (), FilePlaces(folder))


def ids(chain: Chain, **sample: Any) -> dict[str, list[int]]:
    fields, lengths = chain.measure(dict(sample), 0, "sample 0")
    values = chain.bound(fields).apply(dict(sample), seed=0, epoch=0, number=0)
    assert {key: len(value) for key, value in values.items()} == lengths
    return {key: value.tolist() for key, value in values.items()}


@settings(max_examples=50, deadline=None)
@given(words=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_a_text_becomes_the_librarys_ids(folder: Path, words: str) -> None:
    chain = made(folder, models={"text": "a.json"})
    assert ids(chain, text=words)["text"] == Tokenizer.from_file(f"{folder}/a.json").encode(words).ids


@settings(max_examples=25, deadline=None)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=40))
def test_texts_have_the_same_ids_together_and_alone(folder: Path, words: list[str]) -> None:
    """Also more than are handed to the library at a time."""
    table = {"models": {"text": "a.json"}, "special_tokens": False, "bos": {"text": "<s>"}, "dtype": "uint16"}
    assert_same_together(made(folder, **table), words)


def test_each_key_has_its_tokenizer_and_its_ends(folder: Path) -> None:
    models = {"source": "a.json", "target": "b.json"}
    table = {"models": models, "special_tokens": False, "bos": {"target": "<s>"}, "eos": {"target": "</s>"}}
    source, target = (Tokenizer.from_file(f"{folder}/{name}.json") for name in "ab")
    assert ids(made(folder, **table, dtype="uint16"), source="the fox", target="xof") == {
        "source": source.encode("the fox", add_special_tokens=False).ids,
        "target": [0, *target.encode("xof", add_special_tokens=False).ids, 1],
    }
    assert ids(made(folder, models=models), source="", target="") == {"source": [0, 1], "target": [0, 1]}


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16"])
def test_ids_are_of_the_dtype_that_is_asked_for(folder: Path, dtype: str) -> None:
    fields, _ = made(folder, models={"text": "a.json"}, dtype=dtype).measure({"text": "a"}, 0, "sample 0")
    assert [(field.key, field.dtype, field.shape) for field in fields] == [("text", dtype, (None,))]


def test_padding_and_truncation_of_the_file_are_left_out(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(f"{folder}/a.json")
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(4)
    tokenizer.save(f"{folder}/padding.json")
    plain, padding = (made(folder, models={"text": f"{name}.json"}) for name in ("a", "padding"))
    for text in ("a", "b" * 60):
        assert len(tokenizer.encode(text).ids) == 50
        assert ids(padding, text=text) == ids(plain, text=text)


def test_the_library_runs_in_one_thread_and_after_a_fork(folder: Path) -> None:
    code = (
        "import os, sys, threading\n"
        "from pathlib import Path\n"
        "from loader_server.sources.files.file_facts import FilePlaces\n"
        "from loader_server.transforms.chain import Chain\n"
        "table = {'tokenizers': {'models': {'text': 'a.json'}}}\n"
        "chain = Chain.make(('tokenizers',), table, 'job', (), FilePlaces(Path(sys.argv[1])))\n"
        "chain.measure({'text': 'the fox'}, 0, 'sample 0')\n"
        "print(os.environ['TOKENIZERS_PARALLELISM'], len(os.listdir('/proc/self/task')))\n"
        "if not os.fork():\n"
        "    chain.measure({'text': 'the fox'}, 0, 'sample 0')\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    told = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    told.pop("TOKENIZERS_PARALLELISM", None)
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("false 1\n7\n", "")


def test_who_asks_the_library_for_threads_gets_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    (folder / "more.json").write_text((folder / "a.json").read_text() + "\n")
    made(folder, models={"text": "more.json"})
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"models": {"text": "no.json"}},
            r"models, .*no\.json: expected a tokenizer of the tokenizers library, got .*Name",
        ),
        (
            {"models": {"text": "other.json"}},
            r"models, .*other\.json: expected a tokenizer of the tokenizers library, got",
        ),
        (
            {"models": {"text": "a.json"}, "eos": {"text": "<s/>"}},
            r'eos: expected a token of .*a\.json, perhaps "<s>", got',
        ),
        (
            {"models": {"text": "a.json"}, "bos": {"txt": "<s>"}},
            r'bos: expected keys of models \(text\), perhaps "text"',
        ),
        (
            {"models": {"text": "big.json"}, "dtype": "uint16"},
            r"dtype: expected a dtype that holds the 70001 ids of .*big",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_sample(folder: Path, table: dict[str, Any], said: str) -> None:
    (folder / "no.json").write_text("{")
    (folder / "other.json").write_text('{"text": 1}')
    big = json.loads((folder / "a.json").read_text())
    big["added_tokens"].append({**big["added_tokens"][0], "id": 70_000, "content": "<far>"})
    big["model"]["vocab"]["<far>"] = 70_000
    (folder / "big.json").write_text(json.dumps(big))
    with pytest.raises(SettingsError, match=f"^job, tokenizers.*{said}"):
        made(folder, **table)


def test_another_vocabulary_makes_another_fingerprint(folder: Path) -> None:
    (folder / "now.json").write_bytes((folder / "a.json").read_bytes())
    before = made(folder, models={"text": "now.json"})
    assert before.recipe == made(folder, models={"text": "a.json"}).recipe
    (folder / "now.json").write_bytes((folder / "b.json").read_bytes())
    after = made(folder, models={"text": "now.json"})
    assert after.recipe != before.recipe
    assert ids(after, text="the fox") != ids(before, text="the fox")
    assert ids(after, text="the fox") == ids(made(folder, models={"text": "b.json"}), text="the fox")


@pytest.mark.parametrize(("special", "pads_with", "token"), [
    ((), None, None), (("<pad>",), None, "<pad>"), (("<pad>", "[PAD]"), None, "[PAD]"), (("<pad>",), "</s>", "</s>"),
])  # fmt: skip
def test_the_padding_token_is_that_of_the_file_or_one_with_a_usual_name(
    folder: Path, tmp_path: Path, special: tuple[str, ...], pads_with: str | None, token: str | None
) -> None:
    tokenizer = Tokenizer.from_file(f"{folder}/a.json")
    tokenizer.add_special_tokens(list(special))
    if pads_with is not None:
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id(pads_with), pad_token=pads_with)
    tokenizer.save(f"{tmp_path}/a.json")
    (step,) = made(tmp_path, models={"text": "a.json"}).steps
    assert padding_tokens([step]) == ({} if token is None else {"text": tokenizer.token_to_id(token)})
