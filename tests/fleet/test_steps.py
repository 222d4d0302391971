"""The lines from nothing to training: how many there are, and where they are typed."""

from __future__ import annotations

from collections import Counter

from tests.fleet.steps import MOST_STEPS, TypedLine, lines_of
from tests.support.forked import ROOT

_PAGE = (ROOT / "docs/fleet.md").read_text("utf-8")


def test_lines_are_those_of_the_section_alone() -> None:
    page = (
        "## From nothing to training on three hosts\n```\na$ one --two\nb$ loader-server run x\n```\n## Next\nc$ no\n"
    )
    lines = lines_of(page)
    assert lines == [TypedLine("a", "one --two"), TypedLine("b", "loader-server run x")]
    assert [line.goes_on for line in lines] == [False, True]


def test_the_page_needs_at_most_seven_lines_and_one_on_each_host_that_joins() -> None:
    lines = lines_of(_PAGE)
    assert 3 < len(lines) <= MOST_STEPS
    counts = Counter(line.machine for line in lines)
    assert counts["loader-b"] == counts["loader-c"] == counts["trainer"] == 1
    assert sum("run tcp://" in line.text for line in lines) == 2
