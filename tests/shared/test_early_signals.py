"""A signal while a command imports its modules: the code of every other, and no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.forked import ROOT

#: Runs a program, and sends it a signal as it begins to import a module.
_PRESSED = """
import signal, sys
name, module, number, *words = sys.argv[1:]
class Pressed:
    def find_spec(self, found, *_):
        if found == module:
            sys.meta_path.remove(self)
            signal.raise_signal(int(number))
sys.meta_path.insert(0, Pressed())
sys.argv = ["program", *words]
__import__(f"{name}.__main__")
sys.modules[f"{name}.__main__"].main()
"""
_STATUS = ("status", "--timeout-seconds", "0.1", "tcp://127.0.0.1:1")
_VERIFY = ("verify", "--timeout-seconds", "0.1", "tcp://127.0.0.1:1")


def run(package: str, module: str, number: int, *words: str, **how: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PRESSED, package, module, str(int(number)), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("package", "module", "words"),
    [
        ("loader_server", "loader_server.cli", _STATUS),
        ("loader_server", "loader_server.arguments", _STATUS),
        ("trainer_client", "trainer_client.cli", _VERIFY),
        ("trainer_client", "trainer_client.training.command", _VERIFY),
    ],
)
def test_before_a_command_begins_it_ends_without_a_word(
    package: str, module: str, words: tuple[str, ...], number: int
) -> None:
    done = run(package, module, number, *words)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize(
    ("package", "module", "words"),
    [
        ("loader_server", "loader_server.commands.status", _STATUS),
        ("loader_server", "shared.wire.messages", _STATUS),
        ("trainer_client", "trainer_client.verifying.epoch_reading", _VERIFY),
    ],
)
def test_once_it_has_begun_it_ends_with_a_line(
    package: str, module: str, words: tuple[str, ...], number: int, state: str
) -> None:
    done = run(package, module, number, *words)
    program = package.replace("_", "-")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"{program}: {state}\n")


def test_a_command_in_the_background_ignores_ctrl_c_from_the_start() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = run("loader_server", "loader_server.cli", signal.SIGINT, *_STATUS, preexec_fn=ignore)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("package", ["loader_server", "trainer_client"])
def test_what_comes_before_signals_are_handled_imports_nothing_slow(package: str) -> None:
    """Python itself takes longer than this: a signal that comes then is out of our hands."""
    code = f"import os, sys; before = {{*sys.modules}}; import {package}.__main__; print(*{{*sys.modules}} - before)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {package, f"{package}.__main__", "shared", "shared.early_signals"}
    assert {*done.stdout.split()} - {"__future__"} == ours
