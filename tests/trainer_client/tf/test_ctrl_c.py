"""Runs `alone_ctrl_c.py` in a process of its own: an interrupt may leave TensorFlow's scopes unbalanced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loaders import ROOT


@pytest.mark.timeout(120)
def test_ctrl_c_ends_whatever_waits_for_a_batch() -> None:
    alone = Path(__file__).with_name("alone_ctrl_c.py")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(alone)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
