"""The kind of a file by its first bytes, whatever its name says.

Rules: pure. Only the kinds that people take for text by mistake are known: any other beginning may be text.
"""

from __future__ import annotations

from shared.errors import DataError

__all__ = ["HEAD_BYTES", "refuse_no_text"]

#: Bytes needed to recognize any of the kinds.
HEAD_BYTES = 6

_UNPACK = "Unpack it once: lines are read from their places, which a compressed file does not have."
_CONVERT = "Convert it once, with iconv for instance: iconv -f UTF-16 -t UTF-8."

#: Magic bytes, the kind, and the remedy. A longer mark comes before a shorter one that it starts with: UTF-32's mark
#: begins with UTF-16's.
_KINDS = (
    (b"\x1f\x8b", "one that is compressed by gzip", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "one that is compressed by zstd", _UNPACK),
    (b"\xfd7zXZ\0", "one that is compressed by xz", _UNPACK),
    (b"BZh", "one that is compressed by bzip2", _UNPACK),
    (b"PK\3\4", "a zip archive", _UNPACK),
    (b"\xff\xfe\0\0", "one in UTF-32", _CONVERT.replace("16", "32")),
    (b"\0\0\xfe\xff", "one in UTF-32", _CONVERT.replace("16", "32")),
    (b"\xff\xfe", "one in UTF-16", _CONVERT),
    (b"\xfe\xff", "one in UTF-16", _CONVERT),
)


def refuse_no_text(head: bytes, where: str) -> None:
    """Raise a DataError if a file with this beginning is not text in UTF-8."""
    without_mark = ("one in UTF-16, without its mark", _CONVERT) if _alternates(head) else None
    kind = next(((got, remedy) for mark, got, remedy in _KINDS if head.startswith(mark)), without_mark)
    if kind is not None:
        raise DataError(expected="a text file in UTF-8", got=kind[0], where=where, remedy=kind[1])


def _alternates(head: bytes) -> bool:
    """Return whether exactly every second byte is zero, as in Latin letters in UTF-16."""
    return len(head) == HEAD_BYTES and any(head[::2]) != any(head[1::2])
