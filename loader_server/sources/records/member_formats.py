"""What a member of a WebDataset shard becomes, by its suffix: audio, text, a number, an array, JSON, or bytes.

Rules: `txt` becomes `text`; `flac`, `wav`, `ogg` and `mp3` become `audio` with its rate; any other becomes a value
named like the suffix. If the suffix has a name before the format, that is the key: `de.txt` gives `de`. Everything but
bytes is decoded during indexing as it is later, so that members that cannot be decoded are known before training.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.array_files import array_of_npy
from loader_server.sources.sample_limits import LARGEST_SAMPLE
from shared.errors import SampleError
from shared.wire.batch_layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MemberForm", "form_of_member"]

_KINDS = {
    **dict.fromkeys(("txt", "text"), "text"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    "cls": "number",
    "json": "json",
    "npy": "array",
}
#: Exceptions of json's, int's and numpy's parsers for malformed bytes.
_UNREADABLE = (ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError, TokenError)
_NAMES = {"text": "text", "audio": "audio"}


def _number(raw: bytes) -> Any:
    return np.int64(int(raw))


#: What makes a value of a member's bytes, by its kind; arrays and audio need more than the bytes.
_PARSERS: dict[str, Callable[[bytes], Any]] = {
    "text": bytes.decode,
    "bytes": bytes,
    "number": _number,
    "json": json.loads,
}


@dataclass(frozen=True, slots=True)
class MemberForm:
    """How members with this suffix are decoded; `dtype` and `shape` (of one step) are set for arrays only."""

    suffix: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None

    @property
    def kind(self) -> str:
        """Return audio, text, number, json, array or bytes, by the last part of the suffix; bytes if it is unknown."""
        return _KINDS.get(self.suffix.rpartition(".")[2], "bytes")

    @property
    def key(self) -> str:
        """Return the key of the value in a sample: the name before the format, or else `text`, `audio` or the suffix.

        Members that stay bytes have the whole suffix as their key.
        """
        name, _, last = self.suffix.rpartition(".")
        return name if name and self.kind != "bytes" else _NAMES.get(self.kind, self.suffix or last)

    def field(self, rate: int) -> Field | None:
        """Return the field in a batch, or None for text, JSON and bytes.

        `rate` is the sampling rate that all recordings under this key have, or 0 if they differ; only with a common
        rate can lengths be given in seconds.
        """
        if self.kind == "audio":
            return Field(key=self.key, dtype="float32", shape=(None,), per_second=float(rate) or None)
        if self.kind == "number":
            return Field(key=self.key, dtype="int64", shape=())
        if self.kind == "array":
            return Field(key=self.key, dtype=self.dtype, shape=() if self.shape is None else (None, *self.shape))
        return None

    @property
    def lengths(self) -> tuple[str, ...]:
        """Return the keys whose values `look` returns: audio and its rate, text, or an array with axes.

        It is empty for all other kinds.
        """
        if self.kind == "audio":
            return self.key, f"{self.key}_rate"
        padded = self.kind == "text" or (self.kind == "array" and self.shape is not None)
        return (self.key,) if padded else ()

    def look(self, raw: bytes, where: str, largest: int = LARGEST_SAMPLE) -> Sequence[int]:
        """Return the member's lengths, in the order of `lengths`; raise a SampleError if it cannot be used.

        Audio is measured by its header, not decoded; it is refused if it would have more than `largest` bytes (0: no
        limit). SettingsError of `audio_lengths` passes through, and what `decode` lets pass.
        """
        if self.kind == "audio":
            from loader_server.sources.audio.audio_files import audio_lengths  # needs soundfile

            return audio_lengths(raw, where, largest)
        values = self.decode(raw, where)
        return [len(values[key]) for key in self.lengths]

    def decode(self, raw: bytes, where: str, largest: int = LARGEST_SAMPLE) -> dict[str, Any]:
        """Return the member's values in a raw sample by key; raise a SampleError if it cannot be used.

        Audio other than plain WAV is also refused if it would have more than `largest` bytes (0: no limit); other kinds
        have no limit here. SettingsError of `decoded_audio` passes.
        """
        if self.kind == "audio":
            from loader_server.sources.audio.audio_files import AVERAGED, decoded_audio  # needs soundfile

            audio, rate = decoded_audio(raw, where, AVERAGED, largest)
            return {self.key: audio, f"{self.key}_rate": rate}
        try:
            parse = self._array if self.kind == "array" else _PARSERS[self.kind]
            return {self.key: parse(raw)}
        except UnicodeDecodeError as error:
            got = f"the byte 0x{raw[error.start]:02x} after {error.start} others"
            raise _unusable("not_utf8", f'"{self.suffix}" in UTF-8', got, where) from None
        except _UNREADABLE as error:
            raise _unusable("undecodable", self._expected, str(error), where) from None

    @property
    def _expected(self) -> str:
        axes = [] if self.shape is None else [None, *self.shape]
        return f'"{self.suffix}" as {self.kind}' + (f" of {self.dtype} {axes}" if self.dtype else "")

    def _array(self, raw: bytes) -> Any:
        """Return the array, or a scalar if it has no axes.

        Raise a ValueError if it has another dtype or step than the first array had; for bytes that are no array, raise
        an error of `_UNREADABLE`.
        """
        array = array_of_npy(raw)
        if self.dtype and (str(array.dtype), array.shape[1:] if array.ndim else None) != (self.dtype, self.shape):
            raise ValueError(f"an array of {array.dtype} {list(array.shape)}")
        return array if array.ndim else array[()]  # a scalar, not an array without axes


def form_of_member(suffix: str, raw: bytes) -> MemberForm:
    """Return the form of members with this suffix, given the bytes of one of them.

    Raise a SampleError if the suffix says array, but these bytes are none or have an unsupported dtype. The bytes of
    other kinds are not looked at.
    """
    form = MemberForm(suffix)
    if form.kind != "array":
        return form
    value = form.decode(raw, suffix)[form.key]
    if str(value.dtype) not in DTYPES:
        raise _unusable("undecodable", f"an array of a dtype of {', '.join(sorted(DTYPES))}", str(value.dtype), suffix)
    return MemberForm(suffix, str(value.dtype), value.shape[1:] if value.ndim else None)


def _unusable(reason: str, expected: str, got: str, where: str) -> SampleError:
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend or remove the member, or leave it out of `members`, then run loader-server index.",
    )
