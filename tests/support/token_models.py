"""Small models for texts, trained by the libraries that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["TEXTS", "train_sentencepiece", "train_tokenizer"]

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
