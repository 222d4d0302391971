"""What a member of a WebDataset shard becomes, by its suffix: audio, text, a number, an array, JSON, or bytes.

Rules: `txt` becomes `text`; `flac`, `wav`, `ogg` and `mp3` become `audio` with its rate; any other becomes a value
named like the suffix. If something stands before the format, that is the name: `de.txt` gives `de`. Everything but
bytes is decoded while indexing as it is later, so that what cannot be decoded is known before training.
"""

from __future__ import annotations

import functools
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.largest import LARGEST_SAMPLE, refuse_larger
from shared.errors import SampleError
from shared.wire.layout import DTYPES, Field

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MemberForm", "form_of_member"]

_KINDS = {
    **dict.fromkeys(("txt", "text"), "text"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    "cls": "number",
    "json": "json",
    "npy": "array",
}
#: What the parsers of json, of int and of numpy raise.
_UNREADABLE = (ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError)
_NAMES = {"text": "text", "audio": "audio"}
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class MemberForm:
    """The form of members with this suffix; `dtype` and the `shape` of a step are those of arrays."""

    suffix: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None

    @property
    def kind(self) -> str:
        """Audio, text, number, json, array or bytes."""
        return _KINDS.get(self.suffix.rpartition(".")[2], "bytes")

    @property
    def key(self) -> str:
        """What its value is called."""
        name, _, last = self.suffix.rpartition(".")
        return name if name and self.kind != "bytes" else _NAMES.get(self.kind, self.suffix or last)

    def field(self, rate: int) -> Field | None:
        """The field as a batch has it: audio has time if all files have one rate."""
        if self.kind == "audio":
            return Field(key=self.key, dtype="float32", shape=(None,), per_second=float(rate) or None)
        if self.kind == "number":
            return Field(key=self.key, dtype="int64", shape=())
        if self.kind == "array":
            return Field(key=self.key, dtype=self.dtype, shape=() if self.shape is None else (None, *self.shape))
        return None

    @property
    def lengths(self) -> tuple[str, ...]:
        """The keys whose lengths `look` tells."""
        if self.kind == "audio":
            return self.key, f"{self.key}_rate"
        padded = self.kind == "text" or (self.kind == "array" and self.shape is not None)
        return (self.key,) if padded else ()

    def look(self, raw: bytes, where: str, largest: int = LARGEST_SAMPLE) -> Sequence[int]:
        """Its lengths, if it has any; a SampleError if it cannot be used, or is audio of more than the `largest` bytes
        (0: of however many).
        """
        if self.kind == "audio":
            return _audio_lengths(raw, where, largest)
        values = self.decode(raw, where)
        return [len(values[key]) for key in self.lengths]

    def decode(self, raw: bytes, where: str, largest: int = LARGEST_SAMPLE) -> dict[str, Any]:
        """The member's values in a raw sample; a SampleError if it cannot be used."""
        if self.kind == "audio":
            from loader_server.sources.audio.decoding import AVERAGED, decoded_audio  # needs soundfile

            audio, rate = decoded_audio(raw, where, AVERAGED, largest)
            return {self.key: audio, f"{self.key}_rate": rate}
        try:
            return {self.key: getattr(self, f"_{self.kind}")(raw)}
        except UnicodeDecodeError as error:
            got = f"the byte 0x{raw[error.start]:02x} after {error.start} others"
            raise _unusable("not_utf8", f'"{self.suffix}" in UTF-8', got, where) from None
        except _UNREADABLE as error:
            raise _unusable("undecodable", self._expected, str(error), where) from None

    @property
    def _expected(self) -> str:
        axes = [] if self.shape is None else [None, *self.shape]
        return f'"{self.suffix}" as {self.kind}' + (f" of {self.dtype} {axes}" if self.dtype else "")

    @staticmethod
    def _text(raw: bytes) -> str:
        return raw.decode()

    @staticmethod
    def _bytes(raw: bytes) -> bytes:
        return raw

    @staticmethod
    def _number(raw: bytes) -> Any:
        return np.int64(int(raw))

    @staticmethod
    def _json(raw: bytes) -> Any:
        return json.loads(raw)

    def _array(self, raw: bytes) -> Any:
        made = _npy(raw)
        if self.dtype and (str(made.dtype), made.shape[1:] if made.ndim else None) != (self.dtype, self.shape):
            raise ValueError(f"an array of {made.dtype} {list(made.shape)}")
        return made if made.ndim else made[()]


def form_of_member(suffix: str, raw: bytes) -> MemberForm:
    """The form of members with this suffix, given one of them."""
    form = MemberForm(suffix)
    if form.kind != "array":
        return form
    value = form.decode(raw, suffix)[form.key]
    if str(value.dtype) not in DTYPES:
        raise _unusable("undecodable", f"an array of a dtype of {', '.join(sorted(DTYPES))}", str(value.dtype), suffix)
    return MemberForm(suffix, str(value.dtype), value.shape[1:] if value.ndim else None)


def _audio_lengths(raw: bytes, where: str, largest: int) -> tuple[int, int]:
    from loader_server.sources.audio.decoding import audio_bytes, header_of_bytes  # needs soundfile

    frames, rate, channels = header_of_bytes(raw, where)
    refuse_larger(audio_bytes(frames, channels), largest, where)
    return frames, rate


def _npy(raw: bytes) -> np.ndarray[Any, Any]:
    """A copy of the array in a `.npy` file. numpy takes three times as long, mostly for the header, and takes memory
    for whatever a header claims before it looks for the values.
    """
    width = 2 if raw[6:7] == b"\1" else 4
    size = 8 + width + int.from_bytes(raw[8 : 8 + width], "little")
    dtype, shape, order = _npy_header(raw[:size])
    made = np.frombuffer(raw, dtype, int(np.prod(shape)), size).reshape(shape, order=order)
    return np.array(made, order="C")


@functools.lru_cache(maxsize=4096)
def _npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Any]:
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    if version not in _NPY_HEADERS:
        raise ValueError(
            f"an array in version {version[0]}.{version[1]} of the format, which only names of fields need"
        )
    shape, fortran, dtype = _NPY_HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which are never read")
    return dtype, shape, "F" if fortran else "C"


def _unusable(reason: str, expected: str, got: str, where: str) -> SampleError:
    return SampleError(
        reason=reason,
        expected=expected,
        got=got,
        where=where,
        remedy="Mend or remove the member, or leave it out of `members`, then run loader-server index.",
    )
