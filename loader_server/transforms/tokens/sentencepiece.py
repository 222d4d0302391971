"""`sentencepiece`: texts to ids by SentencePiece models, one for each key.

Rules: token lengths are measured while indexing and kept; nothing is drawn. The library is imported only when a model
is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from loader_server.transforms import SettingsError, by_key, file, setting, texts, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.tokens.token_ids import TextEncoder, refuse_narrow_dtype, refuse_other_keys, token_dtype

if TYPE_CHECKING:
    from loader_server.transforms.tokens.token_ids import TextModel

__all__ = ["SentencePiece", "SentencePieceSettings"]


#: Fewest texts to encode in one call: the library starts a thread for it, which pays off only from this many on.
_MANY = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceSettings:
    """The table [streams.<name>.sentencepiece]."""

    models: tuple[tuple[str, str], ...] = setting(
        by_key(file), 'the model of each key that becomes ids: `{ source = "en.model", target = "de.model" }`'
    )
    bos: tuple[str, ...] = setting(texts, "the keys whose ids begin with the model's <s>", default=())
    eos: tuple[str, ...] = setting(texts, "the keys whose ids end with the model's </s>", default=())
    dtype: str = setting(token_dtype, "of the ids: int32, int64 or uint16", default="int32")


@built_in("sentencepiece")
# Ids come of adding a model's scores one after another, for which the library has one loop for all processors.
@transform(settings=SentencePieceSettings, measured=True, draws=False, packages=("sentencepiece",), processor_safe=True)
class SentencePiece(TextEncoder):
    """Transform of its keys, each a string, to ids `[tokens]`.

    Raise SettingsError if a file is missing or no model, a setting names a key without a model, the dtype cannot hold
    all ids, or a model lacks a token that settings ask for.
    """

    def __init__(self, settings: SentencePieceSettings) -> None:
        loaded = {path: _loaded(path) for path in dict.fromkeys(path for _, path in settings.models)}
        models = {key: loaded[path] for key, path in settings.models}
        for name, keys in (("bos", settings.bos), ("eos", settings.eos)):
            refuse_other_keys(name, keys, models)
        for (key, model), (_, path) in zip(models.items(), settings.models, strict=True):
            refuse_narrow_dtype(settings.dtype, model.get_piece_size(), path)
            _refuse_lacking("bos", key in settings.bos, model.bos_id(), path)
            _refuse_lacking("eos", key in settings.eos, model.eos_id(), path)
        # One for keys that are encoded alike, so that their texts can be encoded together.
        alike: dict[tuple[int, ...], TextModel] = {}
        made: dict[str, TextModel] = {}
        for key, model in models.items():
            how = {"add_bos": key in settings.bos, "add_eos": key in settings.eos}
            made[key] = alike.setdefault((id(model), *how.values()), _SentencePieceModel(model, **how))
        # -1 is the library's word for none, and what a model has unless it was trained with --pad_id.
        padding = {key: model.pad_id() for key, model in models.items() if model.pad_id() >= 0}
        super().__init__(made, settings.dtype, padding)


class _SentencePieceModel:
    """A SentencePiece model that adds begin and end tokens as the settings ask."""

    def __init__(self, model: Any, *, add_bos: bool, add_eos: bool) -> None:
        self._encode = partial(model.encode, out_type=int, add_bos=add_bos, add_eos=add_eos)

    def ids(self, text: str) -> list[int]:
        """Return the ids of one text, with begin and end tokens as the settings ask.

        What the library raises for a text passes.
        """
        encoded: list[int] = self._encode(text)
        return encoded

    def ids_of_all(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each of several texts, with begin and end tokens as the settings ask.

        What the library raises for a text passes.
        """
        if len(texts) < _MANY:
            return list(map(self.ids, texts))
        # A thread of its own for each call: keeping threads gained 0.2 µs a text, and needs a newer release.
        encoded: list[list[int]] = self._encode(texts, num_threads=1)
        return encoded


def _loaded(path: str) -> Any:
    """Load a model; raise SettingsError if the file is missing or no model, ImportError without the library."""
    from sentencepiece import SentencePieceProcessor  # an extra

    try:
        return SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            expected="a SentencePiece model",
            got=str(error),
            where=f"models, {path}",
            remedy="Name the .model file that SentencePiece's trainer wrote.",
        ) from None


def _refuse_lacking(name: str, wanted: bool, token: int, path: str) -> None:  # noqa: FBT001 - a fact, not a switch
    """Raise SettingsError if a token is wanted that the model lacks, so that the id `token` is below 0."""
    if wanted and token < 0:
        raise SettingsError(
            expected=f"a model with a piece for {name}",
            got=f"none in {path}",
            where=name,
            remedy=f"Leave {name} out, or train the model with --{name}_id.",
        )
