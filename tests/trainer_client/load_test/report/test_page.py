"""Charts: round ticks around the data, every point inside, every word escaped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.load_test.report.page import Series, chart, linear, logarithmic

SIZES = st.floats(0, 1e7, allow_nan=False)


@given(SIZES, SIZES)
def test_a_linear_axis_holds_what_it_was_made_for(one, other):
    low, high = sorted((one, other))
    axis = linear("ms", low, high)
    assert -1e-6 <= axis.place(low) <= axis.place(high) <= 1 + 1e-6
    assert 2 <= len(axis.ticks) <= 9
    assert axis.place(axis.ticks[0][0]) == pytest.approx(0)
    assert axis.place(axis.ticks[-1][0]) == pytest.approx(1)


@given(SIZES, SIZES)
def test_a_logarithmic_axis_holds_what_it_was_made_for(one, other):
    low, high = sorted((one, other))
    axis = logarithmic("ms", low, high)
    assert 0 <= axis.place(low) <= axis.place(high) <= 1 + 1e-9
    assert axis.place(0.0) == 0
    assert all(word.replace(",", "").strip("0.") in ("1", "") for _, word in axis.ticks)


def test_ticks_are_round():
    assert [word for _, word in linear("", 0, 437).ticks] == ["0", "100", "200", "300", "400", "500"]
    assert [word for _, word in logarithmic("", 0.03, 20).ticks] == ["0.01", "0.1", "1", "10", "100"]


def test_a_chart_draws_its_lines_and_names_them_apart():
    lines = [
        Series(name=name, points=[(0, 1), (9, height)], look="a") for name, height in (("<p99>", 5), ("p50", 5.01))
    ]
    lines.append(Series(name="", points=[(1, 2)], look="b", dots=True))
    text = chart("A & B", linear("s", 0, 9), linear("ms", 0, 10), lines)
    root = ET.fromstring(text)
    assert root.find("figcaption").text == "A & B"
    assert len(root.findall(".//polyline")) == 2
    assert len(root.findall(".//circle")) == 1
    names = [one for one in root.iter("text") if one.get("class", "").startswith("name")]
    assert {one.text for one in names} == {"<p99>", "p50"}
    heights = sorted(float(one.get("y")) for one in names)
    assert heights[1] - heights[0] >= 15
