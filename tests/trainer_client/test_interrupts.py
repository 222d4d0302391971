"""Runs `alone_interrupts.py` in processes of its own: an interrupt may leave TensorFlow's scopes unbalanced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loaders import ROOT


@pytest.mark.timeout(240)
@pytest.mark.parametrize("which", ["replicated", "not replicated"])
def test_ctrl_c_ends_whatever_waits_for_a_batch(which: str) -> None:
    """Twice at most, for a defect that is open: in one of fourteen runs the interrupted process did not exit."""
    first = _alone(which)
    done = first if first.returncode == 0 else _alone(which)
    assert done.returncode == 0, first.stdout + done.stdout + done.stderr
    assert " passed" in done.stdout


def _alone(which: str) -> subprocess.CompletedProcess[str]:
    alone = Path(__file__).with_name("alone_interrupts.py")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", which, str(alone)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
