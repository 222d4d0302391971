"""Real commands, and what they end with: scripts go by it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from loader_server.cli import main as loader_main
from shared.commands import EXIT_CODES
from shared.wire import messages as m
from shared.wire.refusing import not_attached
from tests.support.ends import Ends
from tests.support.forked import ROOT, run_module
from tests.support.worker_end import nobody
from trainer_client.cli import main as trainer_main

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: Every command that asks a server something, but for the endpoint and how long it waits.
ASKING = {
    "status": ("loader_server", "status", "--timeout-seconds", "{timeout}", "{endpoint}"),
    "load-test": ("trainer_client", "load-test", "drain", "--timeout-seconds", "{timeout}", "--feed", "{endpoint}"),
    "train": (
        *("trainer_client", "train", "--timeout-seconds", "{timeout}", "--feed", "{endpoint}", "--epochs", "1"),
        *("--model", "not_imported_before_the_server_answers", "--checkpoint", "none"),
    ),
    "evaluate": (
        *("trainer_client", "evaluate", "--timeout-seconds", "{timeout}", "--feed", "{endpoint}"),
        *("--model", "not_imported_before_the_server_answers", "--checkpoint", "none"),
    ),
    "verify": ("trainer_client", "verify", "--timeout-seconds", "{timeout}", "{endpoint}"),
    "predict": (
        *("trainer_client", "predict", "--timeout-seconds", "{timeout}", "--feed", "{endpoint}"),
        *("--model", "not_imported_before_the_server_answers", "--checkpoint", "none"),
    ),
}


def start(*arguments: str) -> subprocess.Popen[str]:
    """A new interpreter, as a signal meets it."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def asking(command: str, endpoint: str, timeout: str = "60") -> list[str]:
    return [argument.format(endpoint=endpoint, timeout=timeout) for argument in ASKING[command]]


@pytest.mark.parametrize("command", ASKING)
def test_a_server_that_is_not_there_is_3(command: str) -> None:
    with nobody() as endpoint:
        code, _, complained = run_module(*asking(command, endpoint, timeout="0.3"))
    assert code == 3, complained
    assert "expected a coordinator that answers within 0.3 s" in complained


@pytest.mark.parametrize("command", ASKING)
def test_a_server_that_says_no_is_4(command: str) -> None:
    refusal = m.Refused(code="world", expected="other ranks", got="these", remedy="Ask for others.")
    with Ends() as ends:
        ends.answers[m.StatusQuery] = lambda _: [refusal]
        ends.answers[m.Attach] = lambda asked: [not_attached(asked.serial, refusal)]
        code, _, complained = run_module(*asking(command, ends.endpoint))
    assert code == 4, complained
    assert "expected other ranks, got these. Ask for others" in complained


@pytest.mark.parametrize(("number", "code", "said"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_is_128_and_its_number(number: str, code: int, said: str) -> None:
    with Ends() as ends:
        ends.answers[m.StatusQuery] = lambda _: []
        with start("loader_server", "status", "--timeout-seconds", "60", ends.endpoint) as process:
            ends.wait_for(m.StatusQuery)
            process.send_signal(signal.Signals[number])
            complained = process.communicate(timeout=100)[1]
    assert (process.returncode, complained) == (code, f"loader-server: {said}\n")


def test_wrong_usage_is_2_and_every_other_error_1(tmp_path: Path) -> None:
    assert run_module("loader_server", "index")[0] == 2
    code, _, complained = run_module(*asking("evaluate", "tcp://127.0.0.1:1"), "--max-time", "9")
    assert (code, "argument --max-time: expected --follow with it" in complained) == (2, True)
    code, _, complained = run_module("loader_server", "index", str(tmp_path / "none.toml"))
    assert (code, complained.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--save-every", "0 steps"), ("--save-every", "-5 steps"), ("--log-every", "0"), ("--retries", "-1"),
        ("--seed", "-1"), ("--keep", "0"), ("--validate-every", "0 epochs"), ("--save-every", "0 seconds"),
        ("--max-time", "-1"), ("--validate-every", "0 steps"),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_wrong_usage(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        trainer_main([*asking("train", "tcp://127.0.0.1:1")[1:], option, *value.split()])
    assert ended.value.code == 2
    assert f"argument {option}: expected " in capsys.readouterr().err


COMMANDS = {
    "loader_server": "demo index plan show run fetch add end status trace coordinator worker forgive keys",
    "trainer_client": "train evaluate predict load-test verify",
}


def main_of(package: str) -> Callable[[Sequence[str]], None]:
    return trainer_main if package == "trainer_client" else loader_main


@pytest.mark.parametrize("package", COMMANDS)
def test_every_command_says_its_codes(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_of(package)(["--help"])
    commands = re.findall(r"^    ([a-z-]+)\b", capsys.readouterr().out, re.MULTILINE)
    assert commands == COMMANDS[package].split()
    for command in commands:
        with pytest.raises(SystemExit):
            main_of(package)([command, "--help"])
        said = " ".join(capsys.readouterr().out.split())
        serves = command in ("run", "coordinator", "worker")
        codes = [f"{code} {meaning}" for code, meaning in EXIT_CODES.items() if code and (code < 130 or not serves)]
        assert "exit codes: 0 " + ("ended by Ctrl-C or SIGTERM" if serves else "finished") in said, command
        assert [one for one in codes if one not in said] == [], command


def test_an_export_never_takes_the_place_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        trainer_main([*asking("train", "tcp://127.0.0.1:1")[1:], "--export", str(tmp_path)])
    assert ended.value.code == 1
    assert "expected a path of its own, or a model there that is to be replaced" in capsys.readouterr().err
    assert (tmp_path / "notes").read_text() == "mine"
