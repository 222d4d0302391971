"""Lint's exceptions: few in the code, and each in the settings says why."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("shared", "loader_server", "trainer_client", "monitoring", "tests", "examples")

#: In all packages; where a rule does not fit this code, settings switch it off.
MOST_IN_CODE = 150
#: Rules that are off for some files.
MOST_BY_FILE = 15

SETTINGS = (ROOT / "pyproject.toml").read_text("utf-8")
#: A setting that switches rules off, and the comment behind it.
SWITCHED_OFF = re.compile(r'^  ((?:"[A-Z]+\d*", ?)+)(.*)$', re.MULTILINE)
DIRECTIVE = re.compile("#" + r" (ruff: )?noqa(?:: ([A-Z0-9, ]+))?")


def table(name: str, until: str) -> str:
    start = SETTINGS.index(name)
    return SETTINGS[start : SETTINGS.index(until, start)]


def directives() -> list[tuple[str, str, list[str]]]:
    """Each line's exception, but for ANN401, which annotations of what has no type of its own need."""
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for whole_file, codes in DIRECTIVE.findall(file.read_text("utf-8")):
                others = [code.strip() for code in codes.split(",") if code.strip() != "ANN401"]
                if others or not codes:
                    found.append((file.relative_to(ROOT).as_posix(), whole_file, others))
    return found


def test_exceptions_in_the_code_are_few() -> None:
    assert len(directives()) <= MOST_IN_CODE


def test_no_exception_in_the_code_is_for_all_rules() -> None:
    assert [name for name, _, codes in directives() if codes == [""]] == []


def test_a_rule_is_off_for_files_in_the_settings_alone() -> None:
    assert {name for name, whole_file, _ in directives() if whole_file} == set()


def test_whatever_the_settings_switch_off_has_a_reason() -> None:
    everywhere = SWITCHED_OFF.findall(table("\nignore = [", "\n]\n"))
    by_file = SWITCHED_OFF.findall(table("[tool.ruff.lint.per-file-ignores]", "\n["))
    assert [rules for rules, reason in everywhere + by_file if len(reason.lstrip("# ")) < 20] == []
    assert all(rules.count('"') == 2 for rules, _ in by_file), "one rule a reason"
    assert 0 < len(by_file) <= MOST_BY_FILE
