"""The bar of long work: on a terminal it is drawn, elsewhere what draws it is not even imported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from loader_server.commands.progress import progress_bar, warn_if_slow
from tests.support.loaders import ROOT, wait_until

if TYPE_CHECKING:
    import pytest


def test_on_a_terminal_there_is_a_bar_with_title_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with progress_bar("index train") as progress:
            progress(7, 20)
        monkeypatch.undo()
        said = ""
        while "7/20" not in said:  # a terminal passes on a part at a time
            said += os.read(ours, 2**16).decode()
    os.close(ours)
    assert "index train" in said


def test_elsewhere_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("index train") as progress:
        progress(7, 20)
    assert capsys.readouterr() == ("", "")


def test_what_takes_long_is_said_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def is_said() -> bool:
        said.append(capsys.readouterr().err)
        return bool(said[-1])

    before = set(threading.enumerate())
    with warn_if_slow("looking at a.csv", after_s=0.0):
        wait_until(is_said, "the message")
    said.append(capsys.readouterr().err)
    assert "".join(said) == "loader-server: looking at a.csv takes longer than 0 s; do all disks answer?\n"
    assert set(threading.enumerate()) <= before


def test_what_is_quick_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with warn_if_slow("looking at a.csv", after_s=1000.0):
        pass
    assert set(threading.enumerate()) <= before
    assert capsys.readouterr() == ("", "")


def test_starting_a_job_imports_nothing_that_draws() -> None:
    program = "import sys, loader_server.commands.index, loader_server.machine.supervisor; print('rich' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT) == b"False\n"
