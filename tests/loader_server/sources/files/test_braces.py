"""Names with braces: as WebDataset's own library takes them."""

from __future__ import annotations

import pytest

from loader_server.sources.files.braces import names_meant
from shared.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{008..011}.tar", ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]),
        ("a-{0..10..5}.tar", ["a-0.tar", "a-5.tar", "a-10.tar"]),
        ("a-{2..0}", ["a-2", "a-1", "a-0"]),
        ("a-{3..3}", ["a-3"]),
        ("{a,bc,}.tar", ["a.tar", "bc.tar", ".tar"]),
        ("s3://b/{x,y}/{0..1}.tar", ["s3://b/x/0.tar", "s3://b/x/1.tar", "s3://b/y/0.tar", "s3://b/y/1.tar"]),
        ("a{1}.tar", ["a{1}.tar"]),
        ("a{b..c}.tar", ["a{b..c}.tar"]),
        ("a{}{", ["a{}{"]),
    ],
)
def test_a_name_stands_for_all_that_are_meant(name: str, meant: list[str]) -> None:
    assert names_meant(name) == meant


@pytest.mark.parametrize("name", ["{0..99999999999}", "{0..999}{0..999}{0..9}"])
def test_a_slip_of_the_pen_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=r"expected braces that stand for at most 1000000 names, got \d+ of them"):
        names_meant(name)
