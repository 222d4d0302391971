"""What is said of a strategy that does not heed it is refused."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import SettingsError
from trainer_client.training.strategies.options import HEEDED, StrategyOptions

SAID = {"replicas": 2, "all_reduce": "auto", "combine": "mean", "variables": "cpu"}


@pytest.mark.parametrize(("name", "option"), [*itertools.product(HEEDED, SAID)])
def test_an_option_is_heeded_or_refused(name, option):
    options = StrategyOptions(name=name, **{option: SAID[option]})
    if option in HEEDED[name]:
        options.refuse_unheeded()
        return
    flag = "--" + option.replace("_", "-")
    with pytest.raises(SettingsError, match=rf"{flag}: expected {flag} with one of .*, got --strategy {name}"):
        options.refuse_unheeded()


def test_nothing_said_is_never_refused():
    for name in HEEDED:
        StrategyOptions(name=name).refuse_unheeded()
