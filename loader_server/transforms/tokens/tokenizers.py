"""`tokenizers`: texts to ids by Hugging Face tokenizers (`tokenizer.json`), one a key.

Rules: token lengths are measured while indexing and kept; nothing is drawn; truncation and padding that a file asks for
are left out, as batches are padded by the plan. A process uses one thread: one core is all that a worker has, and
threads of the library's own would not survive a fork. It is imported where a file is loaded, and nowhere else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader_server.transforms import SettingsError, by_key, file, flag, setting, text, transform
from loader_server.transforms.tokens.token_ids import TextEncoder, refuse_narrow_dtype, refuse_other_keys, token_dtype
from shared.settings.values import nearest

if TYPE_CHECKING:
    from loader_server.transforms.tokens.token_ids import Encode

__all__ = ["Tokenizers", "TokenizersSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizersSettings:
    """The table [streams.<name>.tokenizers]."""

    models: tuple[tuple[str, str], ...] = setting(
        by_key(file), 'the tokenizer of each key that becomes ids: `{ text = "tokenizer.json" }`'
    )
    special_tokens: bool = setting(flag, "whether the tokenizer's own template adds its special tokens", default=True)
    bos: tuple[tuple[str, str], ...] = setting(
        by_key(text), 'a token that the ids of a key begin with besides: `{ target = "<s>" }`', default=()
    )
    eos: tuple[tuple[str, str], ...] = setting(by_key(text), "a token that they end with", default=())
    dtype: str = setting(token_dtype, "of the ids: int32, int64 or uint16", default="int32")


@transform(settings=TokenizersSettings, measured=True, draws=False, packages=("tokenizers",))
class Tokenizers(TextEncoder):
    """The transform: each of its keys, a string, becomes ids `[tokens]`."""

    def __init__(self, settings: TokenizersSettings) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        models, bos, eos = {key: _loaded(path) for key, path in settings.models}, dict(settings.bos), dict(settings.eos)
        refuse_other_keys("bos", bos, models)
        refuse_other_keys("eos", eos, models)
        encode: dict[str, Encode] = {}
        for (key, model), (_, path) in zip(models.items(), settings.models, strict=True):
            refuse_narrow_dtype(settings.dtype, 1 + max(model.get_vocab(with_added_tokens=True).values()), path)
            first, last = _id("bos", bos.get(key), model, path), _id("eos", eos.get(key), model, path)
            encode[key] = _encoder(model, first, last, special_tokens=settings.special_tokens)
        super().__init__(encode, settings.dtype)


def _encoder(model: Any, first: list[int], last: list[int], *, special_tokens: bool) -> Encode:  # noqa: ANN401
    # The way for batches leaves out where in the text a token is, which nobody wants here: 24 µs for 35 tokens, not 43.
    encode_batch = model.encode_batch_fast

    def encode(words: str) -> list[int]:
        ids: list[int] = encode_batch([words], add_special_tokens=special_tokens)[0].ids
        return first + ids + last if first or last else ids

    return encode


def _loaded(path: str) -> Any:  # noqa: ANN401 - the library has no types
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

    try:
        model = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing more exact
        raise SettingsError(
            expected="a tokenizer of the tokenizers library",
            got=str(error),
            where=f"models, {path}",
            remedy='Name the tokenizer.json that its save("tokenizer.json") wrote.',
        ) from None
    model.no_padding()
    model.no_truncation()
    return model


def _id(name: str, token: str | None, model: Any, path: str) -> list[int]:  # noqa: ANN401
    """The id of a token that is wanted, as a list of one; none where none is."""
    if token is None:
        return []
    found = model.token_to_id(token)
    if found is None:
        raise SettingsError(
            expected=f"a token of {path}{nearest(token, model.get_vocab())}",
            got=f'"{token}"',
            where=name,
            remedy="Write the token as the tokenizer has it.",
        )
    return [int(found)]
