"""Parser of Kaldi's matrices and vectors as archives (.ark) hold them: headers and numbers.

Rules: pure; binary floats, FM and DM (matrices), FV and DV (vectors), the compressed matrices CM, CM2 and CM3, and both
in text form (`ark,t`): numbers in brackets, with a line for each row of a matrix. All numbers come out as float32. The
header of anything else is None, never an exception.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HEADER_BYTES", "KINDS", "TEXT_ENDS", "ArkHeader", "ark_header", "ark_values", "is_text"]

KINDS = ("FM", "DM", "FV", "DV", "CM", "CM2", "CM3", "text M", "text V")
_TEXT_BEGINS, TEXT_ENDS = b"[", b"]"
#: Bytes that hold any header.
HEADER_BYTES = 22

#: Each size follows a byte with the number of its bytes.
_MATRIX, _VECTOR = struct.Struct("<BiBi"), struct.Struct("<Bi")
#: Header of a compressed matrix: least value, range up to the greatest, rows, columns.
_COMPRESSED = struct.Struct("<ffii")
_INTEGER_BYTES = 4
#: What a CM stores for each column: least value, first and third quartile, and greatest value, as uint16.
_QUARTILES_BYTES = 8
_NUMBER_BYTES = {"FM": 4, "DM": 8, "FV": 4, "DV": 8, "CM": 1, "CM2": 2, "CM3": 1}


@dataclass(frozen=True, slots=True)
class ArkHeader:
    """Header of a matrix or vector: kind, size, where its numbers begin, and its bytes, header included.

    A vector has 0 columns.
    """

    kind: str
    rows: int
    columns: int
    begin: int
    nbytes: int

    @property
    def kind_number(self) -> int:
        """Return the place of the kind among KINDS, for a column of numbers."""
        return KINDS.index(self.kind)


def ark_header(raw: bytes) -> ArkHeader | None:
    """Return the header that these bytes begin with.

    Return None if it is not one of the kinds, is cut, or has a negative size or one not stored in 4 bytes. In text form
    the header is all of the matrix: None if the bytes end before it, or its rows are not equally long.
    """
    if is_text(raw):
        return _text_header(raw)
    token, found, _ = raw[:6].partition(b" ")
    kind = token[2:].decode("ascii", "replace")
    if not raw.startswith(b"\0B") or not found or kind not in KINDS:
        return None
    begin = len(token) + 1
    try:
        rows, columns, size = _compressed(raw, begin) if kind.startswith("C") else _plain(raw, begin, kind)
    except (struct.error, ValueError):
        return None
    numbers = rows * columns if kind[1] == "M" else rows
    quartiles = _QUARTILES_BYTES * columns if kind == "CM" else 0
    return ArkHeader(kind, rows, columns, begin + size, begin + size + quartiles + numbers * _NUMBER_BYTES[kind])


def is_text(raw: bytes) -> bool:
    """Return whether a matrix or vector in text form begins with these bytes."""
    return raw.lstrip(b" ").startswith(_TEXT_BEGINS)


def _text_header(raw: bytes) -> ArkHeader | None:
    """Return the header of a matrix or vector in text form; None if the bytes end before it, or it has no equal rows.

    What its words are is not looked at.
    """
    begin, end = raw.index(_TEXT_BEGINS) + 1, raw.find(TEXT_ENDS)
    if end < 0:
        return None
    rows = [len(words) for line in raw[begin:end].split(b"\n") if (words := line.split())]
    if b"\n" not in raw[begin:end]:
        return ArkHeader("text V", sum(rows), 0, begin, end + 1)
    if len(set(rows)) > 1:
        return None
    return ArkHeader("text M", len(rows), rows[0] if rows else 0, begin, end + 1)


def _plain(raw: bytes, begin: int, kind: str) -> tuple[int, int, int]:
    """Return rows, columns and header size of an uncompressed kind.

    Raise a ValueError if a size is negative or not stored in 4 bytes, a struct.error if the header is cut.
    """
    layout = _MATRIX if kind[1] == "M" else _VECTOR
    sizes = layout.unpack_from(raw, begin)
    if set(sizes[::2]) != {_INTEGER_BYTES} or min(sizes[1::2]) < 0:
        raise ValueError(sizes)
    return sizes[1], sizes[3] if kind[1] == "M" else 0, layout.size


def _compressed(raw: bytes, begin: int) -> tuple[int, int, int]:
    """Return rows, columns and header size of a compressed matrix.

    Raise a ValueError if a size is negative, a struct.error if the header is cut.
    """
    _, _, rows, columns = _COMPRESSED.unpack_from(raw, begin)
    if min(rows, columns) < 0:
        raise ValueError(rows)
    return rows, columns, _COMPRESSED.size


def ark_values(raw: bytes, header: ArkHeader) -> NDArray[np.float32]:
    """Return the numbers of a matrix or vector, given all of its bytes.

    Raise a ValueError if they are not as many as the header says; of a vector only whether the bytes are whole numbers
    is looked at.
    """
    if header.kind.startswith("text"):
        numbers = np.array(raw[header.begin : header.nbytes - 1].split(), np.float64).astype(np.float32)
        return numbers.reshape(header.rows, header.columns) if header.kind == "text M" else numbers
    if header.kind.startswith("C"):
        return _decompressed(raw, header)
    dtype = np.dtype("<f4" if _NUMBER_BYTES[header.kind] == 4 else "<f8")
    values = np.frombuffer(raw, dtype, offset=header.begin).astype(np.float32)
    return values.reshape(header.rows, header.columns) if header.kind[1] == "M" else values


def _decompressed(raw: bytes, header: ArkHeader) -> NDArray[np.float32]:
    """Return the numbers of a compressed matrix, which CM2 and CM3 store as equal steps from the least value.

    Raise a ValueError if they are not as many as the header says.
    """
    least, span = (np.float32(number) for number in struct.unpack_from("<ff", raw, header.begin - _COMPRESSED.size))
    if header.kind == "CM":
        return _from_quartiles(raw, header, least, span)
    dtype, most = (np.dtype("<u2"), 65535) if header.kind == "CM2" else (np.dtype("u1"), 255)
    values = np.frombuffer(raw, dtype, offset=header.begin).astype(np.float32)
    values *= span * np.float32(1 / most)
    values += least
    return values.reshape(header.rows, header.columns)


def _from_quartiles(raw: bytes, header: ArkHeader, least: np.float32, span: np.float32) -> NDArray[np.float32]:
    """Return the numbers of a CM matrix, whose columns have a scale of their own each.

    Bytes from 0 to 64 are steps from the column's least value to its first quartile, those to 192 from there to the
    third quartile, and those to 255 from there to the greatest value. Raise a ValueError if they are not as many as the
    header says.
    """
    begin, columns = header.begin, header.columns
    words = np.frombuffer(raw, "<u2", count=4 * columns, offset=begin).reshape(columns, 4, 1)
    p0, p25, p75, p100 = (least + span * np.float32(1 / 65535) * words.astype(np.float32)).transpose(1, 0, 2)
    steps = np.arange(256, dtype=np.float32)
    # A table of 256 values a column: each byte is then looked up, however many rows there are.
    table = np.empty((columns, 256), np.float32)
    table[:, :65] = p0 + (p25 - p0) * steps[:65] * np.float32(1 / 64)
    table[:, 65:193] = p25 + (p75 - p25) * (steps[65:193] - 64) * np.float32(1 / 128)
    table[:, 193:] = p75 + (p100 - p75) * (steps[193:] - 192) * np.float32(1 / 63)
    numbers = np.frombuffer(raw, np.uint8, offset=begin + _QUARTILES_BYTES * columns).reshape(columns, header.rows)
    # Bytes lie column after column; transposed, and offset by the column's place in the flat table.
    places = numbers.T + np.arange(0, 256 * columns, 256)
    values: NDArray[np.float32] = table.ravel().take(places)
    return values
