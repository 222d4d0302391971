"""Types the lines of `docs/fleet.md` that lead from nothing to training, on machines that have nothing else.

Each machine has an empty home, Python and the mounted folder. There is no package index: what Stoker needs is found in
this interpreter's packages, Stoker itself is the wheel of this tree. The lines, the job file and the model are those of
the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fleet.namespaces import Machine, machines
from tests.release.dist import build
from tests.support.corpora import make_corpus
from tests.support.forked import ROOT
from tests.support.loaders import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        mounted = _make_mounted(work / "mounted")
        for machine in fleet:
            machine.mounts[_MOUNTED] = str(mounted)
        (by_name[names[0]].folder / "job.toml").write_text(_block(_section(page), "toml"))
        model = (ROOT / "docs/training.md").read_text("utf-8").partition("## `trainer-client train`")[2]
        (by_name[names[-1]].folder / "levels.py").write_text(_block(model, "python"))
        for line in lines:
            _type(line, by_name)
    return len(lines)


def _make_mounted(folder: Path) -> Path:
    """Make the folder that is mounted on all machines: the data, and the wheel."""
    digits = folder / "digits"
    make_corpus(digits, samples=400, longest_s=3.0).rename(digits / "train.csv")
    build(digits, "--wheel", "--quiet")
    return folder


def _type(line: TypedLine, by_name: Mapping[str, Machine]) -> None:
    machine = by_name[line.machine]
    first = next(iter(by_name.values()))
    if machine is not first and not (machine.folder / "keys").exists():
        machine.carry(first.folder / "keys", "worker" if line.goes_on else "trainer")
    environment = {
        "HOME": str(machine.folder),
        "LANG": "C.UTF-8",
        "PATH": f"{Path(sys._base_executable).parent}:{os.environ['PATH']}",
        # Paths alone are no site directories: what is installed there as editable, as we are, cannot be imported.
        "PYTHONPATH": ":".join(path for path in sys.path if path.endswith("site-packages")),
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
