"""The table of faults says of each row what its tests came to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.faults.matrix import Test, Verdict, verdict
from tests.support.loaders import ROOT

TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise RuntimeError

@pytest.mark.fault(1)
@pytest.mark.fault(2)
def test_passes():
    pass

@pytest.mark.fault(2)
@pytest.mark.fault(3)
def test_fails():
    assert False

@pytest.mark.fault(4)
@pytest.mark.skip(reason="no such device here")
def test_is_skipped():
    pass

@pytest.mark.fault(5)
def test_skips_itself():
    pytest.skip("too small a disk")

@pytest.mark.fault(6)
def test_breaks_afterwards(broken):
    pass

def test_of_no_row():
    assert False
"""

PURE = """
import pytest

@pytest.mark.fault(7)
def test_of_a_part_of_the_code_only():
    pass

@pytest.mark.fault(1)
def test_of_another_part():
    pass
"""


def matrix(folder, *arguments):
    code = f"import pathlib, tests.faults.matrix as m; m.main({arguments!r}, root=pathlib.Path({str(folder)!r}))"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def tests(tmp_path):
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults/test_some.py").write_text(TESTS)
    (tmp_path / "faults/conftest.py").write_text("def pytest_runtest_setup(item):\n    pass\n")
    (tmp_path / "test_parts.py").write_text(PURE)
    return tmp_path


def test_each_row_has_its_result_and_the_last_line_is_for_machines(tests):
    done = matrix(tests, "--json", "--rows", "1,2,3,4,5,6,7,8")
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "rows": dict(zip("12345678", ("pass", *["fail"] * 2, *["skipped"] * 2, "fail", *["missing"] * 2), strict=True)),
        "passed": 1,
        "skipped": [
            {"row": 4, "reason": "no such device here"},
            {"row": 5, "reason": "too small a disk"},
        ],
    }
    assert "  1  pass       2 of  2" in done.stdout
    assert "skipped    0 of  1" in done.stdout
    assert "(too small a disk)" in done.stdout
    assert done.returncode == 1


def test_only_the_rows_that_were_asked_for_are_run_and_their_passing_is_success(tests):
    done = matrix(tests, "--rows", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 6 deselected" in done.stdout
    assert "a worker killed before it read anything" in done.stdout.splitlines()[-1]


def test_tests_that_cannot_be_collected_are_no_result(tests):
    (tests / "faults/test_some.py").write_text(TESTS + "\nimport nothing_of_this_name")
    done = matrix(tests, "--rows", "1", "--json")
    assert done.returncode == 1
    assert "expected pytest to run the tests" in done.stderr
    assert '"rows"' not in done.stdout


def test_an_unknown_row_is_refused(tests):
    assert "expected rows from 1 to 71, got [72]" in matrix(tests, "--rows", "1,72").stderr


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        (("passed", "skipped"), "pass"),
        (("skipped", "skipped"), "skipped"),
        (("passed", "failed"), "fail"),
        (("skipped", "not run"), "fail"),
        ((), "missing"),
    ],
)
def test_a_row_is_as_good_as_its_tests(outcomes, result):
    assert verdict([Test(real=True, outcome=outcome) for outcome in outcomes]).result == result


def test_a_failing_part_makes_a_row_fail_and_a_passing_one_not_pass():
    real, part = Test(real=True, outcome="passed"), Test(real=False, outcome="failed")
    assert verdict([real, part]) == verdict([part]) == Verdict("fail")
    assert verdict([Test(real=False, outcome="passed")]) == Verdict("missing")
