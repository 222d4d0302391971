"""Runs `alone_ctrl_c.py` in a process of its own: an interrupt may leave TensorFlow's scopes unbalanced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.forked import ROOT, start_module


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ctrl_c_ends_whatever_waits_for_a_batch(tmp_path: Path) -> None:
    alone, said = Path(__file__).with_name("alone_ctrl_c.py"), tmp_path / "said"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    command = ("pytest", "-v", "-p", "no:cacheprovider", str(alone))
    process = start_module(command, folder=ROOT, log=said, environment=environment, tensorflow=True)
    try:
        code = process.wait(350)
    finally:
        process.kill()
    assert code == 0, said.read_text()
    assert " passed" in said.read_text()
