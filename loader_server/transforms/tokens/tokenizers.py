"""`tokenizers`: texts to ids by Hugging Face tokenizers (`tokenizer.json`), one for each key.

Rules: token lengths are measured while indexing and kept; nothing is drawn; truncation and padding settings of a file
are switched off, because the plan pads batches. A process uses one thread: a worker has only one core, and the
library's own threads would not survive a fork. The library is imported only when a file is loaded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from loader_server.transforms import SettingsError, by_key, file, flag, setting, text, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.tokens.token_ids import TextEncoder, refuse_narrow_dtype, refuse_other_keys, token_dtype
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    from loader_server.transforms.tokens.token_ids import TextModel

__all__ = ["Tokenizers", "TokenizersSettings"]


#: The names that padding tokens have in published tokenizers.
_PADDING_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>")

#: Texts per call. The library's result is 100 times as large as the text: 128 at a time cost 31 µs each, 8 to 32 cost
#: 27.
_AT_A_TIME = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizersSettings:
    """The table [streams.<name>.tokenizers]."""

    models: tuple[tuple[str, str], ...] = setting(
        by_key(file), 'the tokenizer of each key that becomes ids: `{ text = "tokenizer.json" }`'
    )
    special_tokens: bool = setting(flag, "whether the tokenizer's own template adds its special tokens", default=True)
    bos: tuple[tuple[str, str], ...] = setting(
        by_key(text), 'a token to put before the ids of a key: `{ target = "<s>" }`', default=()
    )
    eos: tuple[tuple[str, str], ...] = setting(by_key(text), "a token to put after the ids of a key", default=())
    dtype: str = setting(token_dtype, "of the ids: int32, int64 or uint16", default="int32")


@built_in("tokenizers")
# Ids come of searching and counting in whole numbers; the library's vectors only speed up the search.
@transform(settings=TokenizersSettings, measured=True, draws=False, packages=("tokenizers",), processor_safe=True)
class Tokenizers(TextEncoder):
    """Transform of its keys, each a string, to ids `[tokens]`.

    Raise SettingsError if a file is missing or no tokenizer, a setting names a key without one or a token that it
    lacks, or the dtype cannot hold all ids.
    """

    def __init__(self, settings: TokenizersSettings) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        models, bos, eos = {key: _loaded(path) for key, path in settings.models}, dict(settings.bos), dict(settings.eos)
        padding = {key: _padding_token(model) for key, model in models.items()}
        refuse_other_keys("bos", bos, models)
        refuse_other_keys("eos", eos, models)
        made: dict[str, TextModel] = {}
        for (key, model), (_, path) in zip(models.items(), settings.models, strict=True):
            refuse_narrow_dtype(settings.dtype, 1 + max(model.get_vocab(with_added_tokens=True).values()), path)
            first, last = _id("bos", bos.get(key), model, path), _id("eos", eos.get(key), model, path)
            model.no_padding()
            model.no_truncation()
            made[key] = _TokenizerModel(model, first, last, special_tokens=settings.special_tokens)
        super().__init__(made, settings.dtype, {key: token for key, token in padding.items() if token is not None})


class _TokenizerModel:
    """A tokenizer that adds the begin and end tokens of the settings."""

    def __init__(self, model: Any, first: list[int], last: list[int], *, special_tokens: bool) -> None:
        # The fast variant skips the tokens' offsets in the text, which nobody needs here: 24 µs for 35 tokens, not 43.
        self._encode = partial(model.encode_batch_fast, add_special_tokens=special_tokens)
        self._first, self._last = first, last

    def ids(self, text: str) -> list[int]:
        """Return the ids of one text, the settings' begin and end tokens included.

        What the library raises for a text passes.
        """
        return self.ids_of_all([text])[0]

    def ids_of_all(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each of several texts, the settings' begin and end tokens included.

        What the library raises for a text passes.
        """
        first, last = self._first, self._last
        parts = (texts[start : start + _AT_A_TIME] for start in range(0, len(texts), _AT_A_TIME))
        encoded = [encoding.ids for part in parts for encoding in self._encode(part)]
        return [first + ids + last for ids in encoded] if first or last else encoded


def _loaded(path: str) -> Any:
    """Load a tokenizer; raise SettingsError if the file is missing or none, ImportError without the library."""
    from tokenizers import Tokenizer  # an extra

    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing more exact
        raise SettingsError(
            expected="a tokenizer of the tokenizers library",
            got=str(error),
            where=f"models, {path}",
            remedy='Name the tokenizer.json that its save("tokenizer.json") wrote.',
        ) from None


def _padding_token(model: Any) -> int | None:
    """Return the id that the file pads with, else that of a token with a usual name; None if there is neither."""
    if model.padding is not None:
        return int(model.padding["pad_id"])
    # Most files leave padding to the program: then only the name of a special token tells which one is meant for it.
    special = {token.content: number for number, token in model.get_added_tokens_decoder().items() if token.special}
    return next((special[name] for name in _PADDING_TOKENS if name in special), None)


def _id(name: str, token: str | None, model: Any, path: str) -> list[int]:
    """Return a list of the token's id, empty if no token is given; raise SettingsError if the token is unknown."""
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
