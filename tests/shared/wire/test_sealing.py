"""Sealed payloads: opened by who has the key, once, in order, and only whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire.sealing import TAG_BYTES, Opener, Sealer

DATA = np.arange(1000, dtype=np.uint8)


def sealed(sealer: Sealer, data=DATA, frame=b"header"):
    out = np.empty(data.nbytes + TAG_BYTES, np.uint8)
    number = sealer.seal_payload(data.data, out)
    return sealer.seal_header(number, frame), out


@pytest.fixture
def opener():
    return Opener()


@pytest.fixture
def sealer(opener):
    return Sealer(opener.key)


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=300))
def test_what_was_sealed_is_opened(frame, payload):
    opener = Opener()
    data = np.frombuffer(payload, np.uint8)
    head, body = sealed(Sealer(opener.key), data, frame)
    assert opener.open_header(head) == frame
    assert opener.open_payload(opener.number, body.data) == payload
    place = np.zeros(data.nbytes, np.uint8)
    assert opener.open_payload_into(opener.number, body.data, place)
    assert place.tobytes() == payload
    assert payload not in body.tobytes() or len(payload) < 3
    assert opener.key.hex() not in repr(opener)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_noticed_wherever_it_is(place, by):
    opener = Opener()
    head, body = sealed(Sealer(opener.key))
    if place % 2:
        changed = bytearray(head)
        changed[place % len(head)] ^= by
        assert opener.open_header(bytes(changed)) is None
        assert opener.number == 0  # a forged number shuts out nobody
    else:
        opener.open_header(head)
        body[place % body.nbytes] ^= by
        assert opener.open_payload(opener.number, body.data) is None
        assert not opener.open_payload_into(opener.number, body.data, np.empty(DATA.nbytes, np.uint8))


def test_nothing_is_opened_twice_or_behind_a_later_one(opener, sealer):
    first, second = sealed(sealer), sealed(sealer)
    assert opener.open_header(second[0]) == b"header"
    assert opener.open_header(second[0]) is None
    assert opener.open_header(first[0]) is None


def test_a_payload_goes_with_its_own_header(opener, sealer):
    first, second = sealed(sealer), sealed(sealer)
    opener.open_header(first[0])
    assert opener.open_payload(opener.number, second[1].data) is None
    assert opener.open_payload(opener.number, first[0]) is None


def test_each_opener_has_a_key_of_its_own(opener, sealer):
    other = Opener()
    assert other.key != opener.key
    assert other.open_header(sealed(sealer)[0]) is None


@pytest.mark.parametrize("frame", [b"", b"1234567", b"12345678", bytes(40)])
def test_what_is_none_is_not_opened(opener, frame):
    assert opener.open_header(frame) is None
    assert opener.open_payload(opener.number, memoryview(frame)) is None


def test_one_of_another_length_is_not_written(opener, sealer):
    head, body = sealed(sealer)
    opener.open_header(head)
    for nbytes in (DATA.nbytes - 1, DATA.nbytes + 1):
        place = np.full(nbytes, 7, np.uint8)
        assert not opener.open_payload_into(opener.number, body.data, place)
        assert (place == 7).all()
