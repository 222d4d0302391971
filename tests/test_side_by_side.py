"""Running test modules side by side: each test runs once and is reported, whatever becomes of its process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]

MODULES = {
    "test_good": "def test_a(tmp_path): print('quiet')\ndef test_b(tmp_path): assert not list(tmp_path.iterdir())",
    "test_bad": "def test_a(): print('said so'); assert 0, 'on purpose'\ndef test_b(): pass",
    "test_dies": "import os\ndef test_a(): pass\ndef test_b(): os._exit(3)\ndef test_c(): pass",
    "test_ends": "import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\ndef test_c(): assert 0",
    "test_leaves": "import os, time\ndef test_a():\n    if not os.fork(): time.sleep(600)\n    os._exit(1)",
}


#: The first one waits for the last one, and that for it: so neither process has more than one of those between.
FROM_BOTH_ENDS = {
    "test_1": """
import os, pathlib
from tests.support.loaders import wait_until
def test_waits():
    pathlib.Path("waits").touch()
    wait_until(pathlib.Path("computed").exists, "the last module has run", 100)
    assert int(pathlib.Path("computed").read_text()) > os.nice(0), "who computes lets others go first"
""",
    **dict.fromkeys(
        ("test_2", "test_3"), "import pathlib\ndef test_between(): assert pathlib.Path('computed').exists()"
    ),
    "test_4": """
import os, pathlib
from tests.support.loaders import wait_until
def test_computes():
    wait_until(pathlib.Path("waits").exists, "the first module has begun", 100)
    pathlib.Path("written").write_text(str(os.nice(0)))
    pathlib.Path("written").rename("computed")
""",
}


def run(folder: Path, *options: str, modules: Mapping[str, str] = MODULES) -> str:
    (folder / "pytest.ini").write_text("[pytest]")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.side_by_side", "-v", *options]
    with (folder / "said").open("w") as said:  # a pipe would be held open by what a test leaves
        # Plugins of other packages take a third of pytest's start, and nothing here uses any.
        environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        how = {"cwd": folder, "env": environment, "stdout": said, "start_new_session": True}
        process = subprocess.Popen(command, **how)
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return (folder / "said").read_text()


def test_each_test_runs_once_and_one_that_ends_its_process_has_failed(tmp_path: Path) -> None:
    said = run(tmp_path, "--processes", "2")
    assert sorted(re.findall(r"^(test_\w+\.py::test_\w) (PASSED|FAILED) ", said, re.MULTILINE)) == [
        ("test_bad.py::test_a", "FAILED"),
        ("test_bad.py::test_b", "PASSED"),
        ("test_dies.py::test_a", "PASSED"),
        ("test_dies.py::test_b", "FAILED"),
        ("test_dies.py::test_c", "PASSED"),
        ("test_ends.py::test_a", "PASSED"),
        ("test_ends.py::test_b", "FAILED"),
        ("test_ends.py::test_c", "FAILED"),
        ("test_good.py::test_a", "PASSED"),
        ("test_good.py::test_b", "PASSED"),
        ("test_leaves.py::test_a", "FAILED"),
    ]
    assert "5 failed, 6 passed" in said
    assert "its process ended with 3 during this test" in said
    assert "said so" in said
    assert "quiet" not in said


def test_modules_are_taken_from_both_ends_of_which_one_lets_the_other_go_first(tmp_path: Path) -> None:
    assert "4 passed" in run(tmp_path, "--processes", "2", modules=FROM_BOTH_ENDS)


def test_after_so_many_failures_no_module_is_begun(tmp_path: Path) -> None:
    said = run(tmp_path, "--processes", "1", "--maxfail", "1")
    assert "test_good.py::test_a PASSED" not in said
    assert "stopping after 1 failures" in said
