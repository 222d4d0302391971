"""The wheel and the sdist hold what the tree does."""

from __future__ import annotations

import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import pytest

from tests.release.dist import ROOT, build

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("shared", "loader_server", "trainer_client")


def in_tree() -> set[str]:
    """What the packages consist of; a README is for whoever has the repository."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if not {"__pycache__", "README.md"} & {*path.parts}}


def builds_here() -> bool:
    """Whether what builds is here already: to install it in an environment of its own takes longer than to build."""
    try:
        return int(version("setuptools").partition(".")[0]) >= 77  # as pyproject.toml has it
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("built"), *(["--no-isolation"] if builds_here() else []))


def test_the_wheel_is_the_tree(built: list[Path]) -> None:
    (wheel,) = (one for one in built if one.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == in_tree()
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_it_and_the_license(built: list[Path]) -> None:
    (sdist,) = (one for one in built if one.suffix == ".gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*in_tree(), "LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_sdist_holds_the_examples_and_nothing_that_they_made(built: list[Path]) -> None:
    (sdist,) = (one for one in built if one.suffix == ".gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = (path for kind in ("md", "py", "sh", "toml") for path in (ROOT / "examples").rglob(f"*.{kind}"))
    held = {path.relative_to(ROOT).as_posix() for path in files}
    assert {name for name in names if name.startswith("examples/") and "." in name} == held
