"""`characters`: the right numbers, and never more than were foretold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.characters import Characters, CharactersSettings
from shared.errors import SampleError, SettingsError

RNG = np.random.default_rng(0)


def numbers_of(text, **settings):
    sample = {"text": text}
    Characters(CharactersSettings(**settings))(sample, RNG)
    return sample["text"]


def test_characters_are_numbered_from_one():
    made = numbers_of("ab z'09")
    assert made.dtype == np.int32
    assert made.tolist() == [1, 2, 27, 26, 28, 29, 38]


def test_capitals_count_as_small_letters_unless_the_alphabet_has_both():
    assert numbers_of("AbC").tolist() == [1, 2, 3]
    assert numbers_of("aA", alphabet="aA").tolist() == [1, 2]


def test_unknown_characters_are_left_out():
    assert numbers_of("a, b! \N{GRINNING FACE}é").tolist() == [1, 27, 2, 27]


def test_unknown_characters_mask_the_sample_when_asked():
    with pytest.raises(
        SampleError, match=r"expected characters of the alphabet, got '!'.*unknown = \"drop\""
    ) as caught:
        numbers_of("oh!", unknown="mask")
    assert caught.value.reason == "unknown_character"


def test_an_alphabet_with_a_character_twice_is_refused():
    with pytest.raises(SettingsError, match="expected an alphabet that names each character once, got 'a' more than"):
        numbers_of("", alphabet="aba")


@given(text=st.text(), alphabet=st.text(min_size=1).map(lambda value: "".join(dict.fromkeys(value))))
def test_zero_never_appears_and_the_length_is_a_bound(text, alphabet):
    text, alphabet = (value.encode("utf-8", "ignore").decode() for value in (text, alphabet))
    made = numbers_of(text, alphabet=alphabet or "a")
    assert (made > 0).all()
    assert len(made) <= len(text)
    known = [c for c in text if c in alphabet]
    assert len(made) >= len(known)


def test_the_length_is_exact_where_all_is_known():
    assert len(numbers_of("twenty one")) == len("twenty one")
