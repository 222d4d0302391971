"""Encoding of payloads for the network: 16 bits an item for float32 tensors, and compression.

Rules: pure; a payload that went through `round_in_place` comes back from `decode_payload(encode_payload(...))` bit for
bit, so a batch has the same bytes by TCP as in a slot; encoding is deterministic; `decode_payload` survives any bytes,
raises nothing but `ProtocolError` for them, and allocates at most two payloads of this layout (lz4 copies), whatever
they claim. Before compression, the bytes are laid out by the rule of `shared.wire.batch_layout`, with two-byte items
for float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import ProtocolError
from shared.extras import library
from shared.wire.batch_layout import Layout, narrowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "COMPRESSIONS",
    "FLOAT32_FORMS",
    "PayloadEncoding",
    "decode_payload",
    "encode_payload",
    "require_library",
    "round_in_place",
]

#: Encodings of the items of float32 tensors.
FLOAT32_FORMS = ("float32", "bfloat16", "float16")

#: Compressions of the bytes.
COMPRESSIONS = ("none", "lz4", "zstd")

_LIBRARIES = {"lz4": "lz4.block", "zstd": "zstandard"}

#: numpy has no bfloat16, so it is carried as uint16: the upper half of a float32's bits.
_WIRE_DTYPES = {"bfloat16": "uint16", "float16": "float16"}

#: Items of a float32 tensor that are converted at a time: 256 KiB, which stay in the cache between two steps.
_CHUNK = 2**16

#: Level 1 is the fastest; a sender has no time for more.
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadEncoding:
    """Encoding of payloads for the network: one of FLOAT32_FORMS, one of COMPRESSIONS."""

    float32: str = "float32"
    compression: str = "none"

    @property
    def plain(self) -> bool:
        """Return whether payloads are sent as they are: with full float32 items and uncompressed."""
        return self.float32 == "float32" and self.compression == "none"


def require_library(encoding: PayloadEncoding) -> None:
    """Raise SettingsError if the compression's library is not installed here; do nothing without compression."""
    if encoding.compression != "none":
        _library(encoding.compression)


def _library(compression: str) -> Any:
    return library(
        _LIBRARIES[compression],
        extra="compression",
        use=f"for compression {compression!r}",
        otherwise="here and on the other side, or choose compression 'none'",
    )


# --- rounding, by the builder ---


def round_in_place(payload: NDArray[np.uint8], layout: Layout, float32: str) -> None:
    """Round the items of float32 tensors to the nearest value of the 16-bit form `float32`, ties to even.

    With "float32" nothing is changed. NaNs become one and the same NaN.
    """
    if float32 == "float32":
        return
    rounded = _round_to_bfloat16 if float32 == "bfloat16" else _round_to_float16
    for tensor in layout.tensors:
        if tensor.dtype == "float32":
            for chunk in _chunks(tensor.lies_in(payload).view(np.float32)):
                _unify_nans(chunk)
                rounded(chunk)


def _chunks(items: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, items.size, _CHUNK):
        yield items[start : start + _CHUNK]


def _unify_nans(items: NDArray[np.float32]) -> None:
    """Make every NaN the same, because processors differ in which of its bits survive a conversion."""
    nans = np.isnan(items)
    if nans.any():
        items[nans] = np.nan


def _round_to_bfloat16(items: NDArray[np.float32]) -> None:
    """Round in place to the nearest value with a bfloat16's bits, ties to even."""
    # Round half to even, on integers: adding 0x7FFF plus the lowest kept bit carries into the upper half exactly when
    # the lower half is above one half, or equal to it while the upper half is odd.
    bits = items.view(np.uint32)
    nudge = bits >> 16
    nudge &= 1
    nudge += 0x7FFF
    bits += nudge
    bits &= 0xFFFF0000


def _round_to_float16(items: NDArray[np.float32]) -> None:
    with np.errstate(all="ignore"):
        items[...] = items.astype(np.float16)


# --- encoding, by the sender ---


def encode_payload(payload: NDArray[np.uint8], layout: Layout, encoding: PayloadEncoding) -> memoryview:
    """Return the bytes to send for a payload that was rounded to the float32 form of this encoding.

    With the plain encoding they are a view of the payload. Raise SettingsError if the compression's library is missing.
    """
    if encoding.float32 != "float32":
        payload = _narrowed(payload, layout, encoding.float32)
    return memoryview(_compressed(payload, encoding.compression))  # type: ignore[arg-type]


def _narrowed(payload: NDArray[np.uint8], layout: Layout, float32: str) -> NDArray[np.uint8]:
    """Return the payload with 16 bits an item for float32 tensors, and zeros between tensors."""
    wire = _on_wire(layout, float32)
    # Zeros, or what memory held before would cross in the gaps, and equal payloads would not encode to equal bytes.
    narrow = np.zeros(wire.nbytes, np.uint8)
    for source, target in zip(layout.tensors, wire.tensors, strict=True):
        if source.dtype == "float32":
            _narrow(source.lies_in(payload).view(np.float32), target.lies_in(narrow).view(_WIRE_DTYPES[float32]))
        else:
            target.lies_in(narrow)[...] = source.lies_in(payload)
    return narrow


def _narrow(items: NDArray[np.float32], narrow: NDArray[Any]) -> None:
    """Write float32 items as 16-bit ones; they were rounded before, so nothing is lost."""
    if narrow.dtype == np.float16:
        narrow[...] = items
    else:
        np.right_shift(items.view(np.uint32), 16, out=narrow, casting="unsafe")


def _on_wire(layout: Layout, float32: str) -> Layout:
    """Return the layout of the encoded payload before compression: float32 tensors have two bytes an item, or four."""
    if float32 == "float32":
        return layout
    return narrowed(layout, {"float32": _WIRE_DTYPES[float32]})


def _compressed(payload: NDArray[np.uint8], compression: str) -> NDArray[np.uint8] | bytes:
    """Return the payload compressed, or the payload itself for "none"; raise SettingsError if the library is missing.

    An lz4 block has no size, which the receiver knows from the layout.
    """
    if compression == "none":
        return payload
    library = _library(compression)
    if compression == "lz4":
        return library.compress(payload, store_size=False)  # type: ignore[no-any-return] # bytes
    return library.ZstdCompressor(level=_ZSTD_LEVEL).compress(payload)  # type: ignore[no-any-return] # bytes


# --- decoding, by the receiver ---


def decode_payload(data: Any, layout: Layout, encoding: PayloadEncoding, out: NDArray[np.uint8]) -> None:
    """Write the plain payload to `out`, all `layout.nbytes` of it.

    `data` comes from another machine: raise ProtocolError if it is not such a payload. Raise SettingsError if the
    compression's library is missing.
    """
    assert out.nbytes == layout.nbytes
    wire = _on_wire(layout, encoding.float32)
    payload = _decompressed(data, wire.nbytes, encoding.compression)
    # Bytes between tensors are part of the payload's digest, and `out` may hold an earlier batch: write zeros there.
    end = 0
    for source, target in zip(wire.tensors, layout.tensors, strict=True):
        out[end : target.offset] = 0
        end = target.offset + target.nbytes
        if source.nbytes == target.nbytes:
            target.lies_in(out)[...] = source.lies_in(payload)
        else:
            items = source.lies_in(payload).view(_WIRE_DTYPES[encoding.float32])
            _widen(items, target.lies_in(out).view(np.float32))
    out[end:] = 0


def _widen(narrow: NDArray[Any], items: NDArray[np.float32]) -> None:
    """Write 16-bit items, float16 or bfloat16 as uint16, as float32 ones of the same value."""
    if narrow.dtype == np.float16:
        with np.errstate(all="ignore"):  # a signalling NaN, which only a foreign program would send
            items[...] = narrow
    else:
        np.left_shift(narrow, 16, out=items.view(np.uint32), dtype=np.uint32)


def _decompressed(data: Any, nbytes: int, compression: str) -> NDArray[np.uint8]:
    """Return exactly `nbytes` decompressed bytes; raise ProtocolError for anything else.

    Raise SettingsError if the compression's library is missing.
    """
    if compression == "lz4":
        data = _from_lz4(data, nbytes)
    elif compression == "zstd":
        data = _from_zstd(data, nbytes)
    payload = np.frombuffer(data, np.uint8)
    if payload.nbytes != nbytes:
        raise _garbage(f"{payload.nbytes} bytes", f"{nbytes} bytes")
    return payload


def _from_lz4(data: Any, nbytes: int) -> bytes:
    """Return `nbytes` bytes of an lz4 block; raise ProtocolError if it is not such a block.

    Raise SettingsError if the library is missing. A block of fewer bytes comes back as it is.
    """
    lz4 = _library("lz4")
    try:
        plain: bytes = lz4.decompress(data, uncompressed_size=nbytes)
    except (lz4.LZ4BlockError, OverflowError, ValueError):
        raise _garbage("something else", f"an lz4 block of {nbytes} bytes") from None
    return plain


def _from_zstd(data: Any, nbytes: int) -> bytes:
    """Return `nbytes` bytes of a zstd frame; raise ProtocolError if it is not such a frame.

    Raise SettingsError if the library is missing.
    """
    zstd = _library("zstd")
    try:
        # The library allocates as much as a frame claims, so check the claim first: a few bytes could claim gigabytes.
        claimed = zstd.get_frame_parameters(data).content_size
        if claimed != nbytes:
            raise _garbage(f"a frame of {claimed} bytes", f"a zstd frame of {nbytes} bytes")
        plain: bytes = zstd.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstd.ZstdError:
        raise _garbage("something else", f"a zstd frame of {nbytes} bytes") from None
    return plain


def _garbage(got: str, expected: str) -> ProtocolError:
    return ProtocolError(
        expected=expected, got=got, where="payload from the other side", remedy="It was dropped; see PROTOCOL.md."
    )
