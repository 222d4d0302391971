"""Parallel text, tokenized in workers: each batch holds the ids that the library gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer

import trainer_client
from tests.support.loaders import running
from tests.support.token_models import TEXTS, train_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
[job]
name = "text"
listen = "tcp://127.0.0.1:*"
[streams.train]
source = "parallel"
paths = { source = "a.en", target = "a.ne" }
transforms = ["tokenizers"]
length = "target"
budget = "60 tokens"
shapes = 2
[streams.train.tokenizers]
models = { source = "a.json", target = "b.json" }
special_tokens = false
eos = { target = "</s>" }
"""


def test_parallel_text_is_trained_on(tmp_path: Path) -> None:
    texts = {"en": [text[: 9 + place] for place, text in enumerate(TEXTS)], "ne": [text[::-1] for text in TEXTS]}
    for name, lines in texts.items():
        (tmp_path / f"a.{name}").write_text("\n".join(lines) + "\n")
    source, target = (
        Tokenizer.from_file(str(train_tokenizer(tmp_path / f"{name}.json", lines)))
        for name, lines in zip("ab", texts.values(), strict=True)
    )
    (tmp_path / "job.toml").write_text(JOB)
    seen = set()
    with running(tmp_path / "job.toml", workers=1) as loaders, trainer_client.connect(loaders.endpoint) as feed:
        for batch in feed:
            for row, tag in enumerate(batch["tag"].tolist()):
                if batch["weight"][row]:
                    got = [batch[key][row, : batch[f"{key}_length"][row]].tolist() for key in ("source", "target")]
                    expected = source.encode(texts["en"][tag], add_special_tokens=False).ids
                    assert got == [expected, [*target.encode(texts["ne"][tag], add_special_tokens=False).ids, 1]]
                    seen.add(tag)
        assert feed.tag(3) == "a.en, a.ne:4"
    assert seen == set(range(len(TEXTS)))
    assert (tmp_path / ".stoker/text/quarantine.jsonl").read_text() == ""
