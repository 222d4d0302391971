"""A command ends with a code that scripts can rely on, and with one readable paragraph."""

from __future__ import annotations

import argparse
import resource

import pytest

from shared.command import allow_many_files, run_command
from shared.errors import SettingsError


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
