"""The tests of the pure modules, which wait for nothing and start nothing: `make quick`.

    python -m tests.quick [options of pytest]

A module's tests are those of its mirror, and in a room where every module is pure all tests of the room, but for those
that start processes. Which modules are pure, test_architecture.py knows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_architecture import FILES, PURE_FILES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["files", "main"]


def files() -> list[str]:
    """The test modules to run, as paths within the project."""
    found = {"tests/test_architecture.py", *_mirrors(PURE_FILES)}
    for room in {Path(name).parent for name in PURE_FILES}:
        if all(name in PURE_FILES for name in FILES if Path(name).parent == room):
            found |= {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / room).glob("test_*.py")}
    return sorted(name for name in found if not _starts_processes(ROOT / name))


def _mirrors(modules: Iterable[str]) -> set[str]:
    paths = (Path("tests") / Path(name).with_name(f"test_{Path(name).name}") for name in modules)
    return {path.as_posix() for path in paths if (ROOT / path).exists()}


def _starts_processes(test: Path) -> bool:
    text = test.read_text("utf-8")
    starts = "import subprocess" in text or "from tests.support.forked import" in text
    return starts and test.name != "test_architecture.py"


def main(options: Sequence[str]) -> int:
    """Run them; pytest's exit code."""
    return pytest.main([*options, *files()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
