"""Strings as the bytes of one tensor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.wire.batch_layout import BucketShape, Field, fields_of_batch, layout_of
from shared.wire.payload import PayloadEncoding, decode_payload, encode_payload
from shared.wire.strings import (
    StringArray,
    arrays_of,
    bytes_needed,
    read_strings,
    room_for,
    write_strings,
)

TEXTS = st.lists(st.text(max_size=30), max_size=20)


def written(texts: list[str], spare: int = 0) -> np.ndarray:
    strings = [text.encode() for text in texts]
    tensor = np.full(bytes_needed(len(strings), sum(map(len, strings))) + spare, 0xA5, np.uint8)
    write(strings, tensor)
    return tensor


def write(strings: list[bytes], tensor: np.ndarray) -> None:
    text = np.frombuffer(b"".join(strings), np.uint8)
    write_strings(np.array([len(string) for string in strings], np.int64), text, tensor)


@settings(deadline=None)
@given(TEXTS, st.integers(0, 40))
def test_what_is_written_is_read_again_and_all_else_is_zero(texts: list[str], spare: int) -> None:
    tensor = written(texts, spare)
    assert [string.decode() for string in read_strings(tensor)] == texts
    assert not tensor[len(tensor) - spare :].any()


@settings(deadline=None)
@given(TEXTS.filter(bool), st.integers(0, 400), st.integers(0, 255))
def test_bytes_that_are_no_strings_are_refused_or_are_strings(texts: list[str], at: int, value: int) -> None:
    tensor = written(texts)
    tensor[at % len(tensor)] = value
    try:
        got = read_strings(tensor)
    except ValueError:
        return
    assert sum(map(len, got)) <= len(tensor)


@pytest.mark.parametrize("tensor", [b"", b"\1\0\0", b"\2\0\0\0\1\0\0\0", b"\1\0\0\0\5\0\0\0abc", b"\xff\xff\xff\xff"])
def test_what_is_cut_short_is_refused(tensor: bytes) -> None:
    with pytest.raises(ValueError, match="string"):
        read_strings(np.frombuffer(tensor, np.uint8))


def test_strings_that_go_backwards_are_refused() -> None:
    tensor = np.frombuffer(np.array([2, 3, 1], "<i4").tobytes() + b"abc", np.uint8)
    with pytest.raises(ValueError, match="before they begin"):
        read_strings(tensor)


def test_strings_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="9 bytes do not fit into 8"):
        write([b"a"], np.zeros(8, np.uint8))


def test_room_grows_in_steps_up_to_the_most() -> None:
    rooms = [room_for(needed, 50_000) for needed in (1, 512, 513, 4000, 4097, 8193, 20_000, 49_000, 50_000)]
    assert rooms == [512, 512, 1024, 4096, 4608, 9216, 20_480, 49_152, 50_000]
    assert room_for(100, 200) == 200
    for needed in range(1, 200_000, 7):
        assert needed <= room_for(needed, 10**6) <= needed + max(511, needed // 8)
    assert len({room_for(needed, 10**6) for needed in range(1, 10**6, 99)}) < 100


def test_packed_rows_have_as_many_strings_each() -> None:
    got = StringArray(written(["a", "b", "ü", ""]), (2, -1))
    assert got.tolist() == [["a", "b"], ["ü", ""]]
    assert "ü" in got
    assert "c" not in got
    assert (len(got), got.shape, list(got[1]), got[0, 1]) == (2, (2, 2), ["ü", ""], "b")
    assert got.as_bytes().tolist() == [[b"a", b"b"], ["ü".encode(), b""]]


def test_strings_are_a_sequence_and_an_array() -> None:
    got = StringArray(written(["a", "bc", ""]), (3,))
    assert list(got) == ["a", "bc", ""]
    assert (got == ["a", "x", ""]).tolist() == [True, False, True]
    assert (got != ["a", "x", ""]).tolist() == [False, True, False]
    assert got[np.array([True, False, True])].tolist() == ["a", ""]
    assert np.asarray(got).dtype == object
    assert np.asarray(got, np.str_).tolist() == got.tolist()
    assert repr(got) == "array(['a', 'bc', ''], dtype=object)"
    assert "bc" in got


@pytest.mark.parametrize("float32", ["float32", "bfloat16", "float16"])
def test_strings_cross_the_network_whole(float32: str) -> None:
    fields = (Field(key="x", dtype="float32", shape=(None,)),)
    layout = layout_of(
        (*fields_of_batch(fields), Field(key="text", dtype="string", shape=())),
        BucketShape(rows=3, lengths={"x": 5, "text": 999}),
    )
    assert [tensor.nbytes for tensor in layout.strings] == [999]
    payload = np.zeros(layout.nbytes, np.uint8)
    write([b"one", b"", "zwölf".encode()], layout.arrays(payload)["text"])
    encoding = PayloadEncoding(float32=float32, compression="none")
    got = np.full(layout.nbytes, 0xA5, np.uint8)
    decode_payload(bytes(encode_payload(payload, layout, encoding)), layout, encoding, got)
    assert got.tobytes() == payload.tobytes()
    assert arrays_of(layout, got)["text"].tolist() == ["one", "", "zwölf"]
