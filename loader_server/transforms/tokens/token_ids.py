"""The common part of transforms that turn texts into ids by a trained model: a model for each key, ids as an array.

Rules: the bytes depend only on the text, the model's content, the settings and the library's version, and not on which
texts are encoded with it; a key that samples do not have is an error of the job file, not of every sample.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from loader_server.sources.batch_columns import ragged
from loader_server.transforms import SettingsError, choice
from loader_server.transforms.on_columns import OfColumns, listed
from shared.settings.parsers import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from loader_server.sources.batch_columns import Columns

__all__ = ["TextEncoder", "TextModel", "refuse_narrow_dtype", "refuse_other_keys", "token_dtype"]

#: Parser of the setting for the dtype of ids.
token_dtype = choice("int32", "int64", "uint16")


class TextModel(Protocol):
    """A trained model with the settings of one key."""

    @abstractmethod
    def ids(self, text: str) -> Sequence[int]:
        """Return the ids of one text, maybe none.

        What the model's library raises passes.
        """

    @abstractmethod
    def ids_of_all(self, texts: list[str]) -> Sequence[Sequence[int]]:
        """Return the ids of each of several texts, the same as `ids` gives.

        What the model's library raises passes.
        """


class TextEncoder(OfColumns):
    """Transform that replaces each text by its ids."""

    def __init__(self, models: Mapping[str, TextModel], dtype: str, padding_tokens: Mapping[str, int]) -> None:
        self._models = tuple(models.items())
        #: The keys of each model: several may have the same one.
        self._keys: dict[TextModel, list[str]] = {}
        for key, model in self._models:
            self._keys.setdefault(model, []).append(key)
        #: The ids of the models' own padding tokens, by key: for `padding` of the stream, as texts are not padded here.
        self.padding_tokens = padding_tokens
        self._dtype = np.dtype(dtype)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the text of each key by its ids as an array; raise SettingsError if the sample lacks a key.

        Raise OverflowError for an id that the dtype cannot hold; errors of the models pass.
        """
        for key, model in self._models:
            if key not in sample:
                raise _lacking(key, sample)
            sample[key] = np.array(model.ids(sample[key]), self._dtype)

    def on_columns(self, columns: Columns) -> None:
        """Replace the texts of all samples by their ids.

        Raise TypeError unless they are a list, KeyError if a key is missing, or OverflowError for an id that the dtype
        cannot hold; errors of the models pass.
        """
        for model, keys in self._keys.items():
            # A batch at a time, lines through sentencepiece take 10.0 µs a text instead of 16.5. The texts of all keys
            # of a model in one call: a call begins and ends a thread of the library.
            texts = [listed(columns, key) for key in keys]
            ids = iter(model.ids_of_all(list(chain.from_iterable(texts))))
            for key, of_key in zip(keys, texts, strict=True):
                columns[key] = ragged(list(islice(ids, len(of_key))), self._dtype)


def _lacking(key: str, sample: Mapping[str, Any]) -> SettingsError:
    texts = [f'"{name}"' for name, value in sample.items() if isinstance(value, str)]
    return SettingsError(
        expected=f'a text "{key}" in every sample{nearest(key, sample)}',
        got=f"samples with the texts {', '.join(texts)}" if texts else "samples without a text",
        where="models",
        remedy="Its keys are those of the texts that become numbers.",
    )


def refuse_other_keys(setting: str, keys: Iterable[str], models: Mapping[str, object]) -> None:
    """Raise SettingsError if a setting names a key that has no model."""
    for key in keys:
        if key not in models:
            raise SettingsError(
                expected=f"keys of models ({', '.join(models)}){nearest(key, models)}",
                got=f'"{key}"',
                where=setting,
                remedy="Name one of these, or add its model.",
            )


def refuse_narrow_dtype(dtype: str, ids: int, model: str) -> None:
    """Raise SettingsError if the dtype cannot hold all ids of a model, which are those from 0 to below `ids`."""
    if ids - 1 > np.iinfo(dtype).max:
        raise SettingsError(
            expected=f"a dtype that holds the {ids} ids of {model}",
            got=f'"{dtype}"',
            where="dtype",
            remedy='Write dtype = "int32".',
        )
