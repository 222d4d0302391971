"""The pages for those who come from elsewhere: each job, there and here, gives the same samples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support.loaders import ROOT, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

PAGES = ROOT / "docs" / "moving"
SERVED = "tcp://127.0.0.1:7400"
#: What each page's scripts import beside Stoker.
NEEDED = {
    "grain": ("grain", "array_record", "tensorflow"),
    "lhotse": ("lhotse", "torch", "torchaudio", "soundfile"),
    "streaming": ("streaming", "torch"),
    "tf_data": ("tensorflow",),
    "torch": ("torch",),
    "webdataset": ("webdataset",),
}
_FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _files(page: str, folder: Path) -> None:
    """Write the files that a page shows, by the names that it gives them."""
    found = _FILE.findall((PAGES / f"{page}.md").read_text())
    assert {"make_data.py", "there.py", "here.py", "job.toml"} <= {name for name, _ in found}
    for name, content in found:
        (folder / name).write_text(content)


def _run(folder: Path, *command: str) -> list[str]:
    """Run Python with these words; the lines that say what an epoch had."""
    ended = subprocess.run(
        (sys.executable, *command),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [line for line in ended.stdout.splitlines() if line.startswith("epoch ")]


def _served(folder: Path, *command: str, job: str = "job.toml") -> list[str]:
    """Run a script beside the loaders of a job; the lines that say what an epoch had."""
    path, script = folder / job, folder / command[-1]
    path.write_text(path.read_text().replace("[job]", '[job]\nlisten = "tcp://127.0.0.1:*"'))
    with running(path) as loaders:
        script.write_text(script.read_text().replace(SERVED, loaders.endpoint))
        return _run(folder, *command)


def _counted(line: str) -> str:
    """What has to be equal: samples and tokens. Padding follows a `;`, and is less here."""
    return line.split(";", maxsplit=1)[0]


def _padding(line: str) -> int:
    return int(line.split("; ")[1].split("%", maxsplit=1)[0])


@pytest.mark.parametrize("page", sorted(NEEDED))
def test_a_job_there_and_here_gives_the_same_samples(page: str, tmp_path: Path) -> None:
    missing = [name for name in NEEDED[page] if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install -e '.[bench]' mosaicml-streaming")
    _files(page, tmp_path)
    _run(tmp_path, "make_data.py")
    there = _run(tmp_path, "there.py")
    here = _served(tmp_path, "here.py")
    assert len(there) == len(here) == 2
    assert [_counted(line) for line in here] == [_counted(line) for line in there]
    assert "0 samples" not in [line.split(": ")[1].split(",")[0] for line in here]
    if page not in ("lhotse", "tf_data"):  # those two bucket as well
        assert all(_padding(own) < _padding(theirs) / 2 for own, theirs in zip(here, there, strict=True))


def test_ranks_of_ddp_get_each_sample_once_where_the_sampler_repeats_one(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install -e '.[torch]'")
    _files("torch", tmp_path)
    _run(tmp_path, "make_data.py")
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    there = _run(tmp_path, *launched, "there_ddp.py")
    here = _served(tmp_path, *launched, "here_ddp.py")
    assert there == ["epoch 0: 1000 samples", "epoch 1: 1000 samples"]
    assert here == ["epoch 0: 999 samples", "epoch 1: 999 samples"]


def test_the_one_line_of_tf_data_service(tmp_path: Path) -> None:
    _files("tf_data", tmp_path)
    _run(tmp_path, "make_data.py")
    there = _run(tmp_path, "there_service.py")
    here = _served(tmp_path, "here_service.py", job="sent.toml")
    assert here == there == ["epoch 0: 999 samples", "epoch 1: 999 samples"]


def test_every_page_is_tried() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted(NEEDED)
