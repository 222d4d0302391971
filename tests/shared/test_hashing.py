"""Numbers that must never change: orders, augmentation and digests of all runs depend on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.hashing import copy_and_digest64, digest64, fingerprint, hashed, key_of

WORD = 2**64
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def unhashed(value, key):
    """The way back, in exact integers: that there is one proves that no two words collide."""
    for shift, factor in ((31, SECOND), (27, FIRST), (30, None)):
        plain = value
        for _ in range(64 // shift + 1):
            plain = value ^ (plain >> shift)
        value = plain * pow(factor, -1, WORD) % WORD if factor else plain
    return (value - key) * pow(GOLDEN, -1, WORD) % WORD


def test_it_is_splitmix64():
    """The first outputs of the reference generator seeded with 0, whose state grows by the golden ratio."""
    assert [hex(value) for value in hashed(np.arange(1, 5), 0).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
        "0xf88bb8a8724c81ec",
    ]


def test_golden_values_under_a_key():
    assert hashed(np.arange(3), 7).tolist() == [1346066267577507604, 7191089600892374487, 309689372594955804]
    assert (
        hashed(np.array([-1, 2**62]), 2**64 + 7).tolist() == hashed(np.array([2**64 - 1, 2**62], np.uint64), 7).tolist()
    )


@given(st.lists(st.integers(0, WORD - 1), min_size=1, max_size=20), st.integers(0, WORD - 1))
def test_a_bijection_of_words(words, key):
    got = hashed(np.array(words, np.uint64), key)
    assert got.dtype == np.uint64
    assert [unhashed(value, key) for value in got.tolist()] == words


def test_its_argument_is_left_alone():
    words = np.arange(4, dtype=np.uint64)
    hashed(words, 1)
    assert words.tolist() == [0, 1, 2, 3]


def test_golden_keys():
    assert key_of("order", 7, 0) == 10976056918191583690
    assert key_of() == key_of()


PARTS = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=6), max_size=4).map(tuple)


@pytest.mark.slow
@given(PARTS, PARTS)
def test_keys_tell_type_length_and_place_apart(one, other):
    assert (key_of(*one) == key_of(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), ("1",)),
        (("ab", "c"), ("a", "bc")),
        (("a", "b"), ("b", "a")),
        (("a\x1fstr:1:b",), ("a", "b")),
        ((), ("",)),
        ((1, 2), (12,)),
    ],
)
def test_keys_that_are_nearly_equal(one, other):
    assert key_of(*one) != key_of(*other)


def test_a_numpy_integer_is_the_integer_that_it_is_worth():
    assert key_of("augment", np.int64(5), np.uint8(1)) == key_of("augment", 5, 1)
    with pytest.raises(TypeError):
        key_of(1.5)


def test_digests_are_xxh3():
    assert digest64(b"") == 0x2D06800538D394C2
    assert digest64(memoryview(bytes(range(256)))) == 10666956326096416113
    assert digest64(np.arange(256, dtype=np.uint8)) == 10666956326096416113


@pytest.mark.parametrize("nbytes", [0, 1, 2**18 - 1, 2**18, 2**18 + 1, 3 * 2**18 + 7])
def test_a_copy_has_the_digest_and_the_bytes_of_its_source(nbytes):
    source = hashed(np.arange(nbytes, dtype=np.uint64), 3).astype(np.uint8)
    target = np.zeros(nbytes, np.uint8)
    assert copy_and_digest64(source, target) == digest64(source)
    assert (target == source).all()


def test_fingerprints():
    assert fingerprint() == "99aa06d3014798d86001c324468d497f"
    assert fingerprint("ab", b"c") == "f2eda2708bcfd51cc05c0ee4c9f60440"
    assert len({fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint("abc"), fingerprint("abc", "")}) == 4
