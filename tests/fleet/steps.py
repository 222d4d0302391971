"""Types the lines of `docs/fleet.md` that lead from nothing to training, on machines that have nothing else.

Each machine has an empty home, a virtual environment of its own and the mounted folder. There is no package
index: what Stoker needs is found in this interpreter's packages, Stoker itself is the wheel of this tree. The lines,
the job file and the model are those of the pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.fleet.namespaces import Machine, machines
from tests.release.dist import build
from tests.support.corpora import make_corpus
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["MOST_STEPS", "TypedLine", "lines_of", "type_steps"]

MOST_STEPS = 7
_SECTION = "## From nothing to training on three hosts"
_MOUNTED = "/srv"
_TYPED = re.compile(r"^([a-z-]+)\$ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TypedLine:
    """One line, and the machine that it is typed on."""

    machine: str
    text: str

    @property
    def goes_on(self) -> bool:
        """Whether it serves until it is ended."""
        return "loader-server run " in self.text


def lines_of(page: str) -> list[TypedLine]:
    """Return the lines that the page has you type, in order."""
    return [TypedLine(*found) for found in _TYPED.findall(_section(page))]


def _section(page: str) -> str:
    return page.partition(_SECTION)[2].partition("\n## ")[0]


def _block(text: str, language: str) -> str:
    """Return the first block of code in a language."""
    return text.partition(f"```{language}\n")[2].partition("```")[0]


def type_steps(work: Path) -> int:
    """Type them all, and raise if the trainer does not train; return how many there were."""
    page = (ROOT / "docs/fleet.md").read_text("utf-8")
    lines = lines_of(page)
    names = list(dict.fromkeys(line.machine for line in lines))
    with machines(names, work) as fleet:
        by_name = {machine.name: machine for machine in fleet}
        mounts = _mounts(work)
        for machine in fleet:
            machine.mounts |= {**mounts, str(work / "venv"): str(work / "environments" / machine.name)}
            shutil.copytree(work / "venv", work / "environments" / machine.name, symlinks=True)
        (by_name[names[0]].folder / "job.toml").write_text(_block(_section(page), "toml"))
        model = (ROOT / "docs/training.md").read_text("utf-8").partition("## `trainer-client train`")[2]
        (by_name[names[-1]].folder / "levels.py").write_text(_block(model, "python"))
        for line in lines:
            _type(line, by_name, work)
    return len(lines)


def _mounts(work: Path) -> Mapping[str, str]:
    """Make what is mounted, and the empty virtual environment that each machine begins with."""
    mounted = work / "mounted"
    make_corpus(mounted / "digits", samples=400, longest_s=3.0).rename(mounted / "digits" / "train.csv")
    build(mounted / "digits", "--wheel")
    venv.create(work / "venv", with_pip=True)
    packages = next((work / "venv").glob("lib/python*/site-packages"))
    found = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "of-the-test.pth").write_text("\n".join(found))  # paths alone: what is editable there stays unseen
    return {_MOUNTED: str(mounted)}


def _type(line: TypedLine, by_name: Mapping[str, Machine], work: Path) -> None:
    machine = by_name[line.machine]
    first = next(iter(by_name.values()))
    if machine is not first and not (machine.folder / "keys").exists():
        machine.carry(first.folder / "keys", "worker" if line.goes_on else "trainer")
    environment = {
        "HOME": str(machine.folder),
        "LANG": "C.UTF-8",
        "PATH": f"{work / 'venv' / 'bin'}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    program = machine.begin(["bash", "-c", line.text], environment)
    if line.goes_on:
        wait_until(lambda: "Ctrl-C ends" in machine.log.read_text() or program.poll() is not None, line.text, 100)
        failed = program.poll() is not None
    else:
        failed = program.wait(200) != 0
    if failed:
        raise subprocess.CalledProcessError(program.returncode, f"{line.machine}$ {line.text}")
