"""What runs before a commit and where the project is hosted: the README's test command, with the programs of `make`."""

from __future__ import annotations

from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
HOOKS = ROOT / ".pre-commit-config.yaml"
WORKFLOW = ROOT / ".github/workflows/test.yml"
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text("utf-8"))


def test_the_workflow_runs_the_readmes_command_on_every_python_that_is_supported() -> None:
    job = read(WORKFLOW)["jobs"]["test"]
    supported = SpecifierSet(metadata("stoker")["Requires-Python"])
    versions = [f"3.{minor}" for minor in range(30) if supported.contains(f"3.{minor}.0")]
    assert job["strategy"]["matrix"]["python"] == versions
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["make test"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"Python {versions[0]} to {versions[-1]}, make and a package index" in readme
    assert "`make test` runs " in readme


def test_the_workflow_may_read_the_project_and_do_nothing_else() -> None:
    workflow = read(WORKFLOW)
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["test"]


def test_hooks_are_those_of_make_lint_and_fetch_nothing() -> None:
    (repository,) = read(HOOKS)["repos"]
    assert repository["repo"] == "local"
    hooks = repository["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    lint = (ROOT / "Makefile").read_text("utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    programs = [line.split(" $(PACKAGES)")[0].strip() for line in lint.splitlines()[1:]]
    entries = [hook["entry"].replace(" --force-exclude", "").replace(".venv/bin", "$(BIN)") for hook in hooks]
    assert entries == programs


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_for_issues_is_whole(form: Path) -> None:
    fields = read(form)
    assert fields.keys() >= {"name", "description", "body"}
    identities = [part["id"] for part in fields["body"] if part["type"] != "markdown"]
    assert len(identities) == len({*identities}) > 0
