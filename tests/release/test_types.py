"""A user's script passes a strict type checker, and one that is wrong does not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.release.dist import ROOT, SCRIPT

if TYPE_CHECKING:
    from pathlib import Path


def check(script: str, folder: Path) -> str:
    """What mypy says of it; of ours it says nothing, as of any installed package."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.timeout(300)
def test_what_is_right_passes_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    assert check(SCRIPT, tmp_path).startswith("Success")
    said = check(SCRIPT.replace("weights=", "weight=").replace("batch.rows", "batch.row"), tmp_path)
    assert 'Unexpected keyword argument "weight" for "dataset"' in said
    assert '"Batch" has no attribute "row"' in said
