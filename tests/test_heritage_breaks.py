"""Each row of the heritage has a line that makes it true; broken, the row's tests are told apart from others."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests import heritage, heritage_breaks
from tests.heritage_breaks import Break, breaks
from tests.test_heritage import LATER, ROWS

_ROOT = Path(__file__).parents[1]


def test_each_row_that_is_shown_has_a_break():
    assert list(breaks()) == [row for row in ROWS if row not in LATER]


@pytest.mark.parametrize("broken", breaks().values(), ids=lambda broken: broken.row)
def test_the_line_is_in_its_module_once_and_broken_it_is_still_python(broken):
    source = (_ROOT / broken.module).read_text("utf-8")
    assert ast.dump(ast.parse(broken.apply(source))) != ast.dump(ast.parse(source))


@pytest.mark.parametrize(
    ("line", "broken", "complaint"),
    [("two", "three", "got 0"), ("one", "two", "got 2"), ("last = 1", "last = 1  # as before", "got the same code")],
)
def test_a_break_that_does_not_fit_is_refused(line, broken, complaint):
    with pytest.raises(ValueError, match=complaint):
        Break("D1", "module.py", line, broken).apply("one = 1\nlast = 1\nother = one\n")


def test_a_line_that_nobody_tests_is_told_from_one_that_a_test_notices(capsys, monkeypatch):
    """The breaks of two rows are tried against the tests of one of them."""
    table = {"L4": breaks()["L4"], "D6": breaks()["D6"]}
    monkeypatch.setattr(heritage_breaks, "breaks", lambda: table)
    roles = heritage.shown()["L4"]
    monkeypatch.setattr(heritage, "shown", lambda: {"D6": roles, "L4": roles})
    assert heritage.main(["--rows", "D6,L4", "--break", "--json"]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {"rows": 2, "noticed": 1, "unnoticed": {"D6": "all of its tests pass"}}
    assert [line.split()[0] for line in lines[:2]] == ["D6", "L4"]
    assert lines[1].endswith(f"noticed by {roles[0]}")
