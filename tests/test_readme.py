"""The README says what the code does."""

from __future__ import annotations

from pathlib import Path

from tests.support.settings_table import settings_table

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_settings_table_is_the_codes() -> None:
    """After a change of settings: `python -m tests.support.settings_table` prints what belongs there."""
    inside = README.split("<!-- settings -->\n")[1].split("<!-- end of settings -->")[0]
    assert inside.strip() == settings_table().strip()


def test_every_linked_file_is_there() -> None:
    root = Path(__file__).resolve().parents[1]
    links = [part.split(")")[0] for part in README.split("](")[1:]]
    assert [link for link in links if not link.startswith("http") and not (root / link).exists()] == []
