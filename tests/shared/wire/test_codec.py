"""Any message comes back as it was; any bytes at all are refused as what they are, cheaply."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.wire import bounds, codec
from shared.wire import messages as m
from shared.wire.codec import MAX_FRAME, VERSION, VersionError, decode, encode, encode_refusal
from shared.wire.message_parts import WorkerAddress
from tests.shared.wire.examples import EXAMPLES, PARTS, TICKET, instance, plain
from tests.support import draws

GOLDEN = Path(__file__).parents[2] / "support" / "golden" / f"messages-v{VERSION}.txt"
EVERY = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)


def survives(frame):
    try:
        return decode(frame)
    except ProtocolError as error:
        assert len(str(error)) < 1000  # noqa: PT017 - on the way to the verdict
        return None


def frame_of(kind, fields, version=VERSION):
    return msgpack.packb([version, kind, fields])


# --- round trips and golden bytes ---


def test_every_class_has_an_example():
    assert sorted(type(example).kind for example in EXAMPLES) == sorted(m.KINDS)


@pytest.mark.parametrize("kind", m.KINDS.values(), ids=m.KINDS)
def test_any_message_comes_back_as_it_was(kind):
    @settings(max_examples=25, deadline=None)
    @given(draws.RANDOMS)
    def check(random):
        message = instance(kind, random)
        back = decode(encode(message))
        assert back == message
        assert type(back) is kind
        assert hash(back) == hash(message)

    check()


@EVERY
def test_the_bytes_are_those_of_this_version(example):
    lines = dict(line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#"))
    remedy = f"the bytes of {example.kind} changed: raise codec.VERSION, and pin the new ones in a new file"
    assert encode(example).hex() == lines.get(example.kind), remedy
    assert decode(bytes.fromhex(lines[example.kind])) == example
    assert len(lines) == len(EXAMPLES)


def test_decodes_a_view_of_a_frame():
    assert decode(memoryview(encode(m.Ping(number=3)))) == m.Ping(number=3)


def test_text_that_is_no_utf8_still_reaches_the_reader():
    where = b"corpus/\xe9.wav".decode("utf-8", "surrogateescape")
    message = m.Unbuilt(ticket=TICKET, code="failed", expected="", got="", where=where, remedy="")
    assert decode(encode(message)).where == "corpus/\\udce9.wav"


def test_a_message_that_nobody_would_read_is_not_sent():
    many = tuple(WorkerAddress("a" * 200, number, "b" * 200, "", 0) for number in range(4096))
    with pytest.raises(ValueError, match=r"a Members of \d+ bytes would be dropped"):
        encode(m.Members(version=1, workers=many))


# --- garbage ---


@pytest.mark.fault(25)
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64))
def test_random_bytes(frame):
    assert survives(frame) is None


@pytest.mark.fault(25)
@settings(max_examples=200, deadline=None)
@given(draws.RANDOMS)
def test_random_msgpack(random):
    anything, kind = draws.anything(random), random.choice([*m.KINDS, "", "Nothing"])
    survives(msgpack.packb(anything))
    survives(frame_of(kind, anything))
    survives(frame_of(anything, {}))
    survives(frame_of(kind, {}, version=anything))
    survives(msgpack.packb([anything, anything, anything]))


@pytest.mark.fault(25)
@EVERY
def test_mutated_frames(example):
    @settings(max_examples=25, deadline=None)
    @given(draws.RANDOMS)
    def check(random):
        survives(draws.mutated(random, encode(example)))

    check()


@EVERY
def test_truncated_frames(example):
    frame = encode(example)
    for end in range(len(frame)):
        assert survives(frame[:end]) is None
    assert survives(frame + b"\x00") is None


@pytest.mark.fault(25)
@EVERY
def test_any_value_in_any_field(example):
    @settings(max_examples=40, deadline=None)
    @given(draws.RANDOMS)
    def check(random):
        fields = plain(example)
        name = random.choice(sorted(fields) or ["none"])
        survives(frame_of(example.kind, {**fields, name: draws.anything(random)}))

    check()


def problem(check):  # noqa: C901, PLR0911 - one case a kind of check
    """Values just outside a check's bounds, and of types that are nearly right."""
    match check:
        case bounds.Integer(low, high):
            return [value for value in (low - 1, high + 1) if -(2**63) <= value < 2**64] + [True, 1.0, "1", None, [1]]
        case bounds.Text(longest):
            return ["a" * (longest + 1), b"a", 1, None, ["a"]]
        case bounds.Blob(longest):
            return [bytes(longest + 1), "a", None]
        case bounds.Boolean():
            return [0, 1, None, "true"]
        case bounds.Rate():
            return [0.0, -1.0, 1e9, float("nan"), float("inf"), True, "1"]
        case bounds.Number():
            return [1, True, "1", float("nan"), float("inf"), None]
        case bounds.Share():
            return [-0.01, 1.01, float("nan"), True, "1", None]
        case bounds.Choice():
            return ["", "other", b"none", [], {}, None, 1]
        case bounds.Dtype():
            return ["object", "str", "<f4", b"int8", [], {}, None]
        case bounds.Maybe(inner):
            return [value for value in problem(inner) if value is not None]
        case bounds.Many(inner, most):
            return [None, {}, "abc", 3, *([value] for value in problem(inner)), [None] * (most + 1)]
        case bounds.FixedList(checks) | bounds.Record(_, bounds.FixedList(checks)):
            return [None, [], {}, "ab", [None] * (len(checks) + 1)]
    raise AssertionError(check)


@pytest.mark.fault(25)
@EVERY
def test_every_bound_of_every_field(example):
    fields = plain(example)
    for name, check in example.checks.items():
        for value in problem(check):
            frame = frame_of(example.kind, {**fields, name: value})
            assert survives(frame) is None, (name, str(value)[:60])


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_bound_of_every_record(part):
    record = bounds.record(part)
    good = {
        "Cursor": [0, 0, 1, ""],
        "Ticket": [0, 0],
        "WireField": ["", "int8", [], None],
        "WireShape": [1, []],
        "WorkerAddress": ["", 0, "", "", 0],
        "SharedSlots": ["", 0, 1, 0, b"", 0, 0, 0],
        "CulpritSample": ["", 0],
        "Seal": [b"", b""],
        "BookMark": [0, 0],
        "Failure": [[0, 0, 0], ""],
        "Lease": [0, 0, 0],
        "EpochDone": [0, 0, []],
        "DoneSet": [[]],
    }[part.__name__]
    assert isinstance(record(good), part)
    for place, check in enumerate(record.fields.checks):
        for value in problem(check):
            with pytest.raises(bounds.OutOfBounds):
                record([*good[:place], value, *good[place + 1 :]])


@EVERY
def test_missing_and_unknown_fields(example):
    fields = plain(example)
    assert survives(frame_of(example.kind, {**fields, "more": 1})) is None
    assert survives(frame_of(example.kind, {**fields, "x" * 100_000: 1})) is None
    for name in fields:
        assert survives(frame_of(example.kind, {key: value for key, value in fields.items() if key != name})) is None


@pytest.mark.parametrize(
    "head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"], ids=["list", "map", "str", "bin", "ext"]
)
@pytest.mark.parametrize("before", [b"", b"\x93", b"\x93\x01", b"\x93\x01\xa4Ping", b"\x93\x01\xa4Ping\x81\xa6number"])
def test_lengths_that_are_claimed_cost_nothing(head, before):
    tracemalloc.start()
    for claimed in (2**32 - 1, 2**31, 2**20):
        assert survives(before + head + claimed.to_bytes(4, "big") + bytes(100)) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_deep_nesting():
    for depth in (10, 200, 511, 900, 990, 1000, 1010, 1020, 1023, 1024, 5000, 100_000):
        for opening, closing in ((b"\x91", b"\x90"), (b"\x81\xa1a", b"\x80")):
            nested = opening * depth + closing
            for frame in (nested, b"\x93\x01" + nested + b"\x80", b"\x93\x01\xa4Ping\x81\xa6number" + nested):
                assert survives(frame) is None


def test_a_frame_has_a_longest_length():
    assert survives(bytes(MAX_FRAME + 1)) is None
    many = [[number, 1] for number in range(2**16)]
    assert len(decode(frame_of("Pong", {"number": 1, "tickets": many, "sealed": 0, "waiting": 0})).tickets) == 2**16


@pytest.mark.slow
@pytest.mark.parametrize("filler", [b"\x90", b"\x80", b"\xc0"], ids=["empty lists", "empty maps", "nulls"])
def test_the_worst_frame_costs_less_than_100_mb(filler):
    count = MAX_FRAME - 8
    frame = b"\x93\x01\xdd" + count.to_bytes(4, "big") + filler * count + b"\x80"
    tracemalloc.start()
    assert survives(frame) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_the_error_says_what_was_expected_and_that_it_was_dropped():
    with pytest.raises(
        ProtocolError, match=r"frame from the other side: expected integer 0 … 2\^48 in Ping, got .*dropped"
    ):
        decode(frame_of("Ping", {"number": -1}))
    with pytest.raises(ProtocolError, match=r"expected a known kind of message and its fields, got kind 'Pang'"):
        decode(frame_of("Pang", {}))
    with pytest.raises(ProtocolError, match=r"expected the fields of Ping, got other fields \['more'\]"):
        decode(frame_of("Ping", {"number": 1, "more": 2}))


# --- versions ---


@pytest.mark.fault(28)
@EVERY
def test_another_version_is_refused_and_named(example):
    if example.kind == "Refused":
        return
    for theirs in (VERSION + 1, VERSION - 1, 2**64 - 1, -1):
        with pytest.raises(VersionError) as caught:
            decode(frame_of(example.kind, plain(example), version=theirs))
        assert caught.value.theirs == theirs
        assert f"expected protocol version {VERSION}, got version {theirs}" in str(caught.value)
        assert "Install the same release" in str(caught.value)


@pytest.mark.fault(28)
def test_both_sides_of_a_refusal_read_it(monkeypatch):
    ask = encode(m.Ping(number=1))
    monkeypatch.setattr(codec, "VERSION", VERSION + 1)
    with pytest.raises(VersionError) as caught:
        decode(ask)
    refusal = encode_refusal(caught.value)
    assert msgpack.unpackb(refusal)[0] == VERSION + 1
    monkeypatch.undo()
    told = decode(refusal)
    assert told.code == "version"
    assert str(VERSION + 1) in told.expected
    assert str(VERSION) in told.got
    monkeypatch.setattr(codec, "VERSION", VERSION + 1)
    assert decode(encode_refusal(VersionError(VERSION))).code == "version"


def test_a_version_error_can_be_copied():
    error = VersionError(9)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (twin.theirs, str(twin)) == (9, str(error))
