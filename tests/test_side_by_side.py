"""Running test modules side by side: each test runs once and is reported, whatever becomes of its process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: They fork nothing, so they need nobody to fork from.
CONFTEST = """
from unittest.mock import MagicMock
from tests.support import side_by_side

side_by_side.Nurseries = MagicMock()
"""

MODULES = {
    "test_good": "def test_a(tmp_path): print('quiet')\ndef test_b(tmp_path): assert not list(tmp_path.iterdir())",
    "test_bad": "def test_a(): print('said so'); assert 0, 'on purpose'\ndef test_b(): pass",
    "test_dies": "import os\ndef test_a(): pass\ndef test_b(): os._exit(3)\ndef test_c(): pass",
}


def run(folder: Path, *options: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.side_by_side", "-v", *options]
    path = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False).stdout


def test_each_test_runs_once_and_one_that_ends_its_process_has_failed(tmp_path: Path) -> None:
    said = run(tmp_path, "--processes", "2")
    assert sorted(re.findall(r"^(test_\w+\.py::test_\w) (PASSED|FAILED) ", said, re.MULTILINE)) == [
        ("test_bad.py::test_a", "FAILED"),
        ("test_bad.py::test_b", "PASSED"),
        ("test_dies.py::test_a", "PASSED"),
        ("test_dies.py::test_b", "FAILED"),
        ("test_dies.py::test_c", "PASSED"),
        ("test_good.py::test_a", "PASSED"),
        ("test_good.py::test_b", "PASSED"),
    ]
    assert "2 failed, 5 passed" in said
    assert "its process ended with 3 during this test" in said
    assert "said so" in said
    assert "quiet" not in said


def test_after_so_many_failures_no_module_is_begun(tmp_path: Path) -> None:
    said = run(tmp_path, "--processes", "1", "--maxfail", "1")
    assert "test_good.py::test_a PASSED" not in said
    assert "stopping after 1 failures" in said
