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


def check(folder: Path, **scripts: str) -> list[str]:
    """What mypy says of them, line by line; of ours it says nothing, as of any installed package."""
    for name, script in scripts.items():
        (folder / f"{name}.py").write_text(script)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *(f"{name}.py" for name in scripts)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_right_passes_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    wrong = SCRIPT.replace("weights=", "weight=").replace("batch.rows", "batch.row")
    *said, summary = check(tmp_path, right=SCRIPT, wrong=wrong)
    assert [line for line in said if not line.startswith("wrong.py:")] == []
    assert any('Unexpected keyword argument "weight" for "dataset"' in line for line in said)
    assert any('"Batch" has no attribute "row"' in line for line in said)
    assert summary.endswith(" in 1 file (checked 2 source files)")
