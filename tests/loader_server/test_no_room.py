"""Commands on a disk without room, or where they may not write: one sentence, and nothing half made is left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from loader_server.cli import main
from tests.support.disk import no_file_larger_than, small_disk

if TYPE_CHECKING:
    from pathlib import Path

JOB = (
    '[job]\nname = "j"\n{}\n[streams.train]\nsource = "lines"\npaths = ["a.txt"]\ntransforms = ["characters"]\n'
    'length = "text"\nbudget = "300 steps"\n'
)


def end_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(str(ended.value.code)), capsys.readouterr().err


def job_of(folder: Path, line: str = "") -> str:
    (folder / "job.toml").write_text(JOB.format(line))
    (folder / "a.txt").write_text("one\ntwo\nthree\n" * 1000)
    return str(folder / "job.toml")


def left_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()} - {"filler", "index.lock", "lock"}


@pytest.mark.parametrize("nbytes", [0, 1, 100, 5_000])
def test_an_index_without_room_is_a_sentence_and_the_next_one_is_whole(
    nbytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(tmp_path)
    with no_file_larger_than(nbytes):
        code, said = end_of(capsys, "index", job)
    assert code == 1
    assert said.startswith(f"loader-server: index {tmp_path}/.stoker/j/index-train: expected the system to do ")
    assert "got File too large. Allow larger files" in said
    assert said.count("\n") == 1
    assert end_of(capsys, "index", job)[0] == 0


def test_a_full_disk_before_the_index_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        job = job_of(tmp_path, f'state = "{disk.folder}"')
        make_room = disk.fill()
        code, said = end_of(capsys, "index", job)
        assert code == 1
        assert "got No space left on device. Make room on that disk" in said
        assert said.count("\n") == 1
        make_room()
        assert end_of(capsys, "index", job)[0] == 0
        make_room = disk.fill()
        code, said = end_of(capsys, "plan", job)
        assert (code, "Traceback" in said) == (0, False), said
        make_room()


def test_a_folder_that_nobody_may_write_to_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(tmp_path, 'state = "/proc/self"')
    code, said = end_of(capsys, "index", job)
    assert code == 1
    assert said.startswith(
        f"loader-server: {job}, [job], state: expected a folder that user {os.geteuid()} may write to"
    )
    assert "got /proc/self of user" in said
    assert said.count("\n") == 1
