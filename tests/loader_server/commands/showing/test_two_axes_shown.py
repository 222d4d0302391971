"""Values whose rows and columns vary, as people see them: a cell for a size, and padding on both sides in pictures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from loader_server.cli import main
from loader_server.commands.index import index_streams
from loader_server.commands.plan_report import shown_lengths
from loader_server.commands.showing.batch_picture import draw
from loader_server.commands.showing.shown_batch import BatchNumber, ShownBatches
from loader_server.job_file import JobFile
from loader_server.stream import Stream
from tests.support.shards import npy, write_shard

if TYPE_CHECKING:
    from pathlib import Path

#: Rows and columns of each array.
SIZES = [(9, 2), (4, 8), (6, 5)]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    arrays = [np.ones(size, np.float32) for size in SIZES]
    write_shard(tmp_path / "a.tar", [(f"{row}.scores.npy", npy(array)) for row, array in enumerate(arrays)])
    (tmp_path / "job.toml").write_text(
        '[job]\nname = "x"\n[streams.train]\nsource = "webdataset"\npaths = ["a.tar"]\nany_size = ["scores"]\n'
        'length = "scores"\nrows = 3\n'
    )
    index_streams(JobFile(tmp_path / "job.toml"), ["train"])
    return tmp_path / "job.toml"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert not end.value.code
    return capsys.readouterr().out


def test_lengths_along_two_axes_share_a_cell() -> None:
    lengths = {"image_width": 640, "text": 1200, "image": 480, "speaker_width": 3}
    assert shown_lengths(lengths) == {"text": "1,200", "image": "480 x 640", "speaker_width": "3"}


def test_tables_show_sizes_in_80_columns(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "show", job, "train")
    assert "size" in shown
    for rows, columns in SIZES:
        assert f" {rows} x {columns} " in shown
    facts = json.loads(printed(capsys, "show", job, "train", "--json"))
    sizes = {(sample["lengths"]["scores"], sample["lengths"]["scores_width"]) for sample in facts["samples"]}
    assert sizes == set(SIZES)
    assert " 9 x 8 " in printed(capsys, "plan", job)


def test_a_picture_hatches_what_lies_beside_and_above_an_array(job: Path, tmp_path: Path) -> None:
    def hatched(path: Path) -> int:
        return int((np.abs(np.asarray(Image.open(path).convert("RGB"), int) - 237) < 3).all(axis=-1).sum())

    stream = Stream(JobFile(job), "train")
    batch = ShownBatches(stream, ()).build(BatchNumber(epoch=0, number=0, group=1))
    assert draw(batch, tmp_path / "own.png") == []
    arrays: dict[str, Any] = batch.arrays
    arrays["scores_width"][:], arrays["scores_length"][:] = 0, 0
    draw(batch, tmp_path / "empty.png")
    filled = sum(rows * columns for rows, columns in SIZES) / (3 * 9 * 8)
    share = hatched(tmp_path / "own.png") / hatched(tmp_path / "empty.png")
    assert share == pytest.approx(1 - filled, abs=0.05)
