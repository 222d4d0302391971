"""Plan settings: what is read, what is refused and how, and what amounts mean in steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_server.planning.settings import limits_of
from shared.errors import SettingsError
from tests.loader_server.planning.tables import RATES, settings_of


def limits(key="audio", **table):
    return limits_of(settings_of(**table), key=key, per_second=RATES)


def test_seconds_become_steps_of_the_bucketed_key():
    assert limits(budget="300 s", max_length="24.5 s", min_length="0.101 s").budget == 30_000
    assert limits(max_length="24.5 s").max_length == 2_450
    assert limits(min_length="0.101 s").min_length == 11
    assert limits(budget="30000 frames").budget == 30_000


def test_seconds_of_a_key_without_time_are_refused_with_what_to_write():
    with pytest.raises(SettingsError, match=r"has no time: write budget = \"<number> tokens\"") as error:
        limits(key="text", budget="300 s")
    assert error.value.where == "budget"
    assert limits(key="text", budget="4096 tokens").budget == 4096


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"budget": "300 parsecs"}, "an amount with its unit"),
        ({"budgets": "300 s"}, 'perhaps "budget"'),
        ({"shapes": "many"}, 'shapes = "auto"'),
        ({"shapes": 0}, "from 1 to 256"),
        ({"order": "random"}, '"shuffled"'),
        ({"limits": {"txt": "4 characters"}}, '"text"'),
        ({"limits": 4}, "a table of keys"),
        ({"weights": [0]}, "above 0"),
        ({"weights": [True]}, "above 0"),
        ({"shapes": [True]}, "a list of lengths"),
        ({"shapes": [5, 0]}, "a list of lengths above 0"),
        ({"shapes": [-1]}, "a list of lengths above 0"),
        ({"shapes": ["0 s"]}, "a list of lengths above 0"),
        ({"cycle": [1]}, "true or false"),
        ({"budget": "0 frames"}, "Raise the budget"),
    ],
)
def test_wrong_settings_are_refused_readably(table, words):
    with pytest.raises(SettingsError, match=words):
        limits(**table)


def test_a_missing_budget_is_refused():
    with pytest.raises(SettingsError, match="an amount with its unit"):
        settings_of(budget=None)


@pytest.mark.heritage("R7")
def test_rows_keep_budget_rows_and_multiples():
    lengths = {"audio": np.array([100, 1000, 29_999, 40_000])}
    assert limits().rows(lengths).tolist() == [300, 30, 1, 1]
    assert limits(max_rows=64).rows(lengths).tolist() == [64, 30, 1, 1]
    assert limits(rows_multiple=8).rows(lengths).tolist() == [296, 24, 1, 1]


def test_the_quadratic_term_counts_long_samples_more():
    # 10 s with a quadratic length of 10 s count twice: 15 instead of 30.
    assert limits(quadratic_length="10 s").rows({"audio": np.array([1000])}).tolist() == [15]


@given(st.integers(1, 9_000), st.integers(0, 3_000), st.integers(1, 70))
def test_the_longest_sample_within_the_budget_is_just_within_it(budget, quadratic, multiple):
    also = {"quadratic_length": f"{quadratic} frames"} if quadratic else {}
    found = limits(budget=f"{budget} frames", length_multiple=multiple, **also)
    within = np.array([found.longest_within, found.longest_within + 1])
    assert (found.used(found.padded(within)) <= budget).tolist() == [True, False]


def test_limits_of_other_keys_shrink_rows():
    lengths = {"audio": np.array([1000]), "text": np.array([50])}
    assert limits(limits={"text": "500 characters"}).rows(lengths).tolist() == [10]


def test_lengths_of_ones_own_may_mix_units_and_are_rounded_up():
    assert limits(shapes=["5 s", 1001, "20 s"], length_multiple=8).boundaries == (504, 1008, 2000)
    assert limits(shapes=["5.001 s", 1001]).boundaries == (501, 1001)


def test_a_key_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(SettingsError, match=r'"audio", "text".*sound') as error:
        limits("sound")
    assert error.value.where == "length"
