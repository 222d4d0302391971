"""Examples are taken apart as protobuf takes them apart, however they are written."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from loader_server.sources.records.example_wire import (
    BYTES,
    FLOAT,
    INT64,
    MalformedExample,
    count_int64,
    features_of,
    int64_of,
)
from tests.support.example_protos import Example, SequenceExample, example

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
        return kind, [value.tobytes() for start, stop in runs for value in np.frombuffer(raw[start:stop], "<f4")]
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
    return kind, [struct.pack("<f", value) for value in found] if kind == FLOAT else found


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


def unknown(draw: st.DrawFn) -> bytes:
    """A field that no message here has, in any form."""
    number = draw(st.integers(15, 3000)) << 3
    forms = [
        varint(number) + varint(draw(st.integers(0, 2**64 - 1))),
        varint(number | 1) + b"12345678",
        varint(number | 2) + varint(3) + b"\x0a\x01x",
        varint(number | 3)
        + varint(9 << 3 | 5)
        + b"abcd"
        + varint(8 << 3 | 3)
        + varint(8 << 3 | 4)
        + varint(number | 4),
        varint(number | 5) + b"1234",
    ]
    return draw(st.sampled_from([b"", b"", *forms]))


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A message in odd ways: lists in pieces, packed and not, keys twice, values in pieces, other fields between."""

    def a_list(name: str, content: list[object]) -> bytes:
        cut = draw(st.integers(0, len(content)))
        return b"".join(unknown(draw) + a_run(name, part) for part in (content[:cut], content[cut:]))

    def a_run(name: str, part: list[object]) -> bytes:
        if name == "bytes_list":
            return b"".join(sized(1, one) for one in part)  # type: ignore[arg-type]
        small = struct.Struct("<f").pack if name == "float_list" else varint
        tag = varint(1 << 3 | (5 if name == "float_list" else 0))
        packed = draw(st.booleans())
        return sized(1, b"".join(map(small, part))) if packed else b"".join(tag + small(one) for one in part)  # type: ignore[arg-type]

    def a_feature() -> bytes:
        pieces = draw(st.lists(LISTS, max_size=2))
        return b"".join(unknown(draw) + sized(KINDS[name], a_list(name, content)) for name, content in pieces)

    def an_entry(value: bytes) -> bytes:
        key = sized(1, draw(st.text("abä", max_size=1)).encode())
        return sized(1, b"".join(draw(st.permutations([key, value]))))  # Python's protobuf drops those with more fields

    def context() -> bytes:
        entries = [an_entry(b"".join(sized(2, a_feature()) for _ in range(draw(st.integers(0, 2))))) for _ in range(2)]
        return sized(1, unknown(draw) + b"".join(entries))

    def lists() -> bytes:
        steps = b"".join(sized(1, a_feature()) for _ in range(draw(st.integers(0, 3))))
        return sized(2, an_entry(sized(2, steps)))

    parts = [draw(st.sampled_from([context, context, lists]))() + unknown(draw) for _ in range(draw(st.integers(0, 3)))]
    return b"".join(parts)


@given(FEATURES)
def test_what_protobuf_wrote_is_read_as_protobuf_reads_it(features: dict[str, tuple[str, list[object]]]) -> None:
    made = Example()
    for key, (name, content) in features.items():
        getattr(made.features.feature[key], name).value.extend(content)
    raw = made.SerializeToString()
    assert ours(raw) == theirs(raw)


def same_verdict(raw: bytes) -> None:
    try:
        expected = theirs(raw)
    except DecodeError:
        with pytest.raises(MalformedExample):
            ours(raw)
    else:
        assert ours(raw) == expected


@given(written())
def test_it_does_not_matter_in_which_way_a_message_is_written(raw: bytes) -> None:
    same_verdict(raw)


@given(written(), st.integers(0, 10_000), st.integers(0, 255))
def test_bytes_that_are_no_message_are_refused_if_protobuf_refuses_them(raw: bytes, place: int, byte: int) -> None:
    changed = bytearray(raw or b"\x0a")
    changed[place % len(changed)] = byte
    same_verdict(bytes(changed))
    same_verdict(raw[: place % (len(raw) + 1)])


# --- single rules ---


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
    numbers = [0, 1, 127, 128, 300, -1, 2**62, -(2**63), 2**63 - 1] * 3
    raw = b"".join(map(varint, numbers))
    assert int64_of(b"xx" + raw, 2, 2 + len(raw)).tolist() == numbers


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
        (sized(1, sized(1, sized(2, sized(INT64, sized(1, b"\x80"))))), "a list of integers ends in the middle of one"),
        (b"\x7b\x08\x01", "a group does not end"),
    ],
)
def test_what_is_wrong_is_said(raw: bytes, said: str) -> None:
    with pytest.raises(MalformedExample, match=said):
        features_of(raw)
