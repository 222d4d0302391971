"""Random numbers: the same for a sample for ever, and none for whoever says that it draws none."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.generators import RecordingGenerator, RefusingGenerator, generator_for
from shared.errors import SettingsError

REFUSED = (
    r"^job: expected the transform noise to draw no random numbers, as it declares draws=False, got rng\.{}\. "
    "Leave draws=False out of its declaration"
)
NUMBERS = st.integers(0, 2**62)
KEYS = st.tuples(NUMBERS, NUMBERS, NUMBERS)


def drawn(key):
    return generator_for(*key).bit_generator.random_raw(2).tolist()


def test_the_generator_gives_the_same_numbers_for_ever():
    assert drawn((7, 1, 42)) == [4006360985982176814, 16185503492953781722]


@given(one=KEYS, other=KEYS)
def test_numbers_are_equal_for_equal_keys_only(one, other):
    assert (drawn(one) == drawn(other)) == (one == other)


@pytest.mark.parametrize(
    ("draw", "touched"),
    [
        (lambda rng: rng.random(), "random"),
        (lambda rng: np.random.default_rng(rng).normal(), "(normal|capsule)"),
        (lambda rng: np.random.Generator(rng.bit_generator), "bit_generator"),
        (copy.deepcopy, "__deepcopy__"),
        (lambda rng: rng.spawn(1), "spawn"),
        (lambda rng: rng.no_such_thing, "no_such_thing"),
    ],
)
def test_whoever_touches_a_generator_that_it_declined_is_named(draw, touched):
    with pytest.raises(SettingsError, match=REFUSED.format(touched)):
        draw(RefusingGenerator("noise", "job"))


def test_it_passes_for_a_generator():
    assert isinstance(RefusingGenerator("noise", "job"), np.random.Generator)


def test_a_recording_generator_gives_the_same_numbers_and_keeps_what_it_gave():
    plain, recording = generator_for(7, 3, 5), RecordingGenerator(7, 3, 5)
    values = recording.standard_normal(4, dtype="float32")
    expected = plain.standard_normal(4, dtype="float32")
    assert np.array_equal(values, expected)
    values[:] = 0  # as a transform may
    assert recording.integers(0, 1000) == plain.integers(0, 1000)
    given, same = np.arange(9), np.arange(9)
    recording.shuffle(given)
    plain.shuffle(same)
    assert [drawn.method for drawn in recording.drawn] == ["standard_normal", "integers", "shuffle"]
    first, second, third = (drawn.got for drawn in recording.drawn)
    assert np.array_equal(first, expected)
    assert second.shape == ()
    assert np.array_equal(third, same)
    assert isinstance(recording, np.random.Generator)
