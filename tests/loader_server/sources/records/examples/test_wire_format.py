"""Examples are taken apart as protobuf takes them apart, however they are written."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.records.examples.wire_format import (
    BYTES,
    FLOAT,
    INT64,
    MalformedExample,
    count_int64,
    features_of,
    int64_at,
    int64_of,
)
from tests.support.example_protos import Example, SequenceExample, example

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {"bytes_list": BYTES, "float_list": FLOAT, "int64_list": INT64}


def ours(raw: bytes) -> dict[str, object]:
    return {
        key: [values(raw, *one) for one in found] if isinstance(found, list) else values(raw, *found)
        for key, found in features_of(raw).items()
    }


def values(raw: bytes, kind: int, runs: list[tuple[int, int]]) -> tuple[int, list[object]]:
    if kind == BYTES:
        return kind, [raw[start:stop] for start, stop in runs]
    if kind == FLOAT:
        return kind, [known(value) for start, stop in runs for value in np.frombuffer(raw[start:stop], "<f4")]
    numbers = [value for start, stop in runs if stop > start for value in int64_of(raw, start, stop).tolist()]
    assert count_int64(raw, runs) == len(numbers)
    return kind, numbers


def theirs(raw: bytes) -> dict[str, object]:
    parsed = SequenceExample.FromString(raw)
    found: dict[str, object] = {key: plain(one) for key, one in parsed.context.feature.items()}
    lists = {key: [plain(one) for one in steps.feature] for key, steps in parsed.feature_lists.feature_list.items()}
    if found.keys() & lists.keys():
        raise DecodeError("a key twice")
    return found | lists


def plain(feature: object) -> tuple[int, list[object]]:
    name = feature.WhichOneof("kind")  # type: ignore[attr-defined]
    if name is None:
        return 0, []
    kind, found = KINDS[name], list(getattr(feature, name).value)
    return kind, [known(value) for value in found] if kind == FLOAT else found


def known(value: float) -> bytes:
    """The bits, but for those of a NaN, of which Python keeps some only."""
    return b"NaN" if value != value else struct.pack("<f", value)  # noqa: PLR0124


# --- however they are written ---

LISTS = st.one_of(
    st.tuples(st.just("bytes_list"), st.lists(st.binary(max_size=5), max_size=4)),
    st.tuples(st.just("float_list"), st.lists(st.floats(width=32), max_size=200)),
    st.tuples(st.just("int64_list"), st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300), max_size=30)),
)
FEATURES = st.dictionaries(st.text("abä", max_size=2), LISTS, max_size=4)


def varint(value: int) -> bytes:
    value %= 2**64
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def sized(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


class OddWriter:
    """Writes messages in odd ways: lists in pieces, packed and not, keys twice, values in pieces, unknown fields."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self) -> bytes:
        return self.several(3, self.random.choice((self.context, self.context, self.lists)))

    def several(self, most: int, write: Callable[[], bytes]) -> bytes:
        return b"".join(write() + self.unknown() for _ in range(self.random.randint(0, most)))

    def unknown(self) -> bytes:
        """A field that no message here has, in any form, or none."""
        tag = self.random.randint(15, 3000) << 3
        forms = [
            varint(tag) + varint(self.number()),
            varint(tag | 1) + b"12345678",
            varint(tag | 2) + varint(3) + b"\x0a\x01x",
            varint(tag | 3) + varint(9 << 3 | 5) + b"abcd" + varint(67) + varint(68) + varint(tag | 4),
            varint(tag | 5) + b"1234",
        ]
        return self.random.choice([b"", b"", *forms])

    def number(self) -> int:
        return self.random.choice((self.random.randint(-3, 300), self.random.randint(-(2**63), 2**63 - 1)))

    def context(self) -> bytes:
        return sized(1, self.several(2, lambda: self.entry(self.pieces())))

    def pieces(self) -> bytes:
        return b"".join(sized(2, self.feature()) for _ in range(self.random.randint(0, 2)))

    def lists(self) -> bytes:
        return sized(2, self.entry(sized(2, self.several(3, lambda: sized(1, self.feature())))))

    def entry(self, value: bytes) -> bytes:
        parts = [sized(1, self.random.choice("abä").encode()), value]  # Python's protobuf drops one with more fields
        self.random.shuffle(parts)
        return sized(1, b"".join(parts))

    def feature(self) -> bytes:
        return self.several(2, lambda: self.a_list(self.random.choice((BYTES, FLOAT, INT64))))

    def a_list(self, kind: int) -> bytes:
        return sized(kind, self.several(3, lambda: self.values(kind)))

    def values(self, kind: int) -> bytes:
        count = self.random.randint(0, 40)
        if kind == BYTES:
            return sized(1, self.random.randbytes(count))
        if kind == FLOAT:
            parts, form = [self.random.randbytes(4) for _ in range(count)], 5
        else:
            parts, form = [varint(self.number()) for _ in range(count)], 0
        packed = self.random.random() < 0.5
        return sized(1, b"".join(parts)) if packed else b"".join(varint(1 << 3 | form) + part for part in parts)


@given(FEATURES)
def test_what_protobuf_wrote_is_read_as_protobuf_reads_it(features: dict[str, tuple[str, list[object]]]) -> None:
    made = Example()
    for key, (name, content) in features.items():
        getattr(made.features.feature[key], name).value.extend(content)
    raw = made.SerializeToString()
    assert ours(raw) == theirs(raw)


def test_it_does_not_matter_in_which_way_a_message_is_written() -> None:
    for seed in range(300):
        raw = OddWriter(seed).message()
        try:
            expected = theirs(raw)
        except DecodeError:
            with pytest.raises(MalformedExample):
                ours(raw)
        else:
            assert ours(raw) == expected


@given(st.integers(0, 300), st.integers(0, 10_000), st.integers(0, 255))
def test_bytes_that_are_no_message_are_refused_in_words_or_read_as_one(seed: int, place: int, byte: int) -> None:
    raw = OddWriter(seed).message()
    changed = bytearray(raw or b"\x0a")
    changed[place % len(changed)] = byte
    for one in (bytes(changed), raw[: place % (len(raw) + 1)]):
        with contextlib.suppress(MalformedExample):
            ours(one)


# --- single rules ---


def plain_example(kind: int, content: bytes) -> bytes:
    """As writers write one of a single feature."""
    return sized(1, sized(1, sized(1, b"x") + sized(2, sized(kind, sized(1, content)))))


def test_a_list_that_is_packed_lies_in_one_run() -> None:
    raw = example(a=[1.0, 2.0], b=[7, -1], c="hi")
    found = features_of(raw)
    assert {key: (feature[0], len(feature[1])) for key, feature in found.items()} == {  # type: ignore[index]
        "a": (FLOAT, 1),
        "b": (INT64, 1),
        "c": (BYTES, 1),
    }


def test_of_a_key_that_is_given_twice_the_last_counts() -> None:
    assert ours(example(a=1) + example(a=2.0)) == {"a": (FLOAT, [struct.pack("<f", 2)])}


def test_a_key_of_the_context_and_of_a_list_is_refused_by_name() -> None:
    made = SequenceExample()
    made.context.feature["x"].int64_list.value.append(1)
    made.feature_lists.feature_list["x"].feature.add().int64_list.value.append(2)
    with pytest.raises(MalformedExample, match='"x" is a feature of the context and a feature list'):
        features_of(made.SerializeToString())


def test_integers_of_all_sizes() -> None:
    numbers = [0, 1, 127, 128, 300, -1, 2**62, -(2**63), 2**63 - 1]
    for several in ([], *([number] for number in numbers), numbers, numbers * 3):
        raw = b"".join(map(varint, several))
        assert int64_of(b"xx" + raw, 2, 2 + len(raw)).tolist() == several
    assert [int64_at(b"x" + varint(number), 1) for number in numbers] == numbers


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x0a", "it ends in the middle of a field"),
        (b"\x0a\x05ab", "a field is longer than its message"),
        (b"\x02\x00", "a field has the number 0"),
        (b"\x0e", "a field is written in form 6"),
        (b"\x80" * 12, "a number has more than 10 bytes"),
        (sized(1, sized(1, sized(1, b"\xff"))), "a key is not UTF-8"),
        (sized(1, sized(1, sized(2, sized(FLOAT, sized(1, b"abc"))))), "a list of floats has 3 bytes"),
        (plain_example(FLOAT, b"abc"), "a list of floats has 3 bytes"),
        (plain_example(INT64, b"\x80"), "a list of integers ends in the middle of one"),
        (sized(1, sized(1, sized(2, sized(INT64, sized(1, b"\x80"))))), "a list of integers ends in the middle of one"),
        (b"\x7b\x08\x01", "a group does not end"),
        (b"\x53\x5b\x54\x5c", "a field is written in form 4"),
        (b"\x53" * 101 + b"\x54" * 101, "groups nested more than 100 deep"),
        (b"\x53" * 50_000, "groups nested more than 100 deep"),
    ],
)
def test_what_is_wrong_is_said(raw: bytes, said: str) -> None:
    with pytest.raises(MalformedExample, match=said):
        features_of(raw)


def test_groups_in_groups_are_skipped_as_deep_as_protobuf_goes() -> None:
    assert features_of(b"\x53" * 100 + b"\x08\x01" + b"\x54" * 100 + plain_example(FLOAT, bytes(4))).keys() == {"x"}
