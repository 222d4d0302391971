"""How many bad samples a job bears: as it is written, and when it is exceeded."""

from __future__ import annotations

import pytest

from shared.bad_limit import BadLimit, counted_reasons
from shared.errors import SettingsError
from shared.settings.job import parse_job
from shared.settings.parsers import bad_limit


@pytest.mark.parametrize(
    ("written", "meant", "shown"),
    [
        (0, BadLimit(0.0), "0 %"),
        (1, BadLimit(1.0), "100 %"),
        (0.015, BadLimit(0.015), "1.5 %"),
        ("1 %", BadLimit(0.01), "1 %"),
        (" 0.5% ", BadLimit(0.005), "0.5 %"),
        ("100 %", BadLimit(1.0), "100 %"),
        ("20 samples", BadLimit(samples=20), "20 samples"),
        ("1 sample", BadLimit(samples=1), "1 samples"),
        ("0 samples", BadLimit(samples=0), "0 samples"),
    ],
)
def test_what_is_written_is_a_share_or_a_number(written, meant, shown):
    assert bad_limit(written) == meant
    assert str(meant) == shown


@pytest.mark.parametrize("written", [20, -0.1, 1.5, True, "101 %", "1.5 samples", "20", "1 percent", "", None, "-1 %"])
def test_anything_else_is_refused_with_both_forms(written):
    value = {True: "true", None: "[]"}.get(written, repr(written).replace("'", '"')) if written != 1.5 else "1.5"
    with pytest.raises(SettingsError, match=r'max_bad: expected a share such as "1 %" or 0.01, or a number such as'):
        parse_job(f'[job]\nname = "x"\nmax_bad = {value}\n[streams.a]\nlength = "b"\n', "job.toml")


@pytest.mark.parametrize(
    ("limit", "bad", "among", "exceeded"),
    [
        (BadLimit(), 10, 10, False),
        (BadLimit(0.5), 5, 10, False),
        (BadLimit(0.5), 6, 10, True),
        (BadLimit(0.0), 1, 10**9, True),
        (BadLimit(0.0), 0, 10, False),
        (BadLimit(samples=3), 3, 3, False),
        (BadLimit(samples=3), 4, 10**9, True),
        (BadLimit(samples=0), 0, 0, False),
    ],
)
def test_a_limit_is_exceeded_by_one_more(limit, bad, among, exceeded):
    assert limit.is_exceeded(bad, among) == exceeded


def test_reasons_are_counted_the_most_frequent_first():
    assert counted_reasons({"b": 1, "c": 7, "a": 1}) == "7 c, 1 a, 1 b"
    assert counted_reasons({}) == "no reason was given"
