"""`trainer-client train --help`: short, grouped, and with the options of one strategy where it is named."""

from __future__ import annotations

import re

import pytest

from trainer_client.cli import main
from trainer_client.training.strategies.options import HEEDED

MOST_OPTIONS = 28
OWN = sorted({"--" + option.replace("_", "-") for heeded in HEEDED.values() for option in heeded})


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def options_in(text: str) -> list[str]:
    return re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE)


def test_the_plain_help_is_short_and_has_no_options_of_one_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    shown = options_in(help_of(capsys))
    assert len(shown) == len(set(shown)) <= MOST_OPTIONS
    assert {"--model", "--strategy", "--save-every", "--validate-every", "--help"} <= {*shown}
    assert not {*OWN} & {*shown}


@pytest.mark.parametrize("strategy", HEEDED)
def test_the_options_of_a_strategy_are_in_its_help(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = options_in(help_of(capsys))
    shown = options_in(help_of(capsys, "--strategy", strategy))
    assert sorted({*shown} - {*plain}) == sorted("--" + option.replace("_", "-") for option in HEEDED[strategy])


def test_the_strategy_that_is_named_last_counts(capsys: pytest.CaptureFixture[str]) -> None:
    shown = options_in(help_of(capsys, "--strategy", "mirrored", "--strategy", "parameter-server"))
    assert "--staleness" in shown
    assert "--replicas" not in shown


def test_every_group_has_a_title_that_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "--strategy", "central")
    assert re.findall(r"^([a-z ]+):$", text, re.MULTILINE) == [
        "options", "model", "job", "how far", "validation", "checkpoints and exports", "progress and metrics",
        "strategy", "exit codes", "examples",
    ]  # fmt: skip
    assert options_in(text.split("\noptions:\n")[1].split("\n\n")[0]) == ["--help", "--log-level"]


def test_the_help_shows_no_more_arguments_than_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    assert "\n  --metrics-listen HOST[:PORT] [FOLDER]\n" in text
    assert "FOLDER ..." not in text
    assert "--initial PATH [PART ...]" in text
