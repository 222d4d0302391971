"""Small models for texts, trained by the libraries that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from loader_server.sources.batch_columns import Ragged
from shared.wire.batch_layout import Field

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loader_server.transforms.chain import Chain

__all__ = ["TEXTS", "assert_same_together", "train_sentencepiece", "train_tokenizer"]

TEXTS = [
    f"the {size} {animal} is {colour}"
    for size in ("big", "small")
    for animal in ("fox", "Bär", "cat")
    for colour in ("red", "blue")
]


def train_sentencepiece(path: Path, texts: Sequence[str] = TEXTS, **options: object) -> Path:
    """Write a SentencePiece model; its <s> is 1 and its </s> 2."""
    with path.open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            **{"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1, **options},
        )
    return path


def train_tokenizer(path: Path, texts: Sequence[str] = TEXTS, *, vocabulary: int = 90) -> Path:
    """Write a byte-level BPE tokenizer whose template puts each text between <s> (0) and </s> (1)."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    size = vocabulary + len(alphabet)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(token, made.token_to_id(token)) for token in special]
    )
    made.save(str(path))
    return path


def assert_same_together(chain: Chain, words: Sequence[str]) -> None:
    """The chain makes of all texts together what it makes of each."""
    dtype = chain.measure({"text": "a"}, 0, "sample 0")[0][0].dtype
    bound = chain.bound((Field(key="text", dtype=dtype, shape=(None,)),))
    assert bound.takes_columns
    alone = [bound.apply({"text": text}, seed=0, epoch=0, number=0)["text"] for text in words]
    together = bound.on_columns({"text": list(words)})["text"]
    assert isinstance(together, Ragged)
    assert together.lengths.tolist() == [len(ids) for ids in alone]
    assert together.values.tobytes() == np.concatenate([np.zeros(0, dtype), *alone]).tobytes()
