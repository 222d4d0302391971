"""What the 16-bit forms keep, what crosses encoded comes back bit for bit, and what no payload is refused cheaply."""

from __future__ import annotations

import sys
import tracemalloc

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolError, SettingsError
from shared.wire.batch_layout import BucketShape, Field, fields_of_batch, layout_of
from shared.wire.payload import (
    COMPRESSIONS,
    FLOAT32_FORMS,
    PayloadEncoding,
    decode_payload,
    encode_payload,
    require_library,
    round_in_place,
)
from tests.support import draws

ENCODINGS = [PayloadEncoding(float32=form, compression=name) for form in FLOAT32_FORMS for name in COMPRESSIONS]
EVERY = pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda p: f"{p.float32}-{p.compression}")
NARROW = pytest.mark.parametrize("form", [form for form in FLOAT32_FORMS if form != "float32"])
COMPRESSED = pytest.mark.parametrize("encoding", [p for p in ENCODINGS if p.compression != "none"], ids=str)

NAN, INF = float("nan"), float("inf")
NAN_BITS = 0x7FC00000


DTYPES = ("bool", "int32", "uint8", "float16", "float32", "float64")


def any_layout(random):
    """One to six fields of any dtype, with values of up to two dimensions."""
    keys = {"".join(random.choices("abcdefgh", k=random.randint(1, 4))) for _ in range(random.randint(1, 6))}
    in_some_order = random.sample(sorted(keys), len(keys))
    fields = [Field(key=key, dtype=random.choice(DTYPES), shape=any_shape(random)) for key in in_some_order]
    lengths = {field.key: draws.integer(random, 0, 40) for field in fields}
    return layout_of(fields_of_batch(fields), BucketShape(rows=draws.integer(random, 1, 9), lengths=lengths))


def any_shape(random):
    return random.choice(((), (None,), (random.randint(0, 5),), (None, random.randint(1, 5))))


def payload_for(layout, seed=0):
    """Any bits at all in the tensors, nothing in the gaps."""
    payload = np.zeros(layout.nbytes, np.uint8)
    random = np.random.default_rng(seed)
    for tensor in layout.tensors:
        tensor.lies_in(payload)[...] = random.integers(0, 2 if tensor.dtype == "bool" else 256, tensor.nbytes)
    return payload


def layout_for(count, dtype="float32"):
    return layout_of((Field(key="x", dtype=dtype, shape=()),), BucketShape(rows=count, lengths={}))


def rounded(values, form):
    """The bits of the float32 `values` after rounding."""
    values = np.asarray(values, np.float32)
    layout = layout_for(values.size)
    payload = np.zeros(layout.nbytes, np.uint8)
    layout.arrays(payload)["x"][...] = values
    round_in_place(payload, layout, form)
    assert not payload[values.nbytes :].any()
    return layout.arrays(payload)["x"].view(np.uint32)


def decoded(data, layout, encoding):
    """The payload that came out, written to a place that had other bytes, with nothing written beside it."""
    around = np.full(layout.nbytes + 128, 0xA5, np.uint8)
    try:
        decode_payload(data, layout, encoding, around[64:-64])
    finally:
        assert (around[:64] == 0xA5).all()
        assert (around[-64:] == 0xA5).all()
    return around[64:-64]


def survives(data, layout, encoding):
    try:
        return decoded(data, layout, encoding)
    except ProtocolError as error:
        assert len(str(error)) < 1000  # noqa: PT017 - on the way to the verdict
        return None


LAYOUT = layout_of(
    fields_of_batch((Field(key="audio", dtype="float32", shape=(None, 8)), Field(key="ok", dtype="bool", shape=()))),
    BucketShape(rows=5, lengths={"audio": 7}),
)


# --- rounding ---


def test_bfloat16_takes_the_nearest_and_the_even_one_between_two():
    upper = np.arange(2**16, dtype=np.uint32) << 16
    finite = upper[(upper & 0x7F800000) != 0x7F800000]
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        even = finite & 0x10000
        up = lower > 0x8000 or ((lower == 0x8000) & (even > 0))
        expected = finite + np.where(up, 0x10000, 0).astype(np.uint32)
        assert (rounded((finite | lower).view(np.float32), "bfloat16") == expected).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 + 2**-11, 1.0),
        (1 + 3 * 2**-11, 1 + 2**-9),
        (-(1 + 2**-11 + 2**-20), -(1 + 2**-10)),
        (65504.0, 65504.0),
        (65519.996, 65504.0),
        (65520.0, INF),
        (-3e38, -INF),
        (2.0**-24, 2.0**-24),
        (2.0**-25, 0.0),
        (1.5 * 2**-24, 2.0**-23),
        (-1e-40, -0.0),
        (INF, INF),
        (-INF, -INF),
        (-0.0, -0.0),
    ],
)
def test_float16_takes_the_nearest_that_it_has(value, expected):
    assert rounded([value], "float16") == np.array([expected], np.float32).view(np.uint32)


@pytest.mark.parametrize(
    ("value", "expected"), [(INF, INF), (-INF, -INF), (-0.0, -0.0), (3.4e38, INF), (1e-45, 0.0), (65520.0, 65536.0)]
)
def test_bfloat16_has_the_range_of_float32(value, expected):
    assert rounded([value], "bfloat16") == np.array([expected], np.float32).view(np.uint32)


@NARROW
def test_every_nan_becomes_the_one_nan(form):
    bits = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC01234, 0xFFFFFFFF], np.uint32)
    assert (rounded(bits.view(np.float32), form) == NAN_BITS).all()


@NARROW
def test_a_user_who_made_numpy_strict_is_not_hit(form):
    bits = np.random.default_rng(4).integers(0, 2**32, 2**12, dtype=np.uint32)
    with np.errstate(all="raise"):
        strict = rounded(bits.view(np.float32), form)
    assert (strict == rounded(bits.view(np.float32), form)).all()


@NARROW
def test_rounding_twice_is_rounding_once_in_pieces_of_any_length(form):
    values = np.random.default_rng(3).normal(size=2**16 + 5).astype(np.float32) * 100
    once = rounded(values, form)
    assert (rounded(once.view(np.float32), form) == once).all()
    assert (rounded(values[-9:], form) == once[-9:]).all()
    assert (once.view(np.float32) != values).any()
    assert np.allclose(once.view(np.float32), values, rtol=2**-8, atol=0)


@pytest.mark.parametrize("form", FLOAT32_FORMS)
@settings(max_examples=40, deadline=None)
@given(random=draws.RANDOMS)
def test_rounding_touches_nothing_but_float32(form, random):
    layout = any_layout(random)
    before = payload_for(layout)
    after = before.copy()
    round_in_place(after, layout, form)
    for tensor in layout.tensors:
        if tensor.dtype != "float32":
            assert (tensor.lies_in(after) == tensor.lies_in(before)).all()
        tensor.lies_in(after)[...] = 0
    assert not after.any()


def test_nothing_is_rounded_for_float32():
    payload = payload_for(LAYOUT)
    before = payload.tobytes()
    round_in_place(payload, LAYOUT, "float32")
    assert payload.tobytes() == before


# --- round trips ---


@EVERY
@settings(max_examples=40, deadline=None)
@given(random=draws.RANDOMS)
def test_what_was_rounded_comes_back_bit_for_bit(encoding, random):
    layout = any_layout(random)
    payload = payload_for(layout, random.getrandbits(32))
    round_in_place(payload, layout, encoding.float32)
    before = payload.tobytes()
    data = encode_payload(payload, layout, encoding)
    assert bytes(encode_payload(payload, layout, encoding)) == bytes(data)
    assert payload.tobytes() == before
    assert decoded(data, layout, encoding).tobytes() == before


@EVERY
@pytest.mark.parametrize("count", [2**16 - 1, 2**16 + 1])
def test_long_tensors_come_back(encoding, count):
    layout = layout_for(count)
    payload = payload_for(layout, seed=count)
    round_in_place(payload, layout, encoding.float32)
    assert (decoded(bytes(encode_payload(payload, layout, encoding)), layout, encoding) == payload).all()


@EVERY
def test_special_floats_come_back(encoding):
    values = np.array([NAN, INF, -INF, -0.0, 1e-45, -1e-40, 6e-8, 65504, 65520, 3.4e38, -3.4e38, 1 / 3], np.float32)
    layout = layout_for(values.size)
    payload = np.zeros(layout.nbytes, np.uint8)
    layout.arrays(payload)["x"][...] = values
    round_in_place(payload, layout, encoding.float32)
    back = decoded(encode_payload(payload, layout, encoding), layout, encoding)
    assert (back == payload).all()
    assert np.isnan(layout.arrays(back)["x"][0])


@EVERY
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_batch_without_bytes_comes_back(encoding, dtype):
    layout = layout_of((Field(key="x", dtype=dtype, shape=(0,)),), BucketShape(rows=2, lengths={}))
    assert decoded(encode_payload(np.zeros(0, np.uint8), layout, encoding), layout, encoding).size == 0


@NARROW
def test_sixteen_bits_take_half_the_room(form):
    layout = layout_for(2**12)
    payload = payload_for(layout)
    round_in_place(payload, layout, form)
    assert len(encode_payload(payload, layout, PayloadEncoding(float32=form))) == layout.nbytes // 2


@COMPRESSED
def test_compression_makes_zeros_small(encoding):
    layout = layout_for(2**12)
    assert len(encode_payload(np.zeros(layout.nbytes, np.uint8), layout, encoding)) < 100


def test_a_plain_packing_sends_the_payload_itself():
    payload = payload_for(LAYOUT)
    assert np.shares_memory(np.frombuffer(encode_payload(payload, LAYOUT, PayloadEncoding()), np.uint8), payload)


def test_only_one_packing_is_plain():
    assert [p for p in ENCODINGS if p.plain] == [PayloadEncoding()]


# --- golden bytes ---

GOLDEN_LAYOUT = layout_of(
    (Field(key="x", dtype="float32", shape=(2,)), Field(key="n", dtype="int32", shape=())),
    BucketShape(rows=2, lengths={}),
)


@pytest.mark.parametrize(
    ("form", "items"),
    [
        ("float32", "0000803f 000020c0 000040c0 0000803e"),
        ("bfloat16", "803f 20c0 40c0 803e"),
        ("float16", "003c 00c1 00c2 0034"),
    ],
)
def test_the_bytes_are_those_of_the_protocol(form, items):
    payload = np.zeros(GOLDEN_LAYOUT.nbytes, np.uint8)
    arrays = GOLDEN_LAYOUT.arrays(payload)
    arrays["x"][...] = [[1, -2.5], [-3, 0.25]]
    arrays["n"][...] = [7, -1]
    expected = bytes.fromhex(items).ljust(64, b"\0") + bytes.fromhex("07000000 ffffffff").ljust(64, b"\0")
    plain = encode_payload(payload, GOLDEN_LAYOUT, PayloadEncoding(float32=form))
    assert bytes(plain) == expected

    block = encode_payload(payload, GOLDEN_LAYOUT, PayloadEncoding(float32=form, compression="lz4"))
    assert lz4.block.decompress(bytes(block), uncompressed_size=128) == expected
    frame = bytes(encode_payload(payload, GOLDEN_LAYOUT, PayloadEncoding(float32=form, compression="zstd")))
    assert zstandard.get_frame_parameters(frame).content_size == 128
    assert zstandard.decompress(frame) == expected


# --- garbage ---


@pytest.mark.fault(25)
@EVERY
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=64))
def test_random_bytes_are_refused(encoding, data):
    assert survives(data, LAYOUT, encoding) is None


@pytest.mark.fault(25)
@EVERY
@settings(max_examples=60, deadline=None)
@given(random=draws.RANDOMS)
def test_mutated_payloads(encoding, random):
    payload = payload_for(LAYOUT)
    round_in_place(payload, LAYOUT, encoding.float32)
    back = survives(draws.mutated(random, bytes(encode_payload(payload, LAYOUT, encoding))), LAYOUT, encoding)
    if back is not None:
        for tensor in LAYOUT.tensors:
            tensor.lies_in(back)[...] = 0
        assert not back.any(), "the gaps hold nothing"


@pytest.mark.fault(25)
@EVERY
def test_truncated_and_longer_payloads_are_refused(encoding):
    payload = payload_for(LAYOUT)
    round_in_place(payload, LAYOUT, encoding.float32)
    data = bytes(encode_payload(payload, LAYOUT, encoding))
    for end in range(len(data)):
        assert survives(data[:end], LAYOUT, encoding) is None
    assert survives(data + b"\x00", LAYOUT, encoding) is None
    assert survives(data + data, LAYOUT, encoding) is None


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_any_sixteen_bits_are_a_float(compression):
    layout = layout_for(2**16)
    every = np.arange(2**16, dtype=np.uint16)
    data = encode_payload(every.view(np.uint8), layout_for(2**16, "uint16"), PayloadEncoding(compression=compression))
    for form, fraction_bits in (("bfloat16", 7), ("float16", 10)):
        back = layout.arrays(decoded(data, layout, PayloadEncoding(float32=form, compression=compression)))["x"]
        assert (~np.isfinite(back)).sum() == 2 * 2**fraction_bits


@pytest.mark.fault(25)
@COMPRESSED
@pytest.mark.parametrize("nbytes", [0, 1, 2**26])
def test_another_size_than_the_layouts_is_refused_without_making_room_for_it(encoding, nbytes):
    zeros = bytes(nbytes)
    bomb = lz4.block.compress(zeros, store_size=False) if encoding.compression == "lz4" else zstandard.compress(zeros)
    del zeros
    assert peak_of_refusal(bomb, encoding) < 64 * 1024


@pytest.mark.fault(25)
@pytest.mark.parametrize("claim", [2**40, 2**63, 2**64 - 3, LAYOUT.nbytes])
def test_a_zstd_frame_that_claims_another_size_is_refused(claim):
    single_segment_with_eight_bytes_of_size = b"\x28\xb5\x2f\xfd\xe0"
    raw_block = ((2**16 << 3) | 1).to_bytes(3, "little") + bytes(2**16)
    frame = single_segment_with_eight_bytes_of_size + claim.to_bytes(8, "little") + raw_block
    assert peak_of_refusal(frame, PayloadEncoding(compression="zstd")) < 64 * 1024


@pytest.mark.fault(25)
def test_a_zstd_frame_that_does_not_tell_its_size_is_refused():
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(LAYOUT.nbytes))
    assert peak_of_refusal(frame, PayloadEncoding(compression="zstd")) < 64 * 1024


def peak_of_refusal(data, encoding):
    survives(b"", LAYOUT, encoding)  # the library is loaded
    tracemalloc.start()
    try:
        assert survives(data, LAYOUT, encoding) is None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@EVERY
def test_room_is_made_for_two_payloads_at_most(encoding):
    layout = layout_for(2**18)
    payload, out = payload_for(layout), np.empty(layout.nbytes, np.uint8)
    round_in_place(payload, layout, encoding.float32)
    data = encode_payload(payload, layout, encoding)
    tracemalloc.start()
    try:
        decode_payload(data, layout, encoding, out)
        assert tracemalloc.get_traced_memory()[1] < 2 * layout.nbytes + 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_refusal_says_what_was_expected():
    with pytest.raises(ProtocolError) as raised:
        decoded(b"abc", LAYOUT, PayloadEncoding(float32="bfloat16"))
    assert str(raised.value) == (
        "payload from the other side: expected 832 bytes, got 3 bytes. It was dropped; see PROTOCOL.md."
    )
    with pytest.raises(ProtocolError, match=r"expected a zstd frame of 1408 bytes, got a frame of 3 bytes\."):
        decoded(zstandard.compress(b"abc"), LAYOUT, PayloadEncoding(compression="zstd"))
    with pytest.raises(ProtocolError, match=r"expected an lz4 block of 1408 bytes, got something else\."):
        decoded(b"\xff", LAYOUT, PayloadEncoding(compression="lz4"))


# --- a missing library ---


@pytest.mark.parametrize(("compression", "module"), [("lz4", "lz4.block"), ("zstd", "zstandard")])
def test_a_missing_library_is_named_with_the_remedy(compression, module, monkeypatch):
    encoding = PayloadEncoding(compression=compression)
    require_library(encoding)
    monkeypatch.setitem(sys.modules, module, None)
    for attempt in (
        lambda: require_library(encoding),
        lambda: encode_payload(payload_for(LAYOUT), LAYOUT, encoding),
        lambda: decoded(b"", LAYOUT, encoding),
    ):
        with pytest.raises(SettingsError) as raised:
            attempt()
        package = module.partition(".")[0]
        assert f"expected {package}, for compression '{compression}', got import of {module}" in str(raised.value)
        assert "[compression]'`" in raised.value.remedy


def test_no_library_is_needed_without_compression(monkeypatch):
    for module in ("lz4", "lz4.block", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    payload = np.zeros(LAYOUT.nbytes, np.uint8)
    for encoding in (p for p in ENCODINGS if p.compression == "none"):
        require_library(encoding)
        assert not decoded(encode_payload(payload, LAYOUT, encoding), LAYOUT, encoding).any()
