"""`characters`: the right numbers, and never more than were foretold; counts of letters that an alphabet lacks."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.transforms.chain import Chain
from loader_server.transforms.characters import (
    Alphabet,
    Characters,
    CharactersSettings,
    LetterCounter,
    LetterCounts,
    counting_step,
)
from shared.errors import DataError, SampleError, SettingsError

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


DEFAULT = CharactersSettings().alphabet
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=8)


def counts_of(*texts: str, alphabet: str = DEFAULT) -> LetterCounts:
    counter = LetterCounter(Alphabet(alphabet))
    counter.add(texts)
    return counter.counts()


def ids_in(text: str, alphabet: str = DEFAULT) -> list[int]:
    sample = {"text": text}
    Characters(CharactersSettings(alphabet=alphabet))(sample, np.random.default_rng(0))
    return sample["text"].tolist()


def test_letters_that_are_dropped_and_folded_are_counted_with_their_samples() -> None:
    counts = counts_of("Weasels Ça und Ä", "", "all is well, Ä")
    assert (counts.letters, counts.dropped, counts.folded) == (23, 3, 1)
    assert (counts.samples, counts.samples_dropped, counts.samples_folded, counts.samples_unknown) == (3, 2, 1, 2)
    assert counts.others_dropped == 1, "the comma"
    assert counts.commonest == (("Ä", 2), ("Ç", 1))


def test_combining_marks_symbols_and_digits_are_letters_and_punctuation_is_none() -> None:
    counts = counts_of("a\N{COMBINING DIAERESIS} 5 € \N{EN DASH} !\t", alphabet="a ")
    assert (counts.letters, counts.dropped, counts.others_dropped) == (4, 3, 3)
    assert dict(counts.commonest) == {"\N{COMBINING DIAERESIS}": 1, "5": 1, "€": 1}


def test_only_the_ten_commonest_are_named_the_commonest_first() -> None:
    counts = counts_of("".join(chr(0x4E00 + n) * (n + 1) for n in range(12)))
    assert counts.commonest == tuple((chr(0x4E00 + n), n + 1) for n in range(11, 1, -1))


@given(blocks=st.lists(TEXTS, max_size=3), alphabet=st.sets(st.sampled_from("aAäÄßéz .5字"), min_size=1).map("".join))
def test_counts_are_what_becomes_of_each_character(blocks: list[list[str]], alphabet: str) -> None:
    counter = LetterCounter(Alphabet(alphabet))
    for block in blocks:
        counter.add(block)
    counts, texts = counter.counts(), [text for block in blocks for text in block]
    gone = [[c for c in text if not ids_in(c, alphabet)] for text in texts]
    lost = [[c for c in one if unicodedata.category(c)[0] not in "ZPC"] for one in gone]
    folded = [[c for c in text if c not in alphabet and ids_in(c, alphabet)] for text in texts]
    assert counts.samples == len(texts)
    assert counts.dropped == sum(map(len, lost))
    assert counts.others_dropped == sum(map(len, gone)) - counts.dropped
    assert counts.folded == sum(map(len, folded))
    assert counts.letters == sum(unicodedata.category(c)[0] not in "ZPC" for text in texts for c in text)
    samples = [sum(map(bool, each)) for each in (lost, folded, gone)]
    assert [counts.samples_dropped, counts.samples_folded, counts.samples_unknown] == samples


@pytest.mark.parametrize(("text", "refused"), [("a" * 19 + "ä", False), ("a" * 18 + "ä", True), ("!! ??", False)])
def test_more_than_five_percent_are_refused(text: str, refused: bool) -> None:
    step, counts = Characters(CharactersSettings()), counts_of(text)
    if not refused:
        step.refuse_dropping(counts, "job")
        return
    with pytest.raises(DataError, match="expected at most 5 % of the letters outside the alphabet, got 1 of 19"):
        step.refuse_dropping(counts, "job")


@pytest.mark.parametrize("unknown", ["drop", "mask"])
def test_who_says_what_becomes_of_unknown_letters_is_obeyed(unknown: str) -> None:
    Characters(CharactersSettings(unknown=unknown)).refuse_dropping(counts_of("äöü"), "job")


@pytest.mark.parametrize(
    ("alphabet", "text", "line"),
    [
        ("abc ", "Ä ä É \N{COMBINING DIAERESIS}", 'alphabet = "abc äé\N{COMBINING DIAERESIS}"'),
        ("ABC ", "ä é ß", 'alphabet = "ABC ßÄÉ"'),
        ('a"', "字", 'alphabet = "a\\\\"字"'),
    ],
)
def test_the_refusal_names_letters_and_the_lines_to_write(alphabet: str, text: str, line: str) -> None:
    step = Characters(CharactersSettings(alphabet=alphabet))
    message = rf'job: .* samples, most often .*\. Write {line}, which .* or unknown = "drop", which leaves them out'
    with pytest.raises(DataError, match=message):
        step.refuse_dropping(counts_of(text, alphabet=alphabet), "job")


def test_a_mark_is_named_by_its_number_as_it_would_join_its_neighbour() -> None:
    with pytest.raises(DataError, match=r"most often 'é' 2, U\+0308 1\."):
        Characters(CharactersSettings()).refuse_dropping(counts_of("éé\N{COMBINING DIAERESIS}"), "job")


def test_fingerprints_are_those_of_an_explicit_drop() -> None:
    """Jobs keep theirs: they were made when `drop` was the default."""
    plain, said = (Chain.make(("characters",), table, "job", ()) for table in ({}, {"characters": {"unknown": "drop"}}))
    assert plain.steps[0].identity == f"[('alphabet', \"{DEFAULT}\"), ('unknown', 'drop')]"
    assert plain.recipe == said.recipe
    assert plain.fingerprint == said.fingerprint


def test_a_users_own_transform_before_it_may_have_changed_the_texts() -> None:
    own = "tests.support.transforms:noise"
    found = [counting_step(Chain.make(names, {}, "job", ())) for names in (("characters", own), (own, "characters"))]
    assert [step and step[1] for step in found] == ["", own]
    assert counting_step(Chain.make((own,), {}, "job", ())) is None
