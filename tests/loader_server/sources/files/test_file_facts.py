"""What people take for a text by mistake is known by its first bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma

import pytest
import zstandard

from loader_server.sources.files.file_facts import HEAD_BYTES, refuse_no_text
from shared.errors import DataError

TEXT = "one line\nzwei Bäume\n"


TEXTS = (TEXT.encode(), TEXT.encode("utf-8-sig"), TEXT.encode("latin-1"), b"", b"\n", b"\xff")
ODD_TEXTS = (b"a\0", b"a\0\0b\0c", bytes(6))


@pytest.mark.parametrize("content", TEXTS + ODD_TEXTS)
def test_what_may_be_a_text_is_let_through(content: bytes) -> None:
    refuse_no_text(content[:HEAD_BYTES], "a.txt")


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (gzip.compress(b"a", mtime=0), "compressed by gzip"),
        (bz2.compress(b"a"), "compressed by bzip2"),
        (lzma.compress(b"a"), "compressed by xz"),
        (zstandard.compress(b"a"), "compressed by zstd"),
        (b"PK\3\4 and so on", "a zip archive"),
        (TEXT.encode("utf-16"), "in UTF-16"),
        ("\ufeffa".encode("utf-16-be"), "in UTF-16"),
        (TEXT.encode("utf-32"), "in UTF-32"),
        ("\ufeffa".encode("utf-32-be"), "in UTF-32"),
        (TEXT.encode("utf-16-be"), "in UTF-16, without its mark"),
    ],
)
def test_what_is_none_is_named_with_what_to_do(content: bytes, got: str) -> None:
    with pytest.raises(DataError, match=rf"^a\.txt: expected a text file in UTF-8, got .*{got}.* once[:,]"):
        refuse_no_text(content[:HEAD_BYTES], "a.txt")
