"""Build wheel and sdist, and try the wheel as a user has it: in an environment of its own, away from the sources.

    python -m tests.release.dist [FOLDER]

The demo runs from the wheel, and mypy checks a user's script against the types that it brings. FOLDER (dist) gets both
files, and only if all of that went well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

__all__ = ["SCRIPT", "build"]

ROOT = Path(__file__).parents[2]

#: What a user writes; it is type-checked, not run.
SCRIPT = """import trainer_client

with trainer_client.connect("tcp://127.0.0.1:7400", stream="train", prefetch=4) as feed:
    for batch in feed:
        print(batch.number, batch.rows, batch["inputs"].shape)
    data = feed.dataset(inputs=("audio", "audio_length"), targets="text", weights="weight")
    saved: dict[str, object] = feed.state()
"""


def build(folder: Path, *options: str) -> list[Path]:
    """Build sdist and wheel, with these options of `python -m build`, from a copy: the sources stay as they are."""
    with tempfile.TemporaryDirectory(prefix="stoker-build-") as place:
        copy = Path(place) / "stoker"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist"))
        _run([sys.executable, "-m", "build", *options, "--outdir", str(folder), str(copy)])
    return sorted(folder.iterdir())


def _run(command: list[str], **more: str | Path) -> None:
    print("$", " ".join(command), flush=True)
    subprocess.run(command, check=True, **more)  # type: ignore[call-overload]


def _try(wheel: Path, place: Path) -> None:
    venv.create(place / "venv", with_pip=True)
    programs = place / "venv" / "bin"
    _run([str(programs / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[loader,trainer-cpu]", "mypy"])
    _run([str(programs / "loader-server"), "demo"], cwd=place)
    (place / "script.py").write_text(SCRIPT)
    _run([str(programs / "mypy"), "--strict", "script.py"], cwd=place)


def main() -> None:
    """Build, try, keep."""
    os.environ.pop("PYTHONPATH", None)
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    with tempfile.TemporaryDirectory(prefix="stoker-dist-") as place:
        built = build(Path(place) / "built")
        _try(next(one for one in built if one.suffix == ".whl"), Path(place))
        target.mkdir(parents=True, exist_ok=True)
        for one in built:
            shutil.copy2(one, target)
            print(target / one.name)


if __name__ == "__main__":
    main()
