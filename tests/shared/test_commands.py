"""A command ends with a code that scripts can rely on, and with one readable paragraph."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from shared.commands import EXIT_CODES, Terminated, allow_many_files, describe_exit_codes, run_command
from shared.errors import LostError, RefusedError, SettingsError
from tests.support.forked import ROOT


def ends(run, *arguments):
    """The exit code of a command that does this."""
    parser = argparse.ArgumentParser(prog="stoker-command")
    parser.add_argument("--log-level", default="warning")
    parser.set_defaults(run=run)
    with pytest.raises(SystemExit) as ended:
        run_command(parser, arguments)
    return ended.value.code


def raising(error):
    def run(options):
        raise error

    return run


def test_a_command_says_itself_how_it_went():
    assert ends(lambda options: 0) == 0
    assert ends(lambda options: 3) == 3


def test_an_expected_error_is_a_paragraph(capsys):
    error = SettingsError(expected="a budget", got="none", where="job.toml", remedy="Say one.")
    assert ends(raising(error)) == 1
    assert capsys.readouterr().err == f"stoker-command: {error}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LostError(expected="an answer", got="none", where="tcp://x:1", remedy="Start it."), 3),
        (RefusedError(code="world", expected="a world", got="none", where="feed", remedy="Say one."), 4),
    ],
)
def test_nobody_and_no_are_told_apart(error, code, capsys):
    assert ends(raising(error)) == code
    assert capsys.readouterr().err == f"stoker-command: {error}\n"


def test_an_interruption_that_came_while_python_compiled_text_has_the_code_of_every_other(tmp_path):
    """As dataclasses do while modules are imported; Python remembers it, and `python -m` would end by SIGINT."""
    (tmp_path / "command.py").write_text(
        "import argparse\n"
        "from shared.commands import run_command\n"
        "def run(options):\n"
        "    exec('raise KeyboardInterrupt')\n"
        "parser = argparse.ArgumentParser(prog='command')\n"
        "parser.set_defaults(run=run, log_level='warning')\n"
        "run_command(parser, [])\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-m", "command"], env=environment, capture_output=True, check=False)
    assert done.returncode == 130, "the code of Ctrl-C, and not the end by a signal"
    assert b"command: interrupted" in done.stderr


@pytest.fixture
def own_ctrl_c():
    """Python's own handler of SIGINT, whatever tests before have set: commands leave another's as it is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_ctrl_c")
@pytest.mark.parametrize(("name", "code", "words"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_during_an_import_is_heeded_once_that_is_over(tmp_path, monkeypatch, name, code, words):
    """In a callback, as importlib has them, an exception would be lost."""
    (tmp_path / f"told_by_{name}.py").write_text(
        "import signal, weakref\n"
        "class Held: pass\n"
        "held = Held()\n"
        f"callback = weakref.ref(held, lambda _: signal.raise_signal(signal.{name}))\n"
        "del held\n"
        "IS_WHOLE = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def run(options):
        importlib.import_module(f"told_by_{name}")
        threading.Event().wait(60)
        raise AssertionError("gone on after the signal")

    before, printed = signal.getsignal(signal.SIGINT), io.StringIO()
    with contextlib.redirect_stderr(printed):
        assert ends(run) == code
    assert printed.getvalue() == f"stoker-command: {words}\n"
    assert sys.modules[f"told_by_{name}"].IS_WHOLE
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("own_ctrl_c")
def test_a_second_ctrl_c_does_not_wait_for_the_import(tmp_path, monkeypatch, capsys):
    (tmp_path / "told_twice.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nsignal.raise_signal(signal.SIGINT)\nraise AssertionError\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert ends(lambda options: importlib.import_module("told_twice")) == 130
    assert capsys.readouterr().err == "stoker-command: interrupted\n"


def test_a_handler_of_ctrl_c_that_a_program_set_stays():
    def own(*_):
        raise ZeroDivisionError

    before = signal.signal(signal.SIGINT, own)
    try:
        with pytest.raises(ZeroDivisionError):
            ends(lambda options: signal.raise_signal(signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def kill_us(options):
    signal.raise_signal(signal.SIGTERM)
    raise AssertionError("gone on after SIGTERM")


def test_sigterm_ends_as_ctrl_c_does_with_a_code_of_its_own(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert ends(kill_us) == 143
    assert capsys.readouterr().err == "stoker-command: terminated\n"
    assert ends(raising(Terminated())) == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_ends_what_ignores_ctrl_c_too():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert ends(kill_us) == 143
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_ends_a_child_as_if_it_had_no_handler():
    def run(options):
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(7)
        return 100 + os.WTERMSIG(os.waitpid(child, 0)[1])

    assert ends(run) == 100 + signal.SIGTERM


def test_the_help_says_what_each_code_means():
    parser = argparse.ArgumentParser(prog="stoker-command")
    describe_exit_codes(parser)
    said = " ".join(parser.format_help().split())
    assert all(f"{code} {meaning}" in said for code, meaning in EXIT_CODES.items())
    server = argparse.ArgumentParser(prog="stoker-command")
    describe_exit_codes(server, serves=True)
    assert (
        "exit codes: 0 ended by Ctrl-C or SIGTERM, 1 an error, of the data for example, 2 wrong usage, 3 no"
        in " ".join(server.format_help().split())
    )
    assert "143" not in server.format_help()


def test_a_defect_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        ends(raising(ZeroDivisionError()))


def test_ctrl_c_ends_as_a_shell_says_it(capsys):
    assert ends(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "stoker-command: interrupted\n"


def test_wrong_usage(capsys):
    assert ends(lambda options: 0, "--no-such-option") == 2


@pytest.mark.fault(38)
def test_all_descriptors_that_it_may_have_are_its_own():
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
